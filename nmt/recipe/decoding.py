"""The recipe section of decoding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Set
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, NonNegativeInt, PositiveInt, model_validator

from nmt.errors import CommandError
from nmt.recipe.corpora import NonNegativeFloat, PositiveFloat, Probability, Section

GlossaryMode = Literal["constrain", "annotate"]
Strength = Annotated[float, Field(ge=0.0, le=1_000.0)]
OptionalPath = Annotated[Path | None, BeforeValidator(lambda path: None if path == "" else path)]

SearchPrecision = Literal["auto", "fp32", "bf16", "fp16", "int8"]

LengthPenalty = Literal["gnmt", "power", "none"]
StopRule = Literal["exact", "first", "patience"]

MAX_BEAM_SIZE = 5_000
"""With the base model and a beam of this size, the KV cache takes 6 GB for a sentence of 50 tokens."""


class DecodeRecipe(Section):
    """Decoding options (paper, section 6.1)."""

    beam_size: Annotated[PositiveInt, Field(le=MAX_BEAM_SIZE)] = 4
    """Hypotheses kept at each step; 1 is greedy search. Sampling ignores it."""
    length_penalty: LengthPenalty = "gnmt"
    """Divisor of the log-probability: ((5+n)/6)^alpha (the paper), n^alpha (fairseq, CTranslate2), or 1."""
    length_alpha: Annotated[float, Field(ge=0.0, le=10.0)] = 0.6
    """Exponent of the length penalty."""
    stop: StopRule = "first"
    """Stopping criterion: `first`, when `beam_size` hypotheses have finished, as in fairseq and CTranslate2;
    `patience`, when `patience` times `beam_size` have finished (Kasai et al. 2022); `exact`, when no live hypothesis
    can exceed the worst of the `n_best` finished ones. Greedy search stops at EOS."""
    patience: PositiveFloat = 1.0
    """With `stop` = "patience": factor on `beam_size`; 1 is the same as `first`."""
    beam_groups: PositiveInt = 1
    """Diverse beam search (Vijayakumar et al. 2018): number of groups that the beam is split into; must divide
    `beam_size`. An n-best list takes the best translation of each group, then the second best, and so on, and is sorted
    by score."""
    diversity_penalty: Strength = 0.5
    """Diverse beam search: penalty on a token for each hypothesis in earlier groups that chose it at this step."""
    max_extra_tokens: NonNegativeInt = 50
    """Maximum output length: input tokens plus this number. A prefix longer than the maximum is output
    unchanged. Lines that a language model continues count as prefixes, not as input."""
    max_length_ratio: PositiveFloat | None = None
    """Maximum output length: input tokens times this factor, rounded up."""
    max_tokens: PositiveInt | None = None
    """Maximum output length in tokens. Length limits apply to each part of a line that is split (`long_lines`,
    `split_sentences`), not to the whole line."""
    min_tokens: NonNegativeInt = 0
    """Minimum output length in tokens; the maximum takes precedence."""
    min_length_ratio: NonNegativeFloat = 0.0
    """Minimum output length: input tokens times this factor, rounded down."""
    no_repeat_ngram: NonNegativeInt = 0
    """Block repeated n-grams of this many tokens; 0 disables this."""
    forbid: tuple[str, ...] = ()
    """Negative lexical constraints: phrases that must not occur. Each is tokenized by itself; other segmentations of it
    are not excluded, but longer words that begin with its tokens are (`Hund` may exclude `Hunde`). In scripts without
    spaces, tokens that contain the phrase are excluded too. A given prefix may still contain a phrase, and so may the
    joined translations of a split line."""
    require: tuple[str, ...] = ()
    """Positive lexical constraints: phrases that every output must contain, each tokenized by itself. Use a beam larger
    than their total number of tokens."""
    glossary_mode: GlossaryMode = "constrain"
    """How glossary terms are applied: `constrain` requires one of the given forms of each term; `annotate` writes the
    first form of each term into the source, and the model may inflect it. `annotate` needs a model trained with
    `train.glossary_markup`, and is the default of such a model."""
    bias: dict[str, Annotated[float, Field(ge=-1_000.0, le=1_000.0)]] = Field(default_factory=dict)
    """Phrases to prefer (above 0) or avoid (below 0): the value is added to the log-probability of an output for the
    first occurrence of a preferred phrase and for each occurrence of an avoided one."""
    trees: bool = False
    """Parsing: restrict outputs to well-formed trees with as many words as the source, for models trained on corpora of
    kind `trees` with `tokenizer.joint` = false."""
    n_best: Annotated[PositiveInt, Field(le=MAX_BEAM_SIZE)] = 1
    """Translations per sentence, best first; at most `beam_size`. With `sampling`, the number may exceed `beam_size`,
    and the order is random. `nmt translate` prints one translation unless `--n-best` or `--set n_best` is given; it
    uses the model's own value only with `mbr_metric`, as the number of candidates."""
    tag: str | None = None
    """Token prepended to each source sentence to select a domain: the `tag` of a training corpus, such as `<web>`."""
    ensemble_mean: Literal["linear", "log"] = "linear"
    """Mean of the probabilities in an ensemble: arithmetic (`linear`) or geometric (`log`)."""
    long_lines: Literal["split", "truncate"] = "split"
    """Lines with more than `data.max_tokens` tokens: split them and join the translations, or truncate them, for
    summarization."""
    split_sentences: bool = False
    """Split each line into sentences and translate them separately, for models trained on single sentences."""
    mbr_metric: Literal["none", "chrf", "bleu"] = "none"
    """Minimum Bayes risk decoding (MBR): output the one of `n_best` candidates with the highest expected value of
    this sentence-level metric against all candidates. Samples have equal weights; translations of a search are weighted
    by their probability, exp(log_prob). `bleu` uses sacreBLEU's tokenizer 13a: use `chrf` for languages without spaces,
    such as Chinese."""
    sampling: bool = False
    """Sample `n_best` translations instead of searching."""
    sampling_seed: int = 1
    """Sampling seed; the samples of a line depend only on the seed and the line."""
    temperature: Annotated[float, Field(ge=1e-6, le=1e6)] = 1.0
    """Sampling: divisor of the logits; below 1 sharpens the distribution."""
    top_k: NonNegativeInt = 0
    """Sampling: restrict to the k most probable tokens; 0 disables this."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Sampling: restrict to the smallest set of tokens with this total probability (nucleus sampling)."""
    min_p: Probability = 0.0
    """Sampling: minimum probability of a token, as a fraction of the highest probability."""
    alignments: bool = False
    """Output word alignments. `nmt translate` ignores a model's own value: it prints alignments only with
    `--with-alignments` or `--set alignments=true`."""
    alignment_layer: NonNegativeInt | None = None
    """Decoder layer of the cross-attention for alignments, from 0; by default the second to last. `nmt align --choose`
    finds the best layer and heads."""
    alignment_heads: tuple[NonNegativeInt, ...] = ()
    """Heads to average, from 0; by default all."""
    alignment_at: Literal["output", "input"] = "output"
    """Decoder position whose attention aligns a target token: `output`, which predicts it, or `input`, one position
    later, which reads it. In deep decoders the lower layers align better at `input` (Chen et al. 2020); in shallow
    decoders only `output` works."""
    shortlist: OptionalPath = None
    """A file made by `nmt shortlist`: restricts the target vocabulary to the candidates of the source tokens, frequent
    tokens, and the tokens of the prefix and of required and preferred phrases. Search is faster, but some translations
    change. An empty path disables it. Scoring does not use it."""
    fusion: OptionalPath = None
    """Shallow fusion (Gulcehre et al. 2015): a language model with the same target tokenizer, as a run or a model
    directory. Search and sampling use log p(y|x) + `fusion_weight` * log p_lm(y). An empty path disables it. Scoring
    does not use it."""
    fusion_weight: Strength = 0.1
    """Shallow fusion: weight of the language model; 0 disables it."""
    batch_tokens: PositiveInt | Literal["auto"] = "auto"
    """Maximum source tokens per batch. `auto`: with CTranslate2, 512 in greedy search and 256 with a beam, and 8,192 on
    a GPU. With torch on a CPU, 8,192 in greedy search, 4,096 with a beam of 2, 2,048 with a beam of 3 to 64, and fewer
    with larger beams; on a GPU, what fits in a quarter of its memory with this model and beam, from 2,048 to 32,768."""

    def over(
        self, own: DecodeRecipe, *, has_ensemble: bool = False, needs_alignments: bool | None = None
    ) -> DecodeRecipe:
        """Override `own` with the options that were set explicitly.

        A smaller beam also limits `n_best` of `own`, but not the number of candidates for MBR.

        has_ensemble, needs_alignments: whether several models translate, and whether alignments are computed (default:
        the value of option `alignments`)

        Raises ValueError for inconsistent options, and for changes without effect unless all options are set.
        """
        given = {name: getattr(self, name) for name in self.model_fields_set}
        merged = own.model_dump() | given
        if "n_best" not in given and not merged["sampling"] and merged["mbr_metric"] == "none":
            merged["n_best"] = min(merged["n_best"], merged["beam_size"])
        options = DecodeRecipe(**merged)
        sets_all = given.keys() == merged.keys()
        names = [name for name in sorted(given) if given[name] != getattr(own, name) and not sets_all]
        needs_alignments = options.alignments if needs_alignments is None else needs_alignments
        if found := ineffective_option(names, options, has_ensemble=has_ensemble, needs_alignments=needs_alignments):
            name, problem = found
            raise ValueError(f"decode.{problem}; change that, or remove decode.{name}")
        if options.n_best == 1 < own.n_best and options.mbr_metric != "none" and not sets_all:
            raise ValueError(
                f"decode.n_best is 1 and decode.mbr_metric is {options.mbr_metric!r}, which selects from several "
                "candidates; increase n_best, or set mbr_metric to 'none'"
            )
        return options

    def all_given(self) -> DecodeRecipe:
        """Return a copy in which all options, including defaults, count as set explicitly."""
        return self.model_copy(update=dict(self))

    @property
    def description(self) -> str:
        """The search of `nmt run` in one phrase; without MBR, it takes one sample per sentence."""
        alpha = "" if self.length_penalty == "none" else f" {self.length_alpha:g}"
        search = f"beam {self.beam_size}, length penalty {self.length_penalty}{alpha}"
        if self.sampling:
            has_candidates = self.mbr_metric != "none" and self.n_best > 1
            search = f"{self.n_best} samples per sentence" if has_candidates else "one sample per sentence"
        return search if self.mbr_metric == "none" else f"{search}, MBR with {self.mbr_metric}"

    def search_settings(self) -> dict[str, Any]:
        """Return the options that determine a translation, as JSON values.

        Omits the batch size, which only affects rounding, and files, which need a digest.
        """
        options = self.model_dump(mode="json", exclude={"batch_tokens", "shortlist", "fusion"})
        if self.glossary_mode == "constrain":
            del options["glossary_mode"]  # absent from settings that earlier versions recorded
        if not self.trees:
            del options["trees"]
        return {f"decode.{name}": value for name, value in options.items()}

    @model_validator(mode="after")
    def _items_are_valid(self) -> DecodeRecipe:
        for name, phrases in (("forbid", self.forbid), ("require", self.require), ("bias", self.bias)):
            if not all(phrase.strip() for phrase in phrases):
                raise ValueError(f"decode.{name} has an empty phrase; each must have text; remove the empty phrase")
        heads = self.alignment_heads
        if repeated := [head for head in heads if heads.count(head) > 1]:
            raise ValueError(f"decode.alignment_heads names head {repeated[0]} twice; a head counts once; remove one")
        return self

    @model_validator(mode="after")
    def _given_options_fit_together(self) -> DecodeRecipe:
        """Check the given options. The others may be those of a model; `over` checks them together."""
        return self._require_fit(self.model_fields_set)

    def require_fit(self) -> DecodeRecipe:
        """Return the recipe; raise ValueError if options, including defaults, do not fit together."""
        return self._require_fit(type(self).model_fields.keys())

    def _require_fit(self, known: Set[str]) -> DecodeRecipe:
        """Return the recipe; raise ValueError if options do not fit together. known: options whose values are final"""
        if self.sampling and (name := self._changed("stop", "patience", "beam_groups", "require", "bias", "trees")):
            raise ValueError(f"decode.{name} has no effect with decode.sampling; remove one of them")
        if self.n_best > self.beam_size and not self.sampling and "beam_size" in known:
            raise ValueError(
                f"decode.n_best is {self.n_best}; it must be at most decode.beam_size ({self.beam_size}); "
                "increase beam_size"
            )
        if self.beam_size % self.beam_groups and not self.sampling and "beam_size" in known:
            raise ValueError(
                f"decode.beam_size is {self.beam_size}; it must be a multiple of decode.beam_groups "
                f"({self.beam_groups}); try {math.ceil(self.beam_size / self.beam_groups) * self.beam_groups}"
            )
        sampled = self._changed("temperature", "top_k", "top_p", "min_p")
        if sampled and not self.sampling and "sampling" in known:
            raise ValueError(
                f"decode.{sampled} has no effect on beam search; set decode.sampling to true, or remove {sampled}"
            )
        if self.patience != 1.0 and self.stop != "patience" and "stop" in known:
            raise ValueError(
                f"decode.patience has no effect with decode.stop {self.stop!r}; set decode.stop to 'patience', or "
                "remove decode.patience"
            )
        if self.stop == "patience" and self.beam_size * self.patience < self.n_best and "beam_size" in known:
            raise ValueError(
                f"decode.n_best is {self.n_best}; it must be at most decode.beam_size * decode.patience "
                f"({self.beam_size * self.patience:g}); increase patience or beam_size"
            )
        return self

    def _changed(self, *names: str) -> str | None:
        """Return the first of these options that differs from its default, or None."""
        changed = self.changed_options()
        return next((name for name in names if name in changed), None)


