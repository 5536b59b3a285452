"""Scores of translations, each with the signature that says how it was counted.

BLEU, chrF and TER are sacreBLEU's (Post 2018). The `bleu-tokenized` family is what older publications give instead:
BLEU over Moses tokens of both sides. Those figures are neither comparable with sacreBLEU's nor with each other, so each
has a name of its own and a signature that names the tokenizer.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import assert_never, get_args

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from nmt.recipe import Metric, UserError


@dataclass(frozen=True)
class Score:
    """One figure of one system on one test set.

    name:      the metric, as a recipe writes it
    value:     0 to 100 (TER may be more); higher is better, except for `ter`
    signature: how it was counted; two values may be compared only if these are equal
    detail:    what the figure is made of, where sacreBLEU tells: precisions, brevity penalty, lengths
    """

    name: Metric
    value: float
    signature: str
    detail: str = ""


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
    counter: BLEU | CHRF | TER
    prepare: Callable[[str], str]
    signature_notes: Mapping[str, str]

    def score(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
        """The score of raw `hypotheses` against one or more streams of raw `references`.

        Raises UserError where the streams are empty or differ in length.
        """
        check_aligned(_named(hypotheses, references))
        return self.score_prepared(hypotheses, [[self.prepare(line) for line in stream] for stream in references])

    def score_prepared(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]], **notes: str) -> Score:
        """As `score`, for references that are prepared already; `notes` go into the signature."""
        result = self.counter.corpus_score([self.prepare(line) for line in hypotheses], references)
        signature = self.counter.get_signature()
        for key, value in {**self.signature_notes, **notes}.items():
            signature.update(key, value)
        kind, _, figures = str(result).partition(" = ")
        return Score(self.name, result.score, f"{kind}|{signature}", detail=figures.partition(" ")[2])


def make_scorer(name: str, *, tgt_lang: str, tokenize: str = "13a", lowercase: bool = False) -> Scorer:
    """The scorer of one metric.

    `tokenize` (a tokenizer of sacreBLEU) and `lowercase` are for BLEU, `lowercase` for chrF too; TER never minds case,
    and the `bleu-tokenized` family has its own tokens. `tgt_lang` chooses the rules of the Moses tokenizer.
    Raises UserError for an unknown metric or tokenizer.
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
        case "bleu-tokenized":
            moses = MosesText(tgt_lang)
            return _moses_scorer(metric, moses, moses.tokens)
        case "bleu-tokenized-lc":
            moses = MosesText(tgt_lang)
            return _moses_scorer(metric, moses, lambda line: moses.tokens(line.lower()), case="lc")
        case "bleu-compound-split":
            moses = MosesText(tgt_lang)
            return _moses_scorer(metric, moses, lambda line: split_compounds(moses.tokens(line)), compounds="split")
        case _:
            assert_never(metric)


def score_corpus(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Sequence[str],
    *,
    tgt_lang: str,
    tokenize: str = "13a",
    lowercase: bool = False,
) -> list[Score]:
    """Corpus scores of raw translations against one or more streams of raw references, one for each metric.

    See `make_scorer` for the options. Raises UserError for an unknown metric or tokenizer, and where the streams are
    empty or differ in length.
    """
    scorers = [make_scorer(name, tgt_lang=tgt_lang, tokenize=tokenize, lowercase=lowercase) for name in metrics]
    return [scorer.score(hypotheses, references) for scorer in scorers]


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
) -> list[GroupScore]:
    """Scores for each group of sentences, by name; `groups` holds the groups of each sentence: none, one or several.

    Raises UserError where the streams are empty or differ in length.
    """
    check_aligned({**_named(hypotheses, references), "groups": groups})
    members: dict[str, list[int]] = defaultdict(list)
    for sentence, names in enumerate(groups):
        for name in dict.fromkeys(names):
            members[name].append(sentence)
    result = []
    for name, sentences in sorted(members.items()):
        chosen = [hypotheses[i] for i in sentences]
        refs = [[stream[i] for i in sentences] for stream in references]
        equal = sum(hypothesis in answers for hypothesis, *answers in zip(chosen, *refs, strict=True))
        scores = score_corpus(chosen, refs, metrics, tgt_lang=tgt_lang)
        result.append(GroupScore(name, len(sentences), 100.0 * equal / len(sentences), tuple(scores)))
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


class MosesText:
    """Text as the Moses scripts leave it: punctuation normalised, then tokenised, special characters escaped.

    Lower-cased before, it reproduces each of the 93,042 lines of Multi30k's `lc.norm.tok` files (task 1, three
    languages). Hyphens stay inside words (no aggressive splitting).
    """

    def __init__(self, lang: str) -> None:
        """`lang` is an ISO 639 code; Moses has rules for about thirty languages and takes English ones for others."""
        # Importing it compiles its rules, which takes a second that only those who need them shall wait.
        from sacremoses import MosesPunctNormalizer, MosesTokenizer  # noqa: PLC0415

        self._normalizer = MosesPunctNormalizer(lang, perl_parity=True)
        self._tokenizer = MosesTokenizer(lang)
        self.signature = f"moses.{lang}.norm.sacremoses-{version('sacremoses')}"

    def tokens(self, line: str) -> str:
        """The tokens of a line, joined by single spaces."""
        # Moses' rule for a full stop before a closing quote looks at the character behind it: the line end, in Perl.
        normalized: str = self._normalizer.normalize(line + "\n")
        tokenized: str = self._tokenizer.tokenize(normalized, return_str=True)
        return tokenized.strip()


def split_compounds(tokens: str) -> str:
    """Tokens with each hyphen between two characters made a token, as the paper's English-German scores were counted.

    The rule of tensor2tensor's `get_ende_bleu.sh`, which follows Luong et al. 2015.
    """
    return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", tokens)


def _known_metric(name: str) -> Metric:
    for metric in get_args(Metric):
        if metric == name:
            known: Metric = metric
            return known
    raise UserError(f"unknown metric {name!r}; it must be one of {', '.join(get_args(Metric))}; choose one")


def _bleu(tokenize: str, lowercase: bool, tgt_lang: str) -> BLEU:
    if tokenize not in BLEU.TOKENIZERS:
        raise UserError(f"unknown tokenizer {tokenize!r}; it must be one of {', '.join(BLEU.TOKENIZERS)}; choose one")
    try:
        return BLEU(tokenize=tokenize, lowercase=lowercase, trg_lang=tgt_lang)
    except (RuntimeError, OSError) as error:  # a tokenizer that needs a package or a download
        reason = " ".join(str(error).split())
        raise UserError(f"tokenizer {tokenize!r} cannot be used: {reason}") from error


def _moses_scorer(metric: Metric, moses: MosesText, prepare: Callable[[str], str], **notes: str) -> Scorer:
    # `force`: the warning that the text looks tokenised would be about our own tokens.
    return Scorer(metric, BLEU(tokenize="none", force=True), prepare, {"tok": moses.signature, **notes})


def _named(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, Sequence[object]]:
    return {"the hypothesis": hypotheses, **{f"reference {n}": lines for n, lines in enumerate(references, start=1)}}
