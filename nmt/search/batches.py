"""Which sentences are searched together: such as are about equally long, the longest first.

If memory is too small, it shows at once. Then batches get smaller: see `Batching`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from nmt.data.epoch_plan import plan_by_length
from nmt.logs import say
from nmt.recipe import DecodeRecipe, ModelRecipe, UserError

# A sentence counts as at least this long, since each also costs `beam_size` rows of logits at every step.
_MIN_COST = 16

# Source tokens of a batch that are chosen automatically: on a CPU, and the most on a GPU.
_CPU_TOKENS, _MOST_TOKENS = 2_048, 32_768
# Share of a GPU's memory that a batch may take; the rest is for weights, scratch memory, graphs and other programs.
_SHARE_OF_MEMORY = 0.25
# For each source token search may hold this many positions of every hypothesis: outputs are longer than their sources,
# and those of dead hypotheses stay.
_POSITIONS_PER_TOKEN = 2
# Tensors of the size of the logits that are alive at a time, and bytes of a number, of which 16-bit types need half.
_LOGITS_ALIVE, _BYTES = 4, 4

Plan = Callable[[Sequence[int], int], "Iterator[Group]"]  # `batches` or `crowds`
Result = TypeVar("Result")


class Group(NamedTuple):
    """Which sentences are searched together, how many of them at a time, and how many tokens these count as."""

    sentences: list[int]
    rows: int
    tokens: int


def choose_batch_tokens(decode: DecodeRecipe, device: torch.device, models: Sequence[tuple[ModelRecipe, int]]) -> int:
    """Source tokens of a batch: those of the recipe, or what suits the device.

    models: architecture and target vocabulary size of each model that searches
    """
    if decode.batch_tokens != "auto":
        return decode.batch_tokens
    if device.type != "cuda" or not models:
        return _CPU_TOKENS
    hypotheses = max(decode.beam_size, decode.n_best)
    bytes_per_token = sum(_bytes_per_token(recipe, vocab, hypotheses) for recipe, vocab in models)
    budget = _SHARE_OF_MEMORY * torch.cuda.get_device_properties(device).total_memory
    fitting = 1 << (max(1, int(budget / bytes_per_token)).bit_length() - 1)
    return min(max(fitting, _CPU_TOKENS), _MOST_TOKENS)


def _bytes_per_token(recipe: ModelRecipe, vocab: int, hypotheses: int) -> float:
    """What search holds for each source token: keys and values of memory and past, and a share of the logits."""
    positions = 1 + _POSITIONS_PER_TOKEN * hypotheses
    keys_values = 2 * recipe.num_decoder_layers * recipe.num_heads * recipe.head_width * positions
    return _BYTES * (keys_values + _LOGITS_ALIVE * hypotheses * vocab / _MIN_COST)


def batches(lengths: Sequence[int], budget: int) -> Iterator[Group]:
    """All of a batch at a time, for a model that begins all of them at once.

    lengths: (num_sentences,) tokens of each source with its end token; budget: of a batch, in tokens
    """
    words = np.array(lengths, dtype=np.int64) - 1  # the plan counts the end token itself
    costs = np.maximum(words, _MIN_COST - 1)
    for ids in reversed(plan_by_length(words, costs, micro_batch_tokens=budget)):
        yield Group(ids.tolist(), len(ids), int(costs[ids].sum()) + len(ids))


def crowds(lengths: Sequence[int], budget: int) -> Iterator[Group]:
    """All that fit into memory of one size, for a model that takes in the next when others are done.

    Lengths are rounded up to powers of two, and so many go at a time, as `nmt.inference.buffers.Shape` has them.
    """
    costs = [max(_MIN_COST, _power_of_two(length)) for length in lengths]
    for cost in sorted(set(costs), reverse=True):
        ids = [sentence for sentence, own in enumerate(costs) if own == cost]
        rows = min(1 << (max(1, budget // cost).bit_length() - 1), len(ids))
        yield Group(ids, rows, _power_of_two(rows) * cost)


def _power_of_two(number: int) -> int:
    """The number rounded up to one."""
    return 1 << (number - 1).bit_length()


class Batching:
    """Work on sentences in batches, which get smaller for good where memory is too small.

    tokens: most source tokens of a batch
    """

    def __init__(self, tokens: int, device: torch.device) -> None:
        self.tokens = tokens
        self._device, self._has_said = device, False

    def run(
        self, plan: Plan, lengths: Sequence[int], search: Callable[[list[int], int, dict[int, Result]], None]
    ) -> list[Result]:
        """The results of all sentences, in their order.

        lengths: (num_sentences,) tokens of each source with its end token; search: takes some sentences, how many of
        them at a time, and where to put the result of each. Those that it has put there before memory ran out are kept,
        the others are planned again in batches of half the size. Raises UserError where memory is too small for one.
        """
        found: dict[int, Result] = {}
        asked = self.tokens
        while waiting := [sentence for sentence in range(len(lengths)) if sentence not in found]:
            for group in plan([lengths[sentence] for sentence in waiting], self.tokens):
                sentences = [waiting[place] for place in group.sentences]
                if not self._fits(partial(search, sentences, group.rows, found), group.rows):
                    self.tokens = group.tokens // 2
                    break
        if self.tokens < asked and not self._has_said:
            self._has_said = True
            say(
                f"memory is too small for batches of {asked:,} source tokens (decode.batch_tokens); "
                f"from now on they have at most {self.tokens:,}"
            )
        return [found[sentence] for sentence in range(len(lengths))]

    def _fits(self, search: Callable[[], None], rows: int) -> bool:
        """Search; whether memory was large enough for it."""
        try:
            search()
            return True
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if rows == 1:
                raise UserError(
                    f"the memory of {self._device} is too small for one sentence; it must be free for this; "
                    "end what else uses it, or lower decode.beam_size"
                ) from error
        # Here the error is gone, and with it the frames that held the tensors of the search.
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        return False


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is too small; on a CPU, torch raises a RuntimeError like any other."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "DefaultCPUAllocator: " in str(error)
