"""What a search is asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

from nmt.recipe import DecodeRecipe, UserError

LengthPenalty = Literal["gnmt", "power", "none"]
StopRule = Literal["exact", "first", "patience"]

# With a larger exponent the penalty of a long output would leave the range of float32.
MOST_LENGTH_ALPHA = 10.0


@dataclass(frozen=True)
class SearchOptions:
    """How to search; the defaults are the paper's (section 6.1)."""

    beam_size: int = 4
    """Hypotheses that live at each step."""
    n_best: int = 1
    """Translations per sentence, at most `beam_size`."""
    length_penalty: LengthPenalty = "gnmt"
    """Divisor of the log-probability, see `length_penalty`."""
    length_alpha: float = 0.6
    """Exponent of the length penalty, from 0 to `MOST_LENGTH_ALPHA`."""
    max_extra_tokens: int = 50
    """Longest output: this many tokens more than the input."""
    max_tokens: int | None = None
    """Longest output whatever the input: what the model has positions for."""
    max_length_ratio: float = math.inf
    """Longest output: this many times as many tokens as the input, rounded up."""
    min_tokens: int = 0
    """Shortest output."""
    min_length_ratio: float = 0.0
    """Shortest output: this many times as many tokens as the input, rounded down."""
    no_repeat_ngram: int = 0
    """No output holds a sequence of so many tokens twice; 0 allows it."""
    forbidden: tuple[tuple[int, ...], ...] = ()
    """Sequences of tokens that no output holds."""
    bias: tuple[tuple[tuple[int, ...], float], ...] = ()
    """Sequences of tokens with what they add to the log-probability in ranking, see `nmt.search.bias`."""
    num_groups: int = 1
    """Groups of the beam that choose unlike each other; must divide `beam_size`."""
    diversity_strength: float = 0.5
    """What a token costs in the choice for each hypothesis of an earlier group that takes it at the same step."""
    stop: StopRule = "exact"
    """When a sentence is done, see `nmt.search.beam_search`."""
    patience: float = 1.0
    """With `stop` "patience": how many times the beam size hypotheses must have ended."""

    def __post_init__(self) -> None:
        if not 1 <= self.n_best <= self.beam_size:
            raise UserError(
                f"n-best is {self.n_best}; it must be from 1 to the beam size ({self.beam_size}); change one of them"
            )
        if not 0.0 <= self.length_alpha <= MOST_LENGTH_ALPHA:
            raise UserError(
                f"the length penalty's alpha is {self.length_alpha}; it must be from 0 to {MOST_LENGTH_ALPHA:g}; "
                "0 switches it off"
            )
        if self.num_groups < 1 or self.beam_size % self.num_groups:
            raise UserError(
                f"the beam of {self.beam_size} cannot be shared by {self.num_groups} groups; all must be of one size; "
                "change one of them"
            )
        if not self.diversity_strength >= 0.0:
            raise UserError(
                f"the strength of diversity is {self.diversity_strength}; it must be at least 0; 0 switches it off"
            )

    @property
    def ends_wanted(self) -> int | None:
        """How many hypotheses of a group must have ended for it to be done; None where their number does not matter."""
        if self.stop == "exact":
            return None
        return max(1, round(self.beam_size // self.num_groups * (self.patience if self.stop == "patience" else 1.0)))

    @classmethod
    def from_recipe(
        cls,
        recipe: DecodeRecipe,
        max_tokens: int | None = None,
        forbidden: Sequence[Sequence[int]] = (),
        bias: Sequence[tuple[Sequence[int], float]] = (),
    ) -> SearchOptions:
        """The options of a recipe, for a model with positions for `max_tokens` output tokens.

        forbidden and bias: the tokens of the phrases to which the recipe says this
        """
        return cls(
            beam_size=recipe.n_best if recipe.sampling else recipe.beam_size,
            n_best=recipe.n_best,
            length_penalty=recipe.length_penalty,
            length_alpha=recipe.length_alpha,
            stop=recipe.stop,
            patience=recipe.patience,
            max_extra_tokens=recipe.max_extra_tokens,
            max_tokens=min((n for n in (max_tokens, recipe.max_tokens) if n is not None), default=None),
            max_length_ratio=math.inf if recipe.max_length_ratio is None else recipe.max_length_ratio,
            min_tokens=recipe.min_tokens,
            min_length_ratio=recipe.min_length_ratio,
            no_repeat_ngram=recipe.no_repeat_ngram,
            forbidden=tuple(tuple(sequence) for sequence in forbidden if sequence),
            bias=tuple((tuple(sequence), value) for sequence, value in bias if sequence),
            num_groups=recipe.num_groups,
            diversity_strength=recipe.diversity_strength,
        )


def length_penalty(length: int, name: LengthPenalty, alpha: float) -> float:
    """What the log-probability of an output of `length` tokens, the end token counted, is divided by.

    gnmt   ((5 + length) / 6)^alpha (Wu et al. 2016, equation 14; the paper's)
    power  length^alpha (fairseq, CTranslate2); one alpha does not mean the same in both
    none   1
    """
    match name:
        case "gnmt":
            return float(((5 + length) / 6) ** alpha)
        case "power":
            return float(length**alpha)
        case "none":
            return 1.0
        case _:
            assert_never(name)
