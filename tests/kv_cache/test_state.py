"""KV caches and their slots, compared with a list of keys and values for each hypothesis."""

import pytest
import torch
from torch import Tensor

from nmt.kv_cache.cache import KeyValueCache, Slots
from nmt.kv_cache.state import DecoderState, LayerState
from nmt.packing.padding import padded_width

LAYERS, HEADS, D_HEAD = 2, 2, 3


class CheckedState:
    """A `DecoderState`, and the keys and values that each hypothesis must see, (layers, 2, heads, d_head) per step."""

    def __init__(self, batch: int, *, beam: int = 4, dtype: torch.dtype = torch.float32, compacts: bool = True) -> None:
        self.random = torch.Generator().manual_seed(7)
        self.beam, slots = beam, Slots()
        memories = [self.draw(2, batch, HEADS, 5, D_HEAD).to(dtype) for _ in range(LAYERS)]
        layers = [LayerState(KeyValueCache(memory, slots), memory) for memory in memories]
        memory_mask = self.draw(batch, 1, 1, 5).to(dtype)
        self.state = DecoderState(layers, memory_mask, memory_mask.new_empty(batch, 1, beam, 0), slots, compacts)
        self.expected: list[list[list[Tensor]]] = [[[] for _ in range(beam)] for _ in range(batch)]

    def draw(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.random)

    def step(self) -> None:
        """Take a step, with one hypothesis at first, and compare what each hypothesis sees."""
        hypotheses = self.beam if self.state.length else 1
        mask = self.state.extend(hypotheses)
        new = self.draw(LAYERS, len(self.expected), hypotheses, 2, HEADS, D_HEAD)
        stored = [layer.cache.append(part) for layer, part in zip(self.state.layers, new, strict=True)]
        for sentence, histories in enumerate(self.expected):
            entries = [new[:, sentence, hypothesis] for hypothesis in range(hypotheses)]
            for index, history in enumerate(histories):
                histories[index] = [*history, entries[min(index, hypotheses - 1)]]
            for index in range(hypotheses):
                row = mask[sentence, 0, index]
                found = torch.stack([part[:, sentence, :, row == 0] for part in stored])  # (layers, 2, heads, steps, d)
                assert torch.equal(found, torch.stack(histories[index], dim=3).to(found.dtype))
                assert (row[row != 0] == -torch.inf).all()
        assert all(part.is_contiguous() and part.isfinite().all() for part in stored)
        assert {part.shape[3] for part in stored} == {mask.shape[3]} == {padded_width(self.state.slots.width)}

    def reorder(self) -> None:
        index = torch.randint(self.beam, (len(self.expected), self.beam), generator=self.random)
        self.state.reorder(index)
        rows = zip(self.expected, index.tolist(), strict=True)
        self.expected = [[histories[parent] for parent in parents] for histories, parents in rows]

    def used_slots(self) -> int:
        """Return the largest number of distinct keys and values that the hypotheses of a sentence see."""
        return max(len({id(entry) for history in histories for entry in history}) for histories in self.expected)


@pytest.mark.parametrize("beam", [1, 4])
def test_without_compaction_each_step_adds_a_slot_per_hypothesis(beam: int) -> None:
    checked = CheckedState(3, beam=beam, compacts=False)
    for step in range(18):
        checked.step()
        checked.reorder()
        assert checked.state.slots.width == 1 + step * beam


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compaction_frees_the_slots_of_pruned_hypotheses(dtype: torch.dtype) -> None:
    checked = CheckedState(3, dtype=dtype)
    widths = []
    for _ in range(34):
        used = checked.used_slots()
        checked.step()
        checked.reorder()
        if checked.state.length in (17, 33):
            assert checked.state.slots.width == used + checked.beam
        widths.append(checked.state.slots.width)
    assert widths[15] == 1 + 15 * 4 and max(widths[16:]) < widths[15] + 16 * 4
    assert all(layer.cache.stored.dtype == dtype for layer in checked.state.layers)
    size = sum(layer.cache.stored.numel() for layer in checked.state.layers)
    assert size == LAYERS * 2 * 3 * HEADS * padded_width(widths[-1]) * D_HEAD


@pytest.mark.parametrize("steps", [5, 20])
def test_selected_sentences_keep_their_keys_and_values(steps: int) -> None:
    """After 16 steps, the slots of each sentence have been compacted."""
    checked = CheckedState(3)
    for _ in range(steps):
        checked.step()
        checked.reorder()
    state, chosen = checked.state, [2, 0]
    memories, memory_mask = [layer.memory for layer in state.layers], state.memory_mask
    state.select(torch.tensor(chosen))
    checked.expected = [checked.expected[sentence] for sentence in chosen]
    for _ in range(14):
        checked.step()
        checked.reorder()
    assert torch.equal(state.memory_mask, memory_mask[chosen])
    for layer, memory in zip(state.layers, memories, strict=True):
        assert torch.equal(layer.memory, memory[:, chosen])


def test_distances_count_the_steps_since_each_slot() -> None:
    checked = CheckedState(2, beam=3, compacts=False)
    for _ in range(7):
        checked.step()
    steps = [0] + [step for step in range(1, 7) for _ in range(3)]
    unused = [0] * (padded_width(len(steps)) - len(steps))
    assert checked.state.layers[0].cache.distances().tolist() == [step - 6 for step in steps] + unused