FinalDecodeRecipe = Annotated[DecodeRecipe, AfterValidator(DecodeRecipe.require_fit)]
"""Options that do not override those of a model; all of them must fit together."""


def _has_length_penalty(decode: DecodeRecipe) -> bool:
    """Return whether scores depend on the length penalty. MBR ranks samples by the metric alone."""
    return not decode.sampling or decode.mbr_metric == "none"


# Options that need another one: whether it is set, and its description.
_NEEDS: dict[str, tuple[Callable[[DecodeRecipe], bool], str]] = {
    "length_alpha": (
        lambda decode: decode.length_penalty != "none" and _has_length_penalty(decode),
        "a length_penalty other than 'none', and a search (sampling=false) or scores of samples (mbr_metric=none)",
    ),
    "length_penalty": (
        _has_length_penalty,
        "a search (sampling=false) or scores of samples (mbr_metric=none)",
    ),
    "stop": (lambda decode: decode.beam_size > 1, "a beam (beam_size above 1)"),
    "patience": (lambda decode: decode.beam_size > 1, "a beam (beam_size above 1)"),
    "diversity_penalty": (lambda decode: decode.beam_groups > 1, "beam_groups above 1"),
    "mbr_metric": (lambda decode: decode.n_best > 1 or decode.mbr_metric == "none", "n_best above 1"),
    "sampling_seed": (lambda decode: decode.sampling, "sampling=true"),
    "beam_size": (lambda decode: not decode.sampling, "a search (sampling=false)"),
    "fusion_weight": (lambda decode: decode.fusion is not None, "fusion"),
}


