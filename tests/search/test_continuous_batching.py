"""Continuous batching: refilled batches give the results of separate searches."""

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.inference.captured import CapturedModel
from nmt.packing.packed import PackedSequences
from nmt.recipe import DecodeRecipe, ModelRecipe
from nmt.search.batches import choose_batch_tokens, continuous_batches, static_batches
from nmt.search.beam_search import StepModel, beam_search
from nmt.search.ensemble import Ensemble, is_refillable
from nmt.search.hypothesis import Hypothesis
from nmt.search.options import SearchOptions
from nmt.search.restricted import restrict
from nmt.special_ids import BOS_ID
from tests.inference.test_captured import SEARCHES, RepeatingRecorder, make_model, random_sources
from tests.inference.test_captured import assert_same as assert_same_search
from tests.search.reference_search import Task, beam_outputs
from tests.search.test_all_options import prefixes, requirements, search_options, sometimes, stops, tasks_of
from tests.search.test_search import PrefixState, TableModel, assert_same, random_table, source_of, zeros


class RefillableTableModel(TableModel):
    """A table that supports continuous batching and records the source lengths of each group that it encodes."""

    def start(self, src: PackedSequences, beam_size: int) -> PrefixState:
        self.encoded = [src.sizes.tolist()]
        return RefillableState([tuple(sentence) for sentence in src.to_lists()], beam_size)

    def refill(self, src: PackedSequences, state: PrefixState, steps: int) -> None:
        assert src.max_length <= max(self.encoded[0]) and src.num_sentences
        assert steps == max((len(beam[0]) for beam in state.prefixes), default=0)
        self.encoded.append(src.sizes.tolist())
        new = RefillableState([tuple(sentence) for sentence in src.to_lists()], 1)
        state.sources += new.sources
        width = len(state.prefixes[0]) if state.prefixes else self.width
        state.prefixes += [beam * width for beam in new.prefixes]

    def step(self, tokens: torch.Tensor, state: Any) -> torch.Tensor:
        self.width = tokens.shape[1]
        return super().step(tokens, state)


class RefillableState(PrefixState):
    def select(self, sentence_index: torch.Tensor) -> None:
        kept = sentence_index.tolist()
        assert len(kept) < len(self.sources)
        self.sources = [self.sources[i] for i in kept]
        self.prefixes = [self.prefixes[i] for i in kept]


def search(tasks: Sequence[Task], batch_size: int) -> tuple[list[list[Hypothesis]], RefillableTableModel]:
    model = RefillableTableModel(tasks[0].table)
    src = PackedSequences.from_lists([task.source for task in tasks])
    constraints = [task.prefix for task in tasks], [task.required for task in tasks]
    return beam_search(model, src, tasks[0].options, *constraints, batch_size=batch_size), model


# --- Search ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    lengths=st.lists(st.integers(0, 4), min_size=1, max_size=9),
    batch_size=st.integers(1, 5),
    zeros=zeros,
    words=st.integers(2, 6),
    width=st.integers(1, 4),
    groups=sometimes(1, st.integers(2, 3)),
    data=st.data(),
    chosen=search_options,
    constraints=st.lists(st.tuples(prefixes, requirements), min_size=9, max_size=9),
)
def test_refilled_outputs_equal_the_reference_with_all_options(
    seed: int,
    lengths: list[int],
    batch_size: int,
    zeros: float,
    words: int,
    width: int,
    groups: int,
    data: st.DataObject,
    chosen: dict[str, Any],
    constraints: list[Any],
) -> None:
    n_best = data.draw(st.integers(1, width * groups))
    chosen["max_extra_tokens"] += data.draw(st.integers(0, 4))
    options = SearchOptions(beam_size=width * groups, n_best=n_best, beam_groups=groups, **chosen, **data.draw(stops))
    tasks = tasks_of(seed, lengths, zeros, words, options, constraints)
    found, model = search(tasks, batch_size)
    for task, hypotheses in zip(tasks, found, strict=True):
        assert_same(hypotheses, beam_outputs(task), task.table, task.source, task.options)
    assert max(model.rows_per_step) <= batch_size
    encoded = [size for sizes in model.encoded for size in sizes]
    assert sorted(encoded) == sorted(len(task.source) for task in tasks), "each source is encoded once"
    assert encoded == sorted(encoded, reverse=True) or len(model.encoded) == 1, "the longest come first"


