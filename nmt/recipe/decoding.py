"""The section of the recipe that says how translations are searched."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveInt, model_validator

from nmt.recipe.corpora import NonNegativeFloat, PositiveFloat, Probability, Section

Strength = Annotated[float, Field(ge=0.0, le=1_000.0)]


class DecodeRecipe(Section):
    """How translations are searched (paper, section 6.1)."""

    beam_size: PositiveInt = 4
    """Hypotheses kept at each step; 1 is greedy search."""
    length_penalty: Literal["gnmt", "power", "none"] = "gnmt"
    """Divisor of the log-probability: ((5+n)/6)^alpha (the paper), n^alpha (fairseq, CTranslate2), or 1."""
    length_alpha: Annotated[float, Field(ge=0.0, le=10.0)] = 0.6
    """Exponent of the length penalty."""
    stop: Literal["exact", "first", "patience"] = "first"
    """When the search for a sentence ends: `first`, when as many hypotheses as the beam is wide have ended, as in
    fairseq and CTranslate2; `patience`, when `patience` times as many have (Kasai et al. 2022); `exact`, when no live
    hypothesis can overtake the best that has ended."""
    patience: PositiveFloat = 1.0
    """With `stop` = "patience": how many times the beam size hypotheses must end; 1 is the same as `first`."""
    beam_groups: PositiveInt = 1
    """Diverse beam search (Vijayakumar et al. 2018): number of groups that the beam is split into; must divide
    `beam_size`. An n-best list starts with the best translation of each group."""
    diversity_penalty: Strength = 0.5
    """Diverse beam search: penalty on a token for each hypothesis of an earlier group that extends with it."""
    max_extra_tokens: NonNegativeInt = 50
    """Longest output: this many tokens more than the input."""
    max_length_ratio: PositiveFloat | None = None
    """Longest output besides: this many times as many tokens as the input, rounded up."""
    max_tokens: PositiveInt | None = None
    """Longest output in tokens, whatever the input."""
    min_tokens: NonNegativeInt = 0
    """Shortest output in tokens, as far as the longest allows it."""
    min_length_ratio: NonNegativeFloat = 0.0
    """Shortest output: this many times as many tokens as the input, rounded down."""
    no_repeat_ngram: NonNegativeInt = 0
    """No output holds a sequence of so many tokens twice; 0 allows it."""
    forbid: tuple[str, ...] = ()
    """Words and phrases that no output holds, in the segmentation that they have by themselves."""
    require: tuple[str, ...] = ()
    """Words and phrases that every output holds, in the segmentation that they have by themselves. A beam with more
    places than they have tokens decides best where they are to stand."""
    bias: dict[str, Annotated[float, Field(ge=-1_000.0, le=1_000.0)]] = Field(default_factory=dict)
    """Words and phrases to prefer (above 0) or avoid (below 0): an output that holds them is ranked as if its
    log-probability were so much higher, once for what is preferred, each time for what is avoided."""
    n_best: PositiveInt = 1
    """Translations per sentence, best first; at most `beam_size` when they are searched for."""
    tag: str | None = None
    """Put before each source sentence: the `tag` of a training corpus, such as `<web>`, to translate in its manner."""
    ensemble_mean: Literal["linear", "log"] = "linear"
    """How several models decide together: by the mean of their probabilities, or by the geometric mean."""
    mbr_metric: Literal["none", "chrf", "bleu"] = "none"
    """Minimum Bayes risk decoding (MBR): output the candidate of the `n_best` with the highest expected value of this
    sentence-level metric against all candidates."""
    sampling: bool = False
    """Draw `n_best` translations at random instead of searching for the best."""
    sampling_seed: int = 1
    """Seed of the draws; what a line gets depends on it and on the line alone."""
    temperature: PositiveFloat = 1.0
    """Sampling: log-probabilities are divided by it; below 1 the likely becomes likelier."""
    top_k: NonNegativeInt = 0
    """Sampling: only so many of the most probable tokens; 0 allows all."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Sampling: only the fewest tokens that together have this probability."""
    min_p: Probability = 0.0
    """Sampling: only tokens with at least this share of the most probable one's probability."""
    alignments: bool = False
    """Say with each translation which words of the line its words stand for."""
    alignment_layer: NonNegativeInt | None = None
    """The decoder layer, from 0, whose attention to the source tells that; by default the last but one. `nmt align
    --choose` finds the best on development text."""
    alignment_heads: tuple[NonNegativeInt, ...] = ()
    """The heads of that layer, from 0, whose mean is taken; all of them by default."""
    alignment_at: Literal["output", "input"] = "output"
    """Decoder position whose attention aligns a target token: `output`, which predicts it, or `input`, one position
    later, which reads it. In deep decoders the lower layers align better at `input` (Chen et al. 2020); in shallow
    decoders only `output` works."""
    shortlist: Annotated[Path | None, BeforeValidator(lambda path: None if path == "" else path)] = None
    """A file that `nmt shortlist` made: a sentence is translated with the target pieces that it lists for those of the
    sentence, the most frequent ones, and those of its prefix and its required and preferred phrases; others count as
    impossible. Faster, and now and then another translation; an empty path switches it off. Scoring never uses it."""
    batch_tokens: PositiveInt | Literal["auto"] = "auto"
    """Most source tokens decoded at a time (times the beam in memory). `auto`: 2,048 on a CPU; on a GPU as many as a
    quarter of its memory holds for this model and beam, from 2,048 to 32,768."""

    def over(self, own: DecodeRecipe) -> DecodeRecipe:
        """These options where they were given, and those of `own` elsewhere; ValueError where they do not fit.

        A narrower beam than that of `own` also limits `n_best`, unless that is given.
        """
        given = {name: getattr(self, name) for name in self.model_fields_set}
        merged = own.model_dump() | given
        if "n_best" not in given and not merged["sampling"]:
            merged["n_best"] = min(merged["n_best"], merged["beam_size"])
        return DecodeRecipe.model_validate(merged)

    def all_given(self) -> DecodeRecipe:
        """The same options, of which all count as given, defaults too."""
        return self.model_copy(update=dict(self))

    @model_validator(mode="after")
    def _n_best_fits_beam(self) -> DecodeRecipe:
        if self.n_best > self.beam_size and not self.sampling:
            raise ValueError(
                f"decode.n_best is {self.n_best}; it must be at most decode.beam_size ({self.beam_size}); "
                "widen the beam"
            )
        return self

    @model_validator(mode="after")
    def _phrases_have_text(self) -> DecodeRecipe:
        for name, phrases in (("forbid", self.forbid), ("require", self.require), ("bias", self.bias)):
            if not all(phrase.strip() for phrase in phrases):
                raise ValueError(f"decode.{name} has an empty phrase; each must have text; remove it")
        return self

    @model_validator(mode="after")
    def _search_options_fit_together(self) -> DecodeRecipe:
        if self.beam_size % self.beam_groups and not self.sampling:
            raise ValueError(
                f"decode.beam_size is {self.beam_size}; it must be a multiple of decode.beam_groups "
                f"({self.beam_groups}); try {math.ceil(self.beam_size / self.beam_groups) * self.beam_groups}"
            )
        drawn = {
            "temperature": self.temperature != 1.0,
            "top_k": self.top_k > 0,
            "top_p": self.top_p < 1.0,
            "min_p": self.min_p > 0,
        }
        if not self.sampling and any(drawn.values()):
            name = next(name for name, given in drawn.items() if given)
            raise ValueError(
                f"decode.{name} has no effect on a search; it needs decode.sampling; set that to true, or remove {name}"
            )
        if self.patience != 1.0 and self.stop != "patience":
            raise ValueError(
                f"decode.patience has no effect with decode.stop {self.stop!r}; set stop to 'patience', or remove it"
            )
        searched = {
            "stop": self.stop != "first",
            "beam_groups": self.beam_groups > 1,
            "require": bool(self.require),
            "bias": bool(self.bias),
        }
        if self.sampling and any(searched.values()):
            name = next(name for name, wanted in searched.items() if wanted)
            raise ValueError(
                f"decode.{name} steers a search, but decode.sampling draws at random; take back one of the two"
            )
        return self
