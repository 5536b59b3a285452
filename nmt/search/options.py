"""Search options."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from nmt.errors import UserError
from nmt.recipe import DecodeRecipe
from nmt.recipe.decoding import LengthPenalty, StopRule
from nmt.text.context import after_last


@dataclass(frozen=True)
class SearchOptions:
    """Options of a search. The defaults are for direct calls; recipes use those of `DecodeRecipe`."""

    beam_size: int = 4
    """Live hypotheses at each step."""
    n_best: int = 1
    """Translations per sentence, at most `beam_size`."""
    length_penalty: LengthPenalty = "gnmt"
    """Divisor of the log-probability; see `length_penalty`."""
    length_alpha: float = 0.6
    """Exponent of the length penalty, from 0 to 10; for long outputs, higher exponents overflow float32."""
    max_extra_tokens: int = 50
    """Maximum output length: this many tokens more than the input."""
    max_tokens: int | None = None
    """Maximum output length for any input, such as what the positions of the model allow."""
    max_own_tokens: int | None = None
    """Maximum output length for any input, previous translations excluded."""
    separator: int | None = None
    """Token after each previous translation at the beginning of outputs; previous translations are unconstrained."""
    max_length_ratio: float = math.inf
    """Maximum output length: this multiple of the input length, rounded up."""
    min_tokens: int = 0
    """Minimum output length."""
    min_length_ratio: float = 0.0
    """Minimum output length: this multiple of the input length, rounded down."""
    no_repeat_ngram: int = 0
    """No output contains an n-gram of this size twice; 0 disables the constraint."""
    forbidden: tuple[tuple[int, ...], ...] = ()
    """Token sequences that no output contains."""
    bias: tuple[tuple[tuple[int, ...], float], ...] = ()
    """Token sequences and their bias, which is added to the log-probability in ranking; see `nmt.search.bias`."""
    beam_groups: int = 1
    """Beam groups of diverse beam search; must divide `beam_size`."""
    diversity_penalty: float = 0.5
    """Penalty of a token for each hypothesis of an earlier group that chooses it at the same step."""
    stop: StopRule = "exact"
    """When a sentence is done; see `nmt.search.beam_search`."""
    patience: float = 1.0
    """With `stop` "patience": stop after `patience * beam_size` finished hypotheses."""

    def __post_init__(self) -> None:
        if not 1 <= self.n_best <= self.beam_size:
            raise UserError(
                f"n_best must be between 1 and beam_size ({self.beam_size}), got {self.n_best}; change one of them"
            )
        if self.beam_groups < 1 or self.beam_size % self.beam_groups:
            raise UserError(
                f"beam_groups must divide beam_size ({self.beam_size}), got {self.beam_groups}; change one of them"
            )

    def forbidden_after(self, tokens: Sequence[int]) -> list[int]:
        """Return the tokens that would complete a forbidden phrase or a repeated n-gram after `tokens`."""
        output = tuple(tokens[after_last(tokens, self.separator) :])
        n = self.no_repeat_ngram
        ngrams = [output[end - n : end] for end in range(n, len(output) + 1)] if n else []
        return [
            phrase[-1]
            for phrase in (*self.forbidden, *ngrams)
            if output[max(len(output) - len(phrase) + 1, 0) :] == phrase[:-1]
        ]

    @property
    def max_finished(self) -> int | None:
        """Number of finished hypotheses after which a group is done; None if `stop` is "exact"."""
        match self.stop:
            case "exact":
                return None
            case "first":
                patience = 1.0
            case "patience":
                patience = self.patience
            case _:
                assert_never(self.stop)
        return max(1, math.floor(self.beam_size // self.beam_groups * patience + 0.5))  # rounds as CTranslate2 does

    @classmethod
    def from_recipe(
        cls,
        recipe: DecodeRecipe,
        max_tokens: int | None = None,
        forbidden: Sequence[Sequence[int]] = (),
        bias: Sequence[tuple[Sequence[int], float]] = (),
        separator: int | None = None,
    ) -> SearchOptions:
        """Create from the options of a recipe, for a model with positions for `max_tokens` output tokens.

        forbidden, bias: token ids of the recipe's `forbid` and `bias` phrases
        """
        return cls(
            beam_size=recipe.n_best if recipe.sampling else recipe.beam_size,
            n_best=recipe.n_best,
            length_penalty=recipe.length_penalty,
            length_alpha=recipe.length_alpha,
            stop=recipe.stop,
            patience=recipe.patience,
            max_extra_tokens=recipe.max_extra_tokens,
            max_tokens=max_tokens,
            max_own_tokens=recipe.max_tokens,
            separator=separator,
            max_length_ratio=math.inf if recipe.max_length_ratio is None else recipe.max_length_ratio,
            min_tokens=recipe.min_tokens,
            min_length_ratio=recipe.min_length_ratio,
            no_repeat_ngram=recipe.no_repeat_ngram,
            forbidden=tuple(tuple(sequence) for sequence in forbidden if sequence),
            bias=tuple((tuple(sequence), value) for sequence, value in bias if sequence),
            beam_groups=recipe.beam_groups,
            diversity_penalty=recipe.diversity_penalty,
        )


def length_penalty(length: int, name: LengthPenalty, alpha: float) -> float:
    """Return the divisor of the log-probability of an output of `length` tokens, EOS included.

    gnmt   ((5 + length) / 6)^alpha (Wu et al. 2016, equation 14), as in Vaswani et al. 2017
    power  length^alpha (fairseq, CTranslate2); its alpha is not comparable with that of `gnmt`
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