@pytest.mark.slow
def test_free_slots_are_refilled() -> None:
    """Most slots are in use until the queue is empty, and sentences are encoded in groups."""
    options = SearchOptions(beam_size=2, max_extra_tokens=20)
    tasks = [Task(random_table(5, 6), source_of(length % 5, length), options) for length in range(80)]
    together, model = search(tasks, batch_size=80)
    refilled, model_of_8 = search(tasks, batch_size=8)
    assert [[h.tokens for h in hypotheses] for hypotheses in refilled] == [
        [h.tokens for h in hypotheses] for hypotheses in together
    ]
    assert len(model.encoded) == 1
    in_groups = [search(tasks[first : first + 8], batch_size=8)[1].rows_per_step for first in range(0, 80, 8)]
    assert len(model_of_8.rows_per_step) < 0.7 * sum(map(len, in_groups)), "refilling must save steps"
    assert all(len(sizes) >= 2 for sizes in model_of_8.encoded[:-1])
    while_full = model_of_8.rows_per_step[: len(model_of_8.rows_per_step) // 2]
    assert sum(while_full) >= 0.85 * 8 * len(while_full)


def test_batch_size_one_searches_one_sentence_at_a_time() -> None:
    options = SearchOptions(beam_size=3, max_extra_tokens=3)
    tasks = [Task(random_table(2, 4), source_of(n, n), options) for n in (3, 0, 4)]
    found, model = search(tasks, batch_size=1)
    assert model.encoded == [[5], [4], [1]]
    for task, hypotheses in zip(tasks, found, strict=True):
        assert_same(hypotheses, beam_outputs(task), task.table, task.source, task.options)


def test_other_models_need_the_whole_batch() -> None:
    src, table = PackedSequences.from_lists([source_of(1, 0), source_of(2, 1)]), random_table(1, 3)
    assert len(beam_search(TableModel(table), src, SearchOptions(), batch_size=2)) == 2
    with pytest.raises(AssertionError, match="continuous batching"):
        beam_search(make_model(), src, SearchOptions(), batch_size=1)


# --- Real models -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("search", "batch_size"), [*((name, 4) for name in SEARCHES), ("beam", 1)])
def test_a_refilled_captured_model_finds_the_same_hypotheses(search: str, batch_size: int) -> None:
    rng, model, recorder, options = random.Random(batch_size), make_model(), RepeatingRecorder(), SEARCHES[search]
    captured = CapturedModel(model, recorder)
    for count in (9, 5):
        src = random_sources(rng, count, longest=40)
        required = [[[[rng.randrange(4, 30)]] for _ in range(rng.choice((0, 0, 1)))] for _ in range(count)]
        found = beam_search(captured, src, options, None, required, batch_size=batch_size)
        assert_same_search(found, beam_search(model, src, options, None, required))
    assert recorder.recorded


@pytest.mark.slow
def test_cache_is_a_ring_buffer() -> None:
    """Many short sentences in turn: the search takes many more steps than the cache has slots."""
    model, recorder = make_model(), RepeatingRecorder()
    captured = CapturedModel(model, recorder)
    src = random_sources(random.Random(3), 60, longest=15)
    options = SearchOptions(beam_size=3, max_extra_tokens=4)
    assert_same_search(beam_search(captured, src, options, batch_size=4), beam_search(model, src, options))
    steps = sum(step.count for step in captured._steps.values())
    widest = max(shape.capacity for shape in captured._steps)
    assert widest == 64 and 3 * steps > 5 * widest
    assert max(shape.batch for shape in captured._steps) == 4


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    beam=st.integers(1, 5),
    steps=st.integers(1, 60),
    probability=st.sampled_from((0.1, 0.4, 0.8)),
    positions=st.sampled_from(("sinusoidal", "rotary")),
)
def test_steps_equal_those_of_single_sentences(
    seed: int, beam: int, steps: int, probability: float, positions: str
) -> None:
    """Sentences leave and start at random; new ones may be longer than all before and need more slots than are free."""
    rng, model = random.Random(seed), make_model(seed % 3, positions=positions)
    captured = CapturedModel(model, RepeatingRecorder())
    first = random_sources(rng, rng.randint(1, 5))
    state = captured.start(first, beam)
    alone = [model.start(first.select([i]), beam) for i in range(first.num_sentences)]
    tokens = torch.full((len(alone), beam), BOS_ID)
    for _ in range(steps):
        found = captured.advance(tokens, state)
        for row, own in enumerate(alone):
            expected = model.advance(tokens[row : row + 1], own)
            torch.testing.assert_close(found[row : row + 1], expected, rtol=0.0, atol=1e-12)
        num_new = 0
        if rng.random() < probability:
            staying = sorted(rng.sample(range(len(alone)), k=rng.randint(0, len(alone))))
            src = random_sources(rng, rng.randint(1, 6), longest=rng.choice((3, 40)))
            num_new = src.num_sentences
            state.select(torch.tensor(staying, dtype=torch.int64))
            alone = [alone[row] for row in staying]
            captured.refill(src, state, max((own.length for own in alone), default=0))
            alone += [model.start(src.select([i]), beam) for i in range(num_new)]
        order = torch.tensor([[rng.randrange(beam) for _ in range(beam)] for _ in alone])
        state.reorder(order)
        for row, own in enumerate(alone):
            if own.length:
                own.reorder(order[row : row + 1])
        tokens = torch.tensor([[rng.randrange(4, 30) for _ in range(beam)] for _ in alone])
        tokens[len(alone) - num_new :] = BOS_ID


