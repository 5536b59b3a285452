"""Corpus scores with signatures.

BLEU, chrF and TER are those of sacreBLEU (Post 2018). The `bleu-tokenized` family is BLEU as in older publications:
`multi-bleu.perl` on Moses tokens of hypothesis and reference. These metrics are comparable neither with sacreBLEU's nor
with each other; the signature names the tokenizer.
"""

from __future__ import annotations

import copy
import difflib
import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast, get_args

from sacrebleu.metrics.base import Score as SacrebleuScore
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest, Result

from nmt.decode.arguments import require_list, require_strings
from nmt.errors import CommandError, UserError
from nmt.evaluate.brackets import BracketF1
from nmt.evaluate.moses import MosesTokenizer, split_compounds
from nmt.evaluate.rouge import Rouge
from nmt.evaluate.sentence_counts import SentenceMetric
from nmt.logs import counted
from nmt.recipe import Metric, Recipe, load_saved_recipe
from nmt.recipe.corpora import LANGUAGE_PATTERN
from nmt.storage.run_folder import is_replaceable
from nmt.text.languages import SHORT_CODES

# sacreBLEU exposes details and intervals only as text; this many decimals restore the exact value.
_EXACT_DECIMALS = 20
# Cached tokenized lines: the references are the same for every system.
_CACHED_LINES = 1 << 16
_LABEL_METRICS = ("bleu", "chrf")


@dataclass(frozen=True)
class Score:
    """Score of one system on one test set.

    name:      metric, as named in recipes, or `comet`, `perplexity` or `bits-per-byte`
    value:     0 to 100, but TER may be higher, COMET is about 0 to 1, and perplexity and bits per byte have no maximum;
               higher is better except for `ter`, `perplexity` and `bits-per-byte`
    signature: scores are comparable only if their signatures are equal, apart from `bs` and `seed`, which describe the
               interval
    detail:    components of the score, such as precisions, brevity penalty and lengths; "" if there are none
    mean:      mean over bootstrap resamples of the sentences; None without resampling
    interval:  half width of the 95% interval around `mean`; None without resampling
    """

    name: str
    value: float
    signature: str
    detail: str = ""
    mean: float | None = None
    interval: float | None = None


@dataclass(frozen=True)
class GroupScore:
    """Scores of a group of sentences of a test set.

    exact:  percentage of sentences whose translation equals a reference
    scores: corpus scores of the group
    """

    group: str
    sentences: int
    exact: float
    scores: tuple[Score, ...]


@dataclass(frozen=True)
class Scorer:
    """A metric with its preprocessing.

    name:            as in recipes
    metric:          metric with the interface of sacreBLEU's, applied to preprocessed lines
    prepare:         preprocessing of each hypothesis and reference
    signature_notes: signature entries that the preprocessing changes
    """

    name: str
    metric: SentenceMetric
    prepare: Callable[[str], str]
    signature_notes: Mapping[str, str]

    def score(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, resamples: int = 0) -> Score:
        """Score raw hypotheses against one or more streams of raw references.

        resamples: bootstrap resamples for the 95% interval (Koehn 2004) if above 1, seeded by the environment variable
            SACREBLEU_SEED (default: 12345)

        Raises UserError for empty streams, different lengths and an invalid seed.
        """
        check_aligned(_named(hypotheses, references))
        if resamples > 1:
            check_seed()
        hyps = [self.prepare(line) for line in hypotheses]
        refs = self.prepare_references(references)
        self.metric.n_bootstrap = self.metric.seed = None  # otherwise the signature shows those of an earlier call
        result, bootstrap = _corpus_score(self.metric, hyps, refs, resamples)
        signature = self.metric.get_signature()
        fields = json.loads(result.format(width=_EXACT_DECIMALS, signature=str(signature), is_json=True))
        fields |= bootstrap
        return Score(
            self.name,
            float(result.score),
            self.sign(result.name, signature),
            fields.get("verbose_score", ""),
            # sacreBLEU omits a mean of 0.
            mean=fields.get("confidence_mean", 0.0) if resamples > 1 else None,
            interval=fields.get("confidence_var", 0.0) if resamples > 1 else None,
        )

    def score_sentences(
        self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]
    ) -> tuple[list[float], str]:
        """Return the score of each sentence and their signature, as sacreBLEU's `--sentence-level` does.

        BLEU omits n-gram orders for which the hypothesis is too short (`eff:yes`); the mean is not the corpus score.

        Raises UserError for empty streams and different lengths.
        """
        check_aligned(_named(hypotheses, references))
        metric = copy.copy(self.metric)
        metric.n_bootstrap = metric.seed = None
        if isinstance(metric, BLEU):
            metric.effective_order = True
        scores, numbers = [], set()
        for line, *refs in zip(hypotheses, *self.prepare_references(references), strict=True):
            given = [reference for reference in refs if reference is not None]
            scores.append(metric.sentence_score(self.prepare(line), given))
            numbers.add(len(given))
        metric.num_refs = numbers.pop() if len(numbers) == 1 else -1  # sacreBLEU's name of a variable number
        return [float(score.score) for score in scores], self.sign(scores[0].name, metric.get_signature())

    def prepare_references(self, references: Sequence[Sequence[str]]) -> list[list[str]]:
        """Preprocess references; missing ones, see `mask_missing`, are None, which sacreBLEU ignores."""
        streams = mask_missing(references)
        prepared = [[None if line is None else self.prepare(line) for line in stream] for stream in streams]
        return cast("list[list[str]]", prepared)

    @property
    def is_case_sensitive(self) -> bool:
        """Return whether words that differ in case count as different."""
        return not isinstance(self.metric, TER) and not self.metric.lowercase and "case" not in self.signature_notes

    def sign(self, kind: str, signature: object, **notes: str) -> str:
        """Return the full signature: kind of score, sacreBLEU's signature and changes due to preprocessing."""
        entries = dict(entry.split(":", 1) for entry in str(signature).split("|"))
        version = entries.pop("version")
        entries |= {**self.signature_notes, **notes, "version": version}
        return "|".join([kind, *(f"{key}:{value}" for key, value in entries.items())])


