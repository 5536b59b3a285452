"""Scores of translations, each with the signature that says how it was counted.

BLEU, chrF and TER are sacreBLEU's (Post 2018). The `bleu-tokenized` family is what older publications give instead:
`multi-bleu.perl` over Moses tokens of both sides. These figures are neither comparable with sacreBLEU's nor with each
other, so each has a name of its own and a signature that names the tokenizer.
"""

from __future__ import annotations

import difflib
import json
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import assert_never, get_args

from sacrebleu.metrics.bleu import BLEU, BLEUScore
from sacrebleu.metrics.chrf import CHRF, CHRFScore
from sacrebleu.metrics.ter import TER, TERScore
from sacrebleu.significance import PairedTest, Result

from nmt.evaluate.brackets import BracketF1, BracketScore
from nmt.evaluate.moses import MosesText, split_compounds
from nmt.evaluate.sentence_counts import SentenceCounter
from nmt.recipe import Metric, UserError

# Digits behind the point that give back a figure of sacreBLEU's exactly, of which it hands out only text.
_ALL_DIGITS = 20
# Prepared lines that a scorer remembers: the references come again with every system.
_REMEMBERED_LINES = 1 << 16


@dataclass(frozen=True)
class Score:
    """One figure of one system on one test set.

    name:      the metric, as a recipe writes it (or `comet`)
    value:     0 to 100 (TER may be more, COMET is about 0 to 1); higher is better, except for `ter`
    signature: how it was counted; two values may be compared only if these are equal (but for `bs` and `seed`, which
               say how the interval was estimated)
    detail:    what the figure is made of, where sacreBLEU tells: precisions, brevity penalty, lengths
    mean:      mean over bootstrap resamples of the sentences, None where none were drawn
    interval:  half the width of the 95 % interval around `mean`, None where there is none
    """

    name: str
    value: float
    signature: str
    detail: str = ""
    mean: float | None = None
    interval: float | None = None


@dataclass(frozen=True)
class GroupScore:
    """Scores over those sentences of a test set that share a property.

    group:     name of the property
    sentences: how many sentences have it
    exact:     per cent of them whose translation is equal to a reference
    scores:    corpus scores over them
    """

    group: str
    sentences: int
    exact: float
    scores: tuple[Score, ...]


@dataclass(frozen=True)
class Scorer:
    """One metric, ready to score: sacreBLEU's counter behind a preparation of the text.

    name:            the metric, as a recipe writes it
    counter:         sacreBLEU's metric, applied to prepared lines
    prepare:         what is done to each hypothesis and reference before
    signature_notes: entries of sacreBLEU's signature that the preparation changes
    """

    name: Metric
    counter: SentenceCounter
    prepare: Callable[[str], str]
    signature_notes: Mapping[str, str]

    def score(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, resamples: int = 0) -> Score:
        """The score of raw `hypotheses` against one or more streams of raw `references`.

        Above 1, `resamples` bootstrap resamples give the 95 % interval (Koehn 2004), drawn with the seed in the
        environment variable SACREBLEU_SEED, 12345 by default. Raises UserError where the streams are empty or differ
        in length, and for a seed that is none.
        """
        check_aligned(_named(hypotheses, references))
        prepared = [[self.prepare(line) for line in stream] for stream in references]
        return self.score_prepared(hypotheses, prepared, resamples=resamples)

    def score_prepared(
        self, hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, resamples: int = 0, **notes: str
    ) -> Score:
        """As `score`, for references that are prepared already; `notes` go into the signature."""
        if resamples > 1:
            check_seed()
        self.counter.n_bootstrap = self.counter.seed = None  # or the signature would tell of those of an earlier call
        result, bootstrap = _corpus_score(
            self.counter, [self.prepare(line) for line in hypotheses], references, resamples
        )
        signature = self.counter.get_signature()
        told = json.loads(result.format(width=_ALL_DIGITS, signature=str(signature), is_json=True)) | bootstrap
        return Score(
            self.name,
            float(result.score),
            self.sign(result.name, signature, **notes),
            told.get("verbose_score", ""),
            # sacreBLEU leaves out a mean of 0, which is that of nothing but zeros.
            mean=told.get("confidence_mean", 0.0) if resamples > 1 else None,
            interval=told.get("confidence_var", 0.0) if resamples > 1 else None,
        )

    @property
    def is_case_sensitive(self) -> bool:
        """Whether a word in lower case and the same with a capital letter are different words."""
        return not isinstance(self.counter, TER) and not self.counter.lowercase and "case" not in self.signature_notes

    def sign(self, kind: str, signature: object, **notes: str) -> str:
        """A signature of sacreBLEU's in full: after the kind of score, and with what the preparation changes."""
        entries = dict(entry.split(":", 1) for entry in str(signature).split("|"))
        version = entries.pop("version")
        entries |= {**self.signature_notes, **notes, "version": version}
        return "|".join([kind, *(f"{key}:{value}" for key, value in entries.items())])