def test_stale_slots_do_not_affect_new_sentences() -> None:
    model, src = make_model(), random_sources(random.Random(1), 3)
    found = []
    for spoiled in (False, True):
        captured = CapturedModel(model)
        state = captured.start(src, 2)
        with torch.inference_mode():
            captured.step(torch.full((3, 2), BOS_ID), state)
            state.select(torch.tensor([1]))
            if spoiled:
                buffers, unused = state.step.buffers, [0, 2, 3]
                for layer in buffers.layers:
                    layer.cache.stored[:, unused] = layer.memory[:, unused] = float("nan")
                buffers.hidden[unused] = buffers.mask[unused] = float("nan")
            captured.refill(src.select([2, 0]), state, 1)
            assert sorted(state.rows.tolist()) == [0, 1, 2] and state.rows[0] == 1
            found.append(captured.step(torch.full((3, 2), BOS_ID), state))
    assert torch.equal(*found) and found[0].isfinite().all()


def test_an_ensemble_is_refillable_if_all_members_are() -> None:
    models: list[StepModel[Any]] = [make_model(1), make_model(2)]
    captured: list[StepModel[Any]] = [CapturedModel(make_model(seed)) for seed in (1, 2)]
    assert is_refillable(Ensemble(captured))
    assert not is_refillable(Ensemble([captured[0], models[1]]))
    assert not is_refillable(models[0])
    assert not is_refillable(restrict(captured[0], torch.ones(1, 30, dtype=torch.bool)))


@pytest.mark.slow
def test_a_refilled_ensemble_finds_the_same_hypotheses() -> None:
    models: list[StepModel[Any]] = [make_model(1), make_model(2)]
    captured: list[StepModel[Any]] = [CapturedModel(make_model(seed)) for seed in (1, 2)]
    src = random_sources(random.Random(4), 9, longest=12)
    options = SearchOptions(n_best=2, max_extra_tokens=12)
    assert_same_search(
        beam_search(Ensemble(captured), src, options, batch_size=2), beam_search(Ensemble(models), src, options)
    )


# --- Batches ----------------------------------------------------------------------------------------------------------