def ineffective_option(
    names: Iterable[str], decode: DecodeRecipe, *, has_ensemble: bool, needs_alignments: bool
) -> tuple[str, str] | None:
    """Return the first option that does not change translations, and `NAME has no effect without ...`.

    names: the options that are given; decode: all options; has_ensemble, needs_alignments: whether several models
    translate, and whether alignments are computed
    """
    for name in names:
        is_set, needed = _NEEDS.get(name, (None, ""))
        if is_set is not None and not is_set(decode):
            return name, f"{name} has no effect without {needed}"
        if name.startswith("alignment_") and not needs_alignments:
            return name, f"{name} has no effect without alignments"
        if name == "ensemble_mean" and not has_ensemble:
            return name, f"{name} has no effect without an ensemble"
    return None


def require_length_penalty_effect(decode: DecodeRecipe, own: DecodeRecipe) -> None:
    """Raise CommandError if a length penalty has no effect: greedy search or one sample, without scores in the output.

    own: the options of the model; its own length penalty never raises an error
    """
    if decode.length_penalty != "none" and decode.n_best == 1 and (decode.sampling or decode.beam_size == 1):
        single = "one sample" if decode.sampling else "greedy search (beam_size=1)"
        for name in ("length_alpha", "length_penalty"):
            if getattr(decode, name) != getattr(own, name):
                raise CommandError(f"{name} only changes the scores of {single}; add --with-scores, or remove {name}")
