"""What a search is asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

from nmt.recipe import DecodeRecipe, UserError

LengthPenalty = Literal["gnmt", "power", "none"]


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
    """Exponent of the length penalty, not negative."""
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

    def __post_init__(self) -> None:
        if not 1 <= self.n_best <= self.beam_size:
            raise UserError(
                f"n-best is {self.n_best}; it must be from 1 to the beam size ({self.beam_size}); change one of them"
            )
        if self.length_alpha < 0.0:
            raise UserError(
                f"the length penalty's alpha is {self.length_alpha}; it must not be negative; 0 switches it off"
            )

    @classmethod
    def from_recipe(
        cls, recipe: DecodeRecipe, max_tokens: int | None = None, forbidden: Sequence[Sequence[int]] = ()
    ) -> SearchOptions:
        """The options of a recipe, for a model with positions for `max_tokens` output tokens.

        forbidden: the tokens of what the recipe forbids
        """
        return cls(
            beam_size=recipe.n_best if recipe.sampling else recipe.beam_size,
            n_best=recipe.n_best,
            length_penalty=recipe.length_penalty,
            length_alpha=recipe.length_alpha,
            max_extra_tokens=recipe.max_extra_tokens,
            max_tokens=min((n for n in (max_tokens, recipe.max_tokens) if n is not None), default=None),
            max_length_ratio=math.inf if recipe.max_length_ratio is None else recipe.max_length_ratio,
            min_tokens=recipe.min_tokens,
            min_length_ratio=recipe.min_length_ratio,
            no_repeat_ngram=recipe.no_repeat_ngram,
            forbidden=tuple(tuple(sequence) for sequence in forbidden if sequence),
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