def make_scorer(name: str, *, tgt_lang: str, tokenize: str | None = None, lowercase: bool = False) -> Scorer:
    """Create the scorer of a metric.

    tgt_lang:  selects the rules of tokenizers; for Chinese, `ter` splits characters
    tokenize:  sacreBLEU tokenizer for `bleu`; None selects sacreBLEU's default for the language, mostly `13a`
    lowercase: for `bleu`, `chrf` and `chrf++` (sacreBLEU's -lc and --chrf-lowercase); TER always ignores case

    Raises UserError for an unknown name, and for a tokenizer that is unknown or not available.
    """
    match name:
        case "bleu":
            return Scorer(name, _bleu(tokenize, lowercase, tgt_lang), str, {})
        case "chrf":
            return Scorer(name, CHRF(lowercase=lowercase), str, {})
        case "chrf++":
            return Scorer(name, CHRF(lowercase=lowercase, word_order=2), str, {})
        case "ter":
            splits = SHORT_CODES.get(tgt_lang, tgt_lang) == "zh"  # sacreBLEU needs both options to do so
            return Scorer(name, TER(normalized=splits, asian_support=splits), str, {})
        case "bracket-f1":
            return Scorer(name, BracketF1(), str, {})
        case "rouge-1" | "rouge-2" | "rouge-l" | "rouge-lsum":
            return Scorer(name, Rouge(name), str, {})
        case "bleu-tokenized":
            moses = MosesTokenizer(tgt_lang)
            return _moses_scorer(name, moses, moses)
        case "bleu-tokenized-lc":
            moses = MosesTokenizer(tgt_lang)
            return _moses_scorer(name, moses, lambda line: moses(line.lower()), case="lc")
        case "bleu-compound-split":
            moses = MosesTokenizer(tgt_lang, "unipunct")
            return _moses_scorer(name, moses, lambda line: split_compounds(moses(line)), compounds="split")
        case _:
            raise _unknown("metric", name, get_args(Metric))


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
    """Score raw translations against one or more streams of raw references, with each metric.

    See `make_scorer` and `Scorer.score` for options and errors. Raises TypeError unless streams and metrics are
    collections of strings, and UserError if BLEU would use generic rules because `tgt_lang` is not an ISO 639 code.
    """
    require_strings("metrics", metrics)
    require_strings("hypotheses", hypotheses)
    require_list("references", references, "reference streams")
    references = list(references)
    for stream in references:
        require_strings("each reference stream", stream)
    if resamples < 0:
        raise ValueError(f"resamples is {resamples}; it must be at least 0")
    if not isinstance(tgt_lang, str):
        raise TypeError(f"tgt_lang must be a string such as 'de', got {type(tgt_lang).__name__}")
    if not re.fullmatch(LANGUAGE_PATTERN, tgt_lang) and any(name.startswith("bleu") for name in metrics):
        raise UserError(f"tgt_lang is {tgt_lang!r}; it must be an ISO 639 code such as de")
    scorers = [make_scorer(name, tgt_lang=tgt_lang, tokenize=tokenize, lowercase=lowercase) for name in metrics]
    return [scorer.score(hypotheses, references, resamples=resamples) for scorer in scorers]