@given(lengths=st.lists(st.integers(1, 300), max_size=40), budget=st.integers(1, 2_000))
@pytest.mark.slow
def test_batches_partition_the_sentences_by_length_within_the_budget(lengths: list[int], budget: int) -> None:
    for plan in (static_batches, continuous_batches):
        groups = list(plan(lengths, budget))
        assert sorted(i for group in groups for i in group.sentences) == list(range(len(lengths)))
        assert all(
            max(lengths[i] for i in later.sentences) <= max(lengths[i] for i in group.sentences)
            for group, later in pairwise(groups)
        )
        for ids, rows, tokens in groups:
            costs = sorted(max(16, lengths[i]) for i in ids)
            assert 1 <= rows <= len(ids) and (rows == 1 or sum(costs[-rows:]) <= tokens <= budget)
            fewer = next(plan([lengths[i] for i in ids], tokens // 2))
            assert rows == 1 or fewer.batch_size < rows


@given(lengths=st.lists(st.integers(1, 300), max_size=40), budget=st.integers(1, 2_000))
def test_continuous_batches_have_sentences_of_similar_length(lengths: list[int], budget: int) -> None:
    for ids, _, _ in continuous_batches(lengths, budget):
        assert max(lengths[i] for i in ids) <= max(16, 2 * min(lengths[i] for i in ids))


@pytest.mark.parametrize(
    ("gigabytes", "model", "beam_size", "expected", "for_two_models"),
    [
        (16, {}, 4, 8_192, 4_096),  # the paper's base model on a T4
        (16, {"d_model": 1024, "num_heads": 16}, 12, 2_048, 2_048),
        (80, {}, 4, 32_768, 16_384),
        (80, {}, 50, 4_096, 2_048),
        (6, {}, 1, 8_192, 4_096),  # 14,545 tokens of 6,144 * 3 cached elements and 37,000 / 4 logits
        (2, {}, 4, 2_048, 2_048),  # the minimum; it is halved if memory runs out
    ],
)
def test_batch_size_depends_on_gpu_memory(
    gigabytes: int,
    model: dict[str, int],
    beam_size: int,
    expected: int,
    for_two_models: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Properties:
        total_memory = gigabytes << 30

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    models, decode = [(ModelRecipe.model_validate(model), 37_000)], DecodeRecipe(beam_size=beam_size)
    assert choose_batch_tokens(decode, torch.device("cuda", 0), models) == expected
    assert choose_batch_tokens(decode, torch.device("cuda", 0), models * 2) == for_two_models
    without_model = [choose_batch_tokens(decode, torch.device(name), []) for name in ("cuda:0", "cpu")]
    assert without_model[0] == without_model[1]
    fixed = DecodeRecipe(beam_size=beam_size, batch_tokens=777)
    assert choose_batch_tokens(fixed, torch.device("cuda", 0), models) == 777


@pytest.mark.parametrize(
    ("beam_size", "expected"),
    [(1, 8_192), (2, 4_096), (3, 2_048), (4, 2_048), (12, 2_048), (64, 2_048), (1_000, 131), (5_000, 26)],
)
def test_batch_size_on_a_cpu_depends_on_the_beam(beam_size: int, expected: int) -> None:
    models = [(ModelRecipe(), 37_000)]
    assert choose_batch_tokens(DecodeRecipe(beam_size=beam_size), torch.device("cpu"), models) == expected


def test_batch_size_on_a_cpu_depends_on_the_number_of_samples() -> None:
    decode = DecodeRecipe(sampling=True, n_best=1_000)
    assert choose_batch_tokens(decode, torch.device("cpu"), [(ModelRecipe(), 37_000)]) == 131


def test_batch_sizes_match_buffer_shapes() -> None:
    assert list(continuous_batches([30] * 100 + [5] * 3 + [17], 512)) == [
        ([*range(100), 103], 16, 512),
        ([100, 101, 102], 3, 64),
    ]
    assert [(rows, tokens) for _, rows, tokens in static_batches([30] * 100, 512)] == [(15, 450)] + [(17, 510)] * 5