def make_scorer(name: str, *, tgt_lang: str, tokenize: str | None = None, lowercase: bool = False) -> Scorer:
    """The scorer of one metric.

    `tokenize` (a tokenizer of sacreBLEU; by default the one that sacreBLEU takes for the language, `13a` for most) and
    `lowercase` are for BLEU, `lowercase` for chrF too (sacreBLEU's program has options for each: -lc and
    --chrf-lowercase); TER never minds case, and the `bleu-tokenized` family has tokens of its own. `tgt_lang` chooses
    the rules of the Moses tokenizer. Raises UserError for an unknown name.
    """
    metric = _known_metric(name)
    match metric:
        case "bleu":
            return Scorer(metric, _bleu(tokenize, lowercase, tgt_lang), str, {})
        case "chrf":
            return Scorer(metric, CHRF(lowercase=lowercase), str, {})
        case "chrf++":
            return Scorer(metric, CHRF(lowercase=lowercase, word_order=2), str, {})
        case "ter":
            return Scorer(metric, TER(), str, {})
        case "bracket-f1":
            return Scorer(metric, BracketF1(), str, {})
        case "bleu-tokenized":
            moses = MosesText(tgt_lang)
            return _moses_scorer(metric, moses, moses.tokens)
        case "bleu-tokenized-lc":
            moses = MosesText(tgt_lang)
            return _moses_scorer(metric, moses, lambda line: moses.tokens(line.lower()), case="lc")
        case "bleu-compound-split":
            moses = MosesText(tgt_lang, "unipunct")
            return _moses_scorer(metric, moses, lambda line: split_compounds(moses.tokens(line)), compounds="split")
        case _:
            assert_never(metric)


def score_corpus(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Sequence[str],
    *,
    tgt_lang: str,
    tokenize: str | None = None,
    lowercase: bool = False,
    resamples: int = 0,
) -> list[Score]:
    """Corpus scores of raw translations against one or more streams of raw references, one for each metric.

    See `make_scorer` and `Scorer.score` for the options. Raises UserError for an unknown metric or tokenizer, and where
    the streams are empty or differ in length.
    """
    scorers = [make_scorer(name, tgt_lang=tgt_lang, tokenize=tokenize, lowercase=lowercase) for name in metrics]
    return [scorer.score(hypotheses, references, resamples=resamples) for scorer in scorers]


def bleu_tokenizer(
    *, tgt_lang: str, tokenize: str | None = None, lowercase: bool = False
) -> tuple[Callable[[str], list[str]], str]:
    """What cuts a line into the words that `bleu` with these options counts, and a name for such words."""
    counter = _bleu(tokenize, lowercase, tgt_lang)

    def words(line: str) -> list[str]:
        tokens: str = counter.tokenizer((line.lower() if lowercase else line).rstrip())
        return tokens.split()

    return words, f"{'lower-cased ' if lowercase else ''}tokens of sacreBLEU's {counter.tokenizer_signature}"


def score_tokenized(
    hypotheses: Sequence[str],
    tokenized_references: Sequence[Sequence[str]],
    metric: str = "bleu-tokenized-lc",
    *,
    tgt_lang: str,
) -> Score:
    """BLEU of raw translations against reference files that hold Moses tokens already, such as `*.lc.norm.tok.de`.

    Raises UserError for a metric outside the `bleu-tokenized` family, and where streams are empty or differ in length.
    """
    scorer = make_scorer(metric, tgt_lang=tgt_lang)
    if scorer.prepare is str:
        raise UserError(f"{metric} makes tokens of its own; the reference must be raw; or take bleu-tokenized-lc")
    check_aligned(_named(hypotheses, tokenized_references))
    return scorer.score_prepared(hypotheses, tokenized_references, ref="tokenized")


def score_by_group(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    groups: Sequence[Sequence[str]],
    metrics: Sequence[str] = ("bleu", "chrf"),
    *,
    tgt_lang: str,
    tokenize: str | None = None,
    lowercase: bool = False,
) -> list[GroupScore]:
    """Scores for each group of sentences, by name; `groups` holds the groups of each sentence: none, one or several.

    Raises UserError where the streams are empty or differ in length.
    """
    scorers = [make_scorer(name, tgt_lang=tgt_lang, tokenize=tokenize, lowercase=lowercase) for name in metrics]
    return score_groups(hypotheses, references, groups, scorers, lowercase=lowercase)