def scoring_options(recipe: Recipe, lowercase: bool, test: str | None = None) -> dict[str, Any]:
    """Return the options of `make_scorer`.

    lowercase: whether the model writes lowercase text; test: name of the test set; None is the validation set
    """
    tgt_lang = recipe.tgt_lang if test is None else recipe.data.test[test].languages(recipe)[1]
    return {"tgt_lang": tgt_lang, "tokenize": recipe.evaluate.tokenize, "lowercase": lowercase}


def tokenizer_of_run(model: Path) -> str | None:
    """Return `evaluate.tokenize` of the run of a model directory or checkpoint; None if not set or without a run."""
    saved = [path / "recipe.toml" for path in (model, model.resolve().parent)]  # of a checkpoint, of a run
    recipe = next((load_saved_recipe(path) for path in saved if path.is_file() and is_replaceable(path)), None)
    return None if recipe is None else recipe.evaluate.tokenize


def bleu_tokenizer(
    *, tgt_lang: str, tokenize: str | None = None, lowercase: bool = False
) -> tuple[Callable[[str], list[str]], str]:
    """Return the tokenizer of `bleu` with these options, and a description of its tokens."""
    metric = _bleu(tokenize, lowercase, tgt_lang)

    def words(line: str) -> list[str]:
        tokens: str = metric.tokenizer((line.lower() if lowercase else line).rstrip())
        return tokens.split()

    return words, f"{'lowercased ' if lowercase else ''}tokens of sacreBLEU's {metric.tokenizer_signature}"


def score_groups(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    groups: Sequence[Sequence[str]],
    scorers: Sequence[Scorer],
    *,
    lowercase: bool = False,
) -> list[GroupScore]:
    """Score each group of sentences, sorted by name.

    groups:    names of the groups of each sentence: none, one or several
    lowercase: ignore case in exact matches

    Raises UserError for empty streams and different lengths.
    """
    check_aligned({**_named(hypotheses, references), "groups": groups})
    members: dict[str, list[int]] = defaultdict(list)
    for sentence, names in enumerate(groups):
        for name in dict.fromkeys(names):
            members[name].append(sentence)

    def normalize(line: str) -> str:  # like sacreBLEU, ignore white space at the end
        return line.rstrip().lower() if lowercase else line.rstrip()

    is_exact = [
        normalize(hypothesis) in (normalize(reference) for reference in refs if reference is not None)
        for hypothesis, *refs in zip(hypotheses, *mask_missing(references), strict=True)
    ]
    result = []
    for name, sentences in sorted(members.items()):
        hyps = [hypotheses[i] for i in sentences]
        refs = [[stream[i] for i in sentences] for stream in references]
        exact = 100.0 * sum(is_exact[i] for i in sentences) / len(sentences)
        result.append(GroupScore(name, len(sentences), exact, tuple(scorer.score(hyps, refs) for scorer in scorers)))
    return result


def score_labels(
    references: Sequence[Sequence[str]],
    labels: Sequence[Sequence[str]] | None,
    lines: Sequence[str],
    options: Mapping[str, Any],
) -> tuple[GroupScore, ...]:
    """Score the sentences of each label with BLEU and chrF; none without labels. options: of `make_scorer`"""
    if not labels:
        return ()
    scorers = [make_scorer(name, **options) for name in _LABEL_METRICS]
    return tuple(score_groups(lines, references, labels, scorers, lowercase=options["lowercase"]))


