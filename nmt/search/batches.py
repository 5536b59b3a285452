"""Batches of sentences of similar length, longest first, and their size.

The first batch needs the most memory. If it does not fit, `Batching` halves the batch size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from nmt.data.epoch_plan import plan_by_length
from nmt.devices.memory import free_unused_memory, is_out_of_memory
from nmt.errors import UserError
from nmt.logs import say
from nmt.recipe import DecodeRecipe, ModelRecipe

# Minimum cost of a sentence in tokens: each sentence also needs `beam_size` rows of logits at every step.
_MIN_COST = 16

# Automatic batch size in source tokens: `_CPU_TOKENS` on a CPU with a beam of 3 to 64; on a GPU, between the two.
_CPU_TOKENS, _MAX_TOKENS = 2_048, 32_768
# On a CPU, maximum hypotheses per sentence of a full batch: larger beams get smaller batches.
_CPU_MAX_HYPOTHESES = 64
# Fraction of the GPU memory for a batch; the rest is for weights, temporary tensors, CUDA graphs and other programs.
_MEMORY_FRACTION = 0.25
# KV cache slots of a hypothesis per source token: outputs may exceed sources, and pruned hypotheses keep their slots.
_SLOTS_PER_TOKEN = 2
# Number of logit-sized tensors alive at a time, and bytes per element (16-bit types need half).
_LOGITS_ALIVE, _BYTES = 4, 4

Result = TypeVar("Result")


class PlannedBatch(NamedTuple):
    """Sentences to search together, at most `batch_size` at a time. tokens: cost of `batch_size` sentences."""

    sentences: list[int]
    batch_size: int
    tokens: int


Plan = Callable[[Sequence[int], int], Iterator[PlannedBatch]]  # `static_batches` or `continuous_batches`
# Called with sentences, batch size, and a dictionary that receives the result of each sentence.
Search = Callable[[list[int], int, dict[int, Result]], None]


def choose_batch_tokens(decode: DecodeRecipe, device: torch.device, models: Sequence[tuple[ModelRecipe, int]]) -> int:
    """Return the source tokens of a batch: the number in the recipe, or for `auto` one that suits the device.

    models: architecture and target vocabulary size of each model in the search
    """
    if decode.batch_tokens != "auto":
        return decode.batch_tokens
    hypotheses = max(decode.beam_size, decode.n_best)
    if device.type != "cuda" or not models:
        if hypotheses > _CPU_MAX_HYPOTHESES:  # about as many hypotheses as with a beam of 64
            return max(1, _CPU_TOKENS * _CPU_MAX_HYPOTHESES // hypotheses)
        return _CPU_TOKENS * max(1, 4 // hypotheses)  # small beams have few rows per sentence
    bytes_per_token = sum(_bytes_per_token(recipe, vocab, hypotheses) for recipe, vocab in models)
    budget = _MEMORY_FRACTION * torch.cuda.get_device_properties(device).total_memory
    max_tokens = _round_down(int(budget / bytes_per_token))
    return min(max(max_tokens, _CPU_TOKENS), _MAX_TOKENS)


def _bytes_per_token(recipe: ModelRecipe, vocab: int, hypotheses: int) -> float:
    """Return the memory of a search per source token: KV cache, cross-attention cache and part of the logits."""
    slots = 1 + _SLOTS_PER_TOKEN * hypotheses
    keys_values = 2 * recipe.num_decoder_layers * recipe.num_heads * recipe.head_width * slots
    return _BYTES * (keys_values + _LOGITS_ALIVE * hypotheses * vocab / _MIN_COST)


def static_batches(lengths: Sequence[int], budget: int) -> Iterator[PlannedBatch]:
    """Plan batches whose sentences all start at once.

    lengths: (num_sentences,) source tokens, EOS included; budget: maximum tokens of a batch
    """
    without_eos = np.array(lengths, dtype=np.int64) - 1  # `plan_by_length` adds EOS
    costs = np.maximum(without_eos, _MIN_COST - 1)
    for ids in reversed(plan_by_length(without_eos, costs, micro_batch_tokens=budget)):
        yield PlannedBatch(ids.tolist(), len(ids), int(costs[ids].sum()) + len(ids))


def continuous_batches(lengths: Sequence[int], budget: int) -> Iterator[PlannedBatch]:
    """Plan continuous batching: one batch per buffer size, refilled as sentences finish; see `static_batches`.

    Costs use lengths and batch sizes rounded up to powers of two, as in `nmt.inference.buffers.Shape`.
    """
    costs = [max(_MIN_COST, _round_up(length)) for length in lengths]
    for cost in sorted(set(costs), reverse=True):
        ids = [sentence for sentence, sentence_cost in enumerate(costs) if sentence_cost == cost]
        batch_size = min(_round_down(budget // cost), len(ids))
        yield PlannedBatch(ids, batch_size, _round_up(batch_size) * cost)


def _round_up(number: int) -> int:
    """Round up to a power of two."""
    return 1 << (number - 1).bit_length()


def _round_down(number: int) -> int:
    """Round down to a power of two, at least 1."""
    return 1 << (max(1, number).bit_length() - 1)


class Batching:
    """Run searches in batches; halve the batch size permanently after running out of memory.

    tokens: maximum source tokens of a batch
    """

    def __init__(self, tokens: int, device: torch.device) -> None:
        self.tokens = tokens
        self._device, self._has_warned = device, False

    def run(self, plan: Plan, lengths: Sequence[int], search: Search[Result]) -> list[Result]:
        """Return the results of all sentences, in order.

        After a search runs out of memory, its finished results are kept and the other sentences are planned again.
        Raises UserError if the memory is too small for a single sentence.

        lengths: (num_sentences,) source tokens, EOS included
        """
        results: dict[int, Result] = {}
        requested = self.tokens
        while waiting := [sentence for sentence in range(len(lengths)) if sentence not in results]:
            for batch in plan([lengths[sentence] for sentence in waiting], self.tokens):
                if not self._completes(search, [waiting[i] for i in batch.sentences], batch.batch_size, results):
                    # Outside of `except`: the traceback that references the tensors of the search is gone.
                    free_unused_memory(self._device)
                    self.tokens = batch.tokens // 2
                    break
        if self.tokens < requested and not self._has_warned:
            self._has_warned = True
            say(
                f"not enough memory for batches of {requested:,} source tokens (decode.batch_tokens); "
                f"reduced to {self.tokens:,}"
            )
        return [results[sentence] for sentence in range(len(lengths))]

    def _completes(
        self, search: Search[Result], sentences: list[int], batch_size: int, results: dict[int, Result]
    ) -> bool:
        """Run a search; return False if it runs out of memory, or raise UserError if `batch_size` is already 1."""
        try:
            search(sentences, batch_size, results)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if batch_size == 1:
                raise UserError(
                    f"{self._device} is out of memory for a single sentence; "
                    "stop other programs that use it, or lower decode.beam_size (for sampling, decode.n_best)"
                ) from error
            return False
        return True