def score_groups(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    groups: Sequence[Sequence[str]],
    scorers: Sequence[Scorer],
    *,
    lowercase: bool = False,
) -> list[GroupScore]:
    """As `score_by_group`, by scorers that are made already; `lowercase`: exact translations may differ in case."""
    check_aligned({**_named(hypotheses, references), "groups": groups})
    members: dict[str, list[int]] = defaultdict(list)
    for sentence, names in enumerate(groups):
        for name in dict.fromkeys(names):
            members[name].append(sentence)
    as_compared = str.lower if lowercase else str
    equal = [
        as_compared(hypothesis) in map(as_compared, answers)
        for hypothesis, *answers in zip(hypotheses, *references, strict=True)
    ]
    result = []
    for name, sentences in sorted(members.items()):
        chosen = [hypotheses[i] for i in sentences]
        refs = [[stream[i] for i in sentences] for stream in references]
        exact = 100.0 * sum(equal[i] for i in sentences) / len(sentences)
        result.append(GroupScore(name, len(sentences), exact, tuple(scorer.score(chosen, refs) for scorer in scorers)))
    return result


def check_aligned(streams: Mapping[str, Sequence[object]]) -> None:
    """Raise UserError, with names and counts, unless the streams (by name) have equally many lines, at least one."""
    (first, reference), *others = streams.items()
    for name, lines in streams.items():
        if not lines:
            raise UserError(f"{name} has no lines; it must hold one sentence a line; check the file")
    for name, lines in others:
        if len(lines) != len(reference):
            raise UserError(
                f"{first} has {len(reference):,} lines and {name} has {len(lines):,}; "
                "they must match line by line; check that both belong to the same test set"
            )


def check_seed() -> None:
    """Raise UserError unless SACREBLEU_SEED, where it is set, is a seed that sacreBLEU can draw with."""
    seed = os.environ.get("SACREBLEU_SEED", "12345")
    if not (seed.isascii() and seed.isdigit()) and seed.lower() != "none":
        raise UserError(f"SACREBLEU_SEED is {seed!r}; it must be a whole number, or none for another one every time")


def _known_metric(name: str) -> Metric:
    for metric in get_args(Metric):
        if metric == name:
            known: Metric = metric
            return known
    raise _unknown("metric", name, get_args(Metric))


def _unknown(kind: str, name: str, known: Sequence[str]) -> UserError:
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    remedy = f"did you mean {near[0]!r}?" if near else "choose one"
    return UserError(f"unknown {kind} {name!r}; it must be one of {', '.join(known)}; {remedy}")


def _bleu(tokenize: str | None, lowercase: bool, tgt_lang: str) -> BLEU:
    if tokenize is not None and tokenize not in BLEU.TOKENIZERS:
        raise _unknown("tokenizer", tokenize, list(BLEU.TOKENIZERS))
    try:
        return BLEU(tokenize=tokenize, lowercase=lowercase, trg_lang=tgt_lang)
    except (RuntimeError, OSError, ImportError) as error:  # a tokenizer that needs a package or a download
        reason = " ".join(str(error).split())
        raise UserError(f"tokenizer {tokenize or tgt_lang!r} cannot be used: {reason}") from error


def _corpus_score(
    counter: SentenceCounter, lines: Sequence[str], references: Sequence[Sequence[str]], resamples: int
) -> tuple[BLEUScore | CHRFScore | TERScore | BracketScore, dict[str, float]]:
    """sacreBLEU's score; above 1, `resamples` give it an interval, which comes apart where it cannot hold it."""
    try:
        return counter.corpus_score(lines, references, n_bootstrap=max(resamples, 1)), {}
    except TypeError:
        assert not isinstance(counter, BracketF1)
        # Where the score of some resamples is just zero, sacreBLEU (2.6) cannot take the mean of its own numbers, since
        # those are 64-bit and the others 32-bit. What it has noted for the signature until then stands. Its paired
        # test, which can, draws the same resamples of its baseline.
        test = PairedTest([("", lines)], {"": counter}, references, test_type="bs", n_samples=resamples)
        (found,) = (row for rows in test()[1].values() for row in rows if isinstance(row, Result))
        assert found.mean is not None and found.ci is not None
        bootstrap = {"confidence_mean": float(found.mean), "confidence_var": float(found.ci)}
        return counter.corpus_score(lines, references), bootstrap


def _moses_scorer(metric: Metric, moses: MosesText, prepare: Callable[[str], str], **notes: str) -> Scorer:
    # `force`: the warning that the text looks tokenised would be about our own tokens. multi-bleu.perl smooths nothing.
    counter = BLEU(tokenize="none", force=True, smooth_method="none")
    return Scorer(metric, counter, lru_cache(_REMEMBERED_LINES)(prepare), {"tok": moses.signature, **notes})


def _named(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, Sequence[object]]:
    return {"the hypothesis": hypotheses, **{f"reference {n}": lines for n, lines in enumerate(references, start=1)}}