def mask_missing(references: Sequence[Sequence[str]]) -> list[list[str | None]]:
    """Replace missing references, which are blank although another one of the sentence is not, by None.

    sacreBLEU's command line counts them as references of length 0, which exempts short hypotheses from BLEU's brevity
    penalty.
    """
    rows = [
        refs if not any(map(str.strip, refs)) else [line if line.strip() else None for line in refs]
        for refs in zip(*references, strict=True)
    ]
    return [list(stream) for stream in zip(*rows, strict=True)]


def check_aligned(streams: Mapping[str, Sequence[object]]) -> None:
    """Raise UserError unless all streams (by name) have the same number of lines, at least one."""
    (first, first_lines), *others = streams.items()
    for name, lines in streams.items():
        if len(lines) == 0:  # also for arrays, which have no truth value
            raise UserError(f"{name} is empty; it must have one sentence per line; check the file")
    for name, lines in others:
        if len(lines) != len(first_lines):
            raise UserError(
                f"{first} has {counted(len(first_lines), 'line')} and {name} has {len(lines):,}; "
                "they must match line by line; check that both belong to the same test set"
            )


def check_seed() -> None:
    """Raise UserError if SACREBLEU_SEED is not a seed that sacreBLEU accepts."""
    seed = os.environ.get("SACREBLEU_SEED", "12345")
    if not (seed.isascii() and seed.isdigit()) and seed.lower() != "none":
        raise UserError(f"SACREBLEU_SEED must be an integer of at least 0, or none for a random seed, got {seed!r}")


def _unknown(kind: str, name: str, known: Sequence[str]) -> CommandError:
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return CommandError(f"unknown {kind} {name!r}; it must be one of {', '.join(known)}{hint}")


def _bleu(tokenize: str | None, lowercase: bool, tgt_lang: str) -> BLEU:
    if tokenize is not None and tokenize not in BLEU.TOKENIZERS:
        raise _unknown("tokenizer", tokenize, list(BLEU.TOKENIZERS))
    lang = SHORT_CODES.get(tgt_lang, tgt_lang)
    is_tokenized = tokenize == "none"  # no warning about text that looks tokenized
    try:
        return BLEU(tokenize=tokenize, lowercase=lowercase, trg_lang=lang, force=is_tokenized)
    except (RuntimeError, OSError, ImportError) as error:  # the tokenizer needs a package or a download
        name = tokenize or f"{lang}-mecab"
        if name in ("ja-mecab", "ko-mecab"):
            problem = f"needs a package; pip install 'sacrebleu[{name[:2]}]'"
        else:
            problem = f"is not available: {' '.join(str(error).split())}; fix this"
        raise UserError(
            f"tokenizer {name!r} {problem}, or use another one, such as char (--tokenize, or evaluate.tokenize of a "
            "recipe)"
        ) from error


def _corpus_score(
    metric: SentenceMetric, lines: Sequence[str], references: Sequence[Sequence[str]], resamples: int
) -> tuple[SacrebleuScore, dict[str, float]]:
    """Return sacreBLEU's score and, if the score cannot contain it, the bootstrap interval."""
    try:
        return metric.corpus_score(lines, references, n_bootstrap=max(resamples, 1)), {}
    except TypeError:
        # sacreBLEU 2.6 cannot average resampled scores if some are exactly zero, because these are float and the
        # others are float32. Its paired test can, and resamples its baseline, here this system, in the same way. The
        # failed call has already set n_bootstrap and seed for the signature.
        test = PairedTest([("", lines)], {"": metric}, references, test_type="bs", n_samples=resamples)
        _, columns = test()
        (baseline,) = (cell for cells in columns.values() for cell in cells if isinstance(cell, Result))
        assert baseline.mean is not None and baseline.ci is not None
        bootstrap = {"confidence_mean": float(baseline.mean), "confidence_var": float(baseline.ci)}
        return metric.corpus_score(lines, references), bootstrap


def _moses_scorer(name: str, moses: MosesTokenizer, prepare: Callable[[str], str], **notes: str) -> Scorer:
    # `force` suppresses a warning about tokenized text. multi-bleu.perl does not smooth.
    metric = BLEU(tokenize="none", force=True, smooth_method="none")
    return Scorer(name, metric, lru_cache(_CACHED_LINES)(prepare), {"tok": moses.signature, **notes})


def _named(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, Sequence[object]]:
    if not references:
        raise UserError("references must have at least one stream, got none; pass a list of lists of lines")
    return {"the hypothesis": hypotheses, **{f"reference {n}": lines for n, lines in enumerate(references, start=1)}}
