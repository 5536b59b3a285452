"""Beam search against exhaustive enumeration and test vectors of other systems, and its properties one by one.

`test_all_options` compares it with a reference beam.
"""

import itertools
import math
import random
from collections.abc import Callable, Sequence
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nmt.packing.packed import PackedSequences
from nmt.recipe import DecodeRecipe
from nmt.recipe.decoding import LengthPenalty
from nmt.search.beam_search import beam_search
from nmt.search.hypothesis import Hypothesis
from nmt.search.options import SearchOptions, length_penalty
from nmt.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from tests.vectors import load_vectors

NEG_INF = float("-inf")

Prefix = tuple[int, ...]
Table = Callable[[Prefix, Prefix], list[float]]  # (source, prefix) -> log-probability of every token


# --- Models that are tables ------------------------------------------------------------------------------------------


def random_table(seed: int, words: int, zeros: float = 0.0) -> Table:
    """A random distribution for each source and prefix; tokens are impossible with probability `zeros`."""

    @cache
    def log_probs(source: Prefix, prefix: Prefix) -> list[float]:
        rng = random.Random(repr((seed, source, prefix)))
        weights = [0.0 if rng.random() < zeros else rng.random() ** 3 for _ in range(4 + words)]
        total = sum(weights) or 1.0
        return [math.log(w / total) if w > 0 else NEG_INF for w in weights]

    return log_probs


class PrefixState:
    """Stores the prefix of every hypothesis, to detect a wrong `reorder` or `select`."""

    def __init__(self, sources: list[Prefix], beam_size: int) -> None:
        self.sources = sources
        self.prefixes: list[list[Prefix]] = [[()] * beam_size for _ in sources]

    def reorder(self, beam_index: Tensor) -> None:
        assert beam_index.dtype == torch.int64
        orders = beam_index.tolist()
        self.prefixes = [[row[j] for j in order] for row, order in zip(self.prefixes, orders, strict=True)]

    def select(self, sentence_index: Tensor) -> None:
        kept = sentence_index.tolist()
        assert 0 < len(kept) < len(self.sources), "select must shrink the batch"
        self.sources = [self.sources[i] for i in kept]
        self.prefixes = [self.prefixes[i] for i in kept]


class TableModel:
    """A StepModel that reads a table."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.rows_per_step: list[int] = []

    def start(self, src: PackedSequences, beam_size: int) -> PrefixState:
        return PrefixState([tuple(sentence) for sentence in src.to_lists()], beam_size)

    def step(self, tokens: Tensor, state: PrefixState) -> Tensor:
        assert tokens.dtype == torch.int64 and tokens.shape == (len(state.sources), len(state.prefixes[0]))
        self.rows_per_step.append(tokens.shape[0])
        state.prefixes = [
            [(*prefix, token) for prefix, token in zip(row, new, strict=True)]
            for row, new in zip(state.prefixes, tokens.tolist(), strict=True)
        ]
        assert all(prefix[0] == BOS_ID for row in state.prefixes for prefix in row)
        table = [
            [self.table(source, prefix[1:]) for prefix in row]
            for source, row in zip(state.sources, state.prefixes, strict=True)
        ]
        return torch.tensor(table, dtype=torch.float32)


def search(table: Table, sources: Sequence[Sequence[int]], options: SearchOptions) -> list[list[Hypothesis]]:
    return beam_search(TableModel(table), PackedSequences.from_lists(sources), options)


# --- References in plain Python, one sentence at a time, in double precision ------------------------------------------

Scored = tuple[float, float, Prefix]  # score, log-probability, tokens without EOS


def reference_penalty(n: int, options: SearchOptions) -> float:
    divisors: dict[str, float] = {"gnmt": (5 + n) / 6, "power": float(n), "none": 1.0}
    return math.pow(divisors[options.length_penalty], options.length_alpha)


def reference_limit(source: Sequence[int], options: SearchOptions) -> int:
    limit = len(source) - 1 + options.max_extra_tokens
    return limit if options.max_tokens is None else min(limit, options.max_tokens)


def all_outputs(table: Table, source: Prefix, options: SearchOptions) -> list[Scored]:
    """Enumerate all outputs with their scores, best first."""
    limit = reference_limit(source, options)
    words = range(4, len(table(source, ())))
    outputs: list[Scored] = []
    for length in range(limit + 1):
        for tokens in itertools.product(words, repeat=length):
            steps = [table(source, tokens[:i])[token] for i, token in enumerate((*tokens, EOS_ID))]
            log_prob = sum(steps)
            if log_prob > NEG_INF:
                outputs.append((log_prob / reference_penalty(length + 1, options), log_prob, tokens))
    return sorted(outputs, reverse=True)


def assert_same(
    found: list[Hypothesis], expected: list[Scored], table: Table, source: Prefix, options: SearchOptions | None = None
) -> None:
    """options: only for a search with biases, where scores may be close to 0; see `rounding_bound`"""
    assert [tuple(h.tokens) for h in found] == [tokens for _, _, tokens in expected]
    for hypothesis, (score, log_prob, tokens) in zip(found, expected, strict=True):
        steps = [table(source, tokens[:i])[token] for i, token in enumerate((*tokens, EOS_ID))]
        if options is None:
            assert hypothesis.score == pytest.approx(score, rel=1e-5, abs=1e-6)
        else:
            assert abs(hypothesis.score - score) <= rounding_bound(score, steps, options)
        assert hypothesis.log_prob == pytest.approx(log_prob, rel=1e-5, abs=1e-6)
        assert hypothesis.token_log_probs == pytest.approx(steps, rel=1e-5, abs=1e-6)


def rounding_bound(score: float, steps: Sequence[float], options: SearchOptions) -> float:
    """Bound on the rounding error of a float32 score that is the sum of log-probabilities and a bias.

    Each value that is rounded contributes its magnitude times the unit roundoff (Higham 2002, section 3.3). The bound
    therefore does not shrink when the addends cancel.

    steps: log-probability of each token and of EOS
    """
    penalty = reference_penalty(len(steps), options)
    total = score * penalty
    rounded = [*steps, *itertools.accumulate(steps), total - sum(steps), *[total] * 3]  # 3: sum, penalty, quotient
    rounded_biases = 2.0**-31 * len(options.bias) * len(steps)  # to multiples of 2 ** -30
    return (2.0**-24 * sum(map(abs, rounded)) + rounded_biases) / penalty


def source_of(length: int, name: int) -> Prefix:
    """A source of `length` words and EOS; `name` distinguishes sentences of equal length."""
    return (*[4 + name] * length, EOS_ID)


penalties = st.sampled_from(("gnmt", "power", "none"))
alphas = st.sampled_from((0.0, 0.3, 0.6, 1.0, 2.5))
zeros = st.sampled_from((0.0, 0.0, 0.4))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    words=st.integers(1, 3),
    lengths=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    n_best=st.integers(1, 5),
    penalty=penalties,
    alpha=alphas,
    zeros=zeros,
)
def test_exhaustive_beam_finds_the_optimum(
    seed: int, words: int, lengths: list[int], n_best: int, penalty: LengthPenalty, alpha: float, zeros: float
) -> None:
    table = random_table(seed, words, zeros)
    options = SearchOptions(max(5, words**4), n_best, penalty, alpha, max_extra_tokens=1)
    sources = [source_of(length, name) for name, length in enumerate(lengths)]
    for source, found in zip(sources, search(table, sources, options), strict=True):
        assert_same(found, all_outputs(table, source, options)[:n_best], table, source)


# --- One property at a time ------------------------------------------------------------------------------------------


def test_results_do_not_depend_on_the_batch() -> None:
    table = random_table(5, words=6)
    options = SearchOptions(beam_size=4, n_best=3, max_extra_tokens=6)
    sources = [source_of(length, name) for name, length in enumerate([3, 0, 7, 1, 3, 5, 2, 2, 9, 4])]
    alone = {source: search(table, [source], options)[0] for source in sources}
    rng = random.Random(0)
    for _ in range(5):
        batch = rng.sample(sources, k=rng.randint(2, len(sources)))
        assert search(table, batch, options) == [alone[source] for source in batch]  # bit-identical
    doubled = [sources[2], sources[2], sources[1], sources[2]]
    assert search(table, doubled, options) == [alone[source] for source in doubled]


def test_ties_rank_by_parent_then_token() -> None:
    def uniform_then_eos(source: Prefix, prefix: Prefix) -> list[float]:
        return [math.log(0.1)] * 10 if len(prefix) < 2 else [0.0 if token == EOS_ID else NEG_INF for token in range(10)]

    # After two steps all hypotheses of two tokens are tied; the shorter ones score lower. topk chooses among the ties.
    options = SearchOptions(beam_size=3, n_best=3, length_penalty="power", length_alpha=1.0, max_extra_tokens=3)
    [alone] = search(uniform_then_eos, [source_of(1, 0)], options)
    outputs = [h.tokens for h in alone]
    assert outputs == sorted(outputs) and {len(tokens) for tokens in outputs} == {2}
    assert len({tuple(tokens) for tokens in outputs}) == 3
    for neighbors in (1, 6):
        for found in search(uniform_then_eos, [source_of(1, name) for name in range(1 + neighbors)], options):
            assert [h.tokens for h in found] == outputs


def test_all_extensions_of_equal_rank_are_ordered() -> None:
    """The beam has capacity for every extension (2 parents with 3 possible tokens each), so topk breaks no tie."""

    def uniform(source: Prefix, prefix: Prefix) -> list[float]:
        words = 2 if not prefix else 3
        possible = {EOS_ID} if len(prefix) == 2 else set(range(EOS_ID + 1, EOS_ID + 1 + words))
        return [-math.log(len(possible)) if token in possible else NEG_INF for token in range(8)]

    options = SearchOptions(beam_size=6, n_best=6, max_extra_tokens=3)
    for found in search(uniform, [source_of(1, 0), source_of(1, 1)], options):
        assert [h.tokens for h in found] == [
            [a, b] for a in (EOS_ID + 1, EOS_ID + 2) for b in range(EOS_ID + 1, EOS_ID + 4)
        ]


@pytest.mark.parametrize("seed", range(20))
def test_greedy_is_the_argmax_loop(seed: int) -> None:
    table = random_table(seed, words=8)
    source = source_of(4, seed)
    options = SearchOptions(beam_size=1, max_extra_tokens=4)
    limit = reference_limit(source, options)
    tokens: Prefix = ()
    while True:
        log_probs = table(source, tokens)
        token = max(range(EOS_ID, len(log_probs)), key=log_probs.__getitem__)
        if token == EOS_ID or len(tokens) == limit:
            break
        tokens = (*tokens, token)
    model = TableModel(table)
    [[found]] = beam_search(model, PackedSequences.from_lists([source]), options)
    assert tuple(found.tokens) == tokens
    assert len(model.rows_per_step) == len(tokens) + 1, "greedy search stops where EOS is most probable"


def test_eos_is_forced_at_the_limit_with_its_true_probability() -> None:
    def never_ends(source: Prefix, prefix: Prefix) -> list[float]:
        return [NEG_INF, NEG_INF, NEG_INF, math.log(0.01), math.log(0.99)]

    options = SearchOptions(beam_size=2, length_penalty="none", max_extra_tokens=2)
    for length in range(4):
        [[found]] = search(never_ends, [source_of(length, 0)], options)
        # The shortest output is the most probable: 0.01 against 0.99^n * 0.01.
        assert found.tokens == []
        [[found]] = search(never_ends, [source_of(length, 0)], SearchOptions(beam_size=1, max_extra_tokens=2))
        assert found.tokens == [4] * (length + 2)
        assert found.log_prob == pytest.approx((length + 2) * math.log(0.99) + math.log(0.01), rel=1e-5)


def test_search_stops_exactly_when_the_result_is_final() -> None:
    """The best output is long and ranks low at first; a nearly certain output needs only two of a hundred steps."""

    def sure(source: Prefix, prefix: Prefix) -> list[float]:
        return [NEG_INF] * 3 + ([math.log(0.999), math.log(0.001)] if prefix else [math.log(0.001), math.log(0.999)])

    model = TableModel(sure)
    [[found]] = beam_search(model, PackedSequences.from_lists([source_of(50, 0)]), SearchOptions(beam_size=3))
    assert found.tokens == [4]
    assert len(model.rows_per_step) == 2

    def late(source: Prefix, prefix: Prefix) -> list[float]:
        if not prefix:
            return [NEG_INF] * 3 + [NEG_INF, math.log(0.9), math.log(0.1)]
        if prefix[0] == 4:
            return [NEG_INF] * 3 + [math.log(0.3), math.log(0.35), math.log(0.35)]
        return [NEG_INF] * 3 + ([0.0, NEG_INF, NEG_INF] if len(prefix) == 9 else [NEG_INF, NEG_INF, 0.0])

    # log 0.27 / 2 = -0.65 for [4] against log 0.1 / 10 = -0.23 for nine times 5.
    options = SearchOptions(beam_size=8, length_penalty="power", length_alpha=1.0, max_extra_tokens=9)
    [[found]] = search(late, [source_of(0, 0)], options)
    assert found.tokens == [5] * 9
    assert found.score == pytest.approx(math.log(0.1) / 10, rel=1e-5)


def test_finished_sentences_leave_the_batch() -> None:
    def as_long_as_the_source(source: Prefix, prefix: Prefix) -> list[float]:
        ends = len(prefix) == len(source) - 1
        return [NEG_INF] * 3 + [math.log(0.98 if ends else 0.01), math.log(0.01 if ends else 0.98), math.log(0.01)]

    model = TableModel(as_long_as_the_source)
    sources = [source_of(length, 0) for length in (3, 1, 5, 1)]
    found = beam_search(model, PackedSequences.from_lists(sources), SearchOptions(beam_size=2, length_penalty="none"))
    assert [len(h.tokens) for [h] in found] == [3, 1, 5, 1]
    assert model.rows_per_step == [4, 4, 2, 2, 1, 1]


def test_special_tokens_are_never_produced() -> None:
    def tempting(source: Prefix, prefix: Prefix) -> list[float]:
        return [math.log(0.3), math.log(0.3), math.log(0.3), math.log(0.04), math.log(0.06)]

    for found in search(tempting, [source_of(3, 0), source_of(1, 0)], SearchOptions(beam_size=4, n_best=4)):
        assert len(found) == 4
        assert all(set(h.tokens) <= {4} for h in found)


def test_impossible_outputs_are_not_returned() -> None:
    def only_one_output(source: Prefix, prefix: Prefix) -> list[float]:
        certain = [4, 5, EOS_ID][len(prefix)] if prefix in ((), (4,), (4, 5)) else PAD_ID
        return [0.0 if token == certain else NEG_INF for token in range(6)]

    for beam_size in (1, 4):
        options = SearchOptions(beam_size, n_best=beam_size, max_extra_tokens=9)
        [[found]] = search(only_one_output, [source_of(2, 0)], options)
        assert found == Hypothesis([4, 5], 0.0, 0.0, [0.0, 0.0, 0.0])


@pytest.mark.parametrize("value", [NEG_INF, float("nan")])
def test_no_possible_token_gives_no_hypothesis(value: float) -> None:
    found = search(lambda source, prefix: [value] * 6, [source_of(2, 0), source_of(0, 0)], SearchOptions())
    assert found == [[], []]


def test_an_empty_batch_has_no_hypotheses() -> None:
    assert search(random_table(0, 2), [], SearchOptions()) == []


def test_the_output_is_empty_if_no_tokens_are_allowed() -> None:
    table = random_table(1, words=3)
    source = source_of(2, 0)
    [[found]] = search(table, [source], SearchOptions(max_tokens=0))
    assert found.tokens == []
    assert found.log_prob == pytest.approx(table(source, ())[EOS_ID], rel=1e-5)


# --- Options and length penalties ------------------------------------------------------------------------------------


def test_options_match_the_recipe() -> None:
    assert SearchOptions.from_recipe(DecodeRecipe()) == SearchOptions(stop="first")
    recipe = DecodeRecipe(beam_size=7, n_best=3, length_penalty="power", length_alpha=1.5, max_extra_tokens=9)
    assert SearchOptions.from_recipe(recipe, max_tokens=11) == SearchOptions(7, 3, "power", 1.5, 9, 11, stop="first")


def test_length_penalty_equals_its_formula() -> None:
    assert length_penalty(1, "gnmt", 0.6) == 1.0
    assert length_penalty(13, "gnmt", 0.6) == pytest.approx(3**0.6)
    assert length_penalty(13, "power", 0.6) == pytest.approx(13**0.6)
    assert length_penalty(13, "none", 0.6) == 1.0


def test_length_penalty_equals_sockeyes() -> None:
    """Sockeye's ((beta + n) / (beta + 1))^alpha is `power` with beta 0 and `gnmt` with beta 5."""
    tables = load_vectors("sockeye.json")
    cases: list[tuple[str, LengthPenalty, float]] = [
        ("length_penalty_alpha1_beta0", "power", 1.0),
        ("length_penalty_alpha.2_beta5", "gnmt", 0.2),
    ]
    for key, name, alpha in cases:
        ours = [length_penalty(n, name, alpha) for n in tables[key]["len"]]
        assert ours == pytest.approx(tables[key]["lp"], rel=1e-6)


def test_power_penalty_equals_fairseqs_normalization() -> None:
    table = load_vectors("fairseq_scorer.json")
    for probs, score in zip(table["expected_positional_probs"], table["score"], strict=True):
        log_prob = sum(math.log(p) for p in probs)
        assert log_prob / length_penalty(len(probs), "power", 1.0) == pytest.approx(score, rel=1e-6)


class SlotTableModel:
    """fairseq's test model: the distribution depends only on step, sentence and beam index.

    The beam has the order that the table assumes: live hypotheses by log-probability, without finished ones.
    """

    def __init__(self, probs: list[list[list[float]]], columns: list[str]) -> None:
        rows = torch.tensor(probs)  # (steps, 2 sentences * 2 hypotheses, columns)
        ids = [{"eos": EOS_ID, "unk": UNK_ID, "w1": 4, "w2": 5}[name] for name in columns]
        self.log_probs = torch.zeros(rows.shape[0], 2, 2, 6)
        self.log_probs[:, :, :, ids] = rows.view(-1, 2, 2, len(columns))
        self.log_probs.log_()

    def start(self, src: PackedSequences, beam_size: int) -> "SlotTableState":
        return SlotTableState(torch.arange(src.num_sentences))

    def step(self, tokens: Tensor, state: "SlotTableState") -> Tensor:
        state.length += 1
        return self.log_probs[state.length - 1, state.sentences]


class SlotTableState:
    def __init__(self, sentences: Tensor) -> None:
        self.sentences = sentences
        self.length = 0

    def reorder(self, beam_index: Tensor) -> None:
        pass

    def select(self, sentence_index: Tensor) -> None:
        self.sentences = self.sentences[sentence_index]


@pytest.mark.parametrize(
    ("name", "penalty", "alpha", "extra", "better"),
    [
        ("normalized_lenpen1", "power", 1.0, 1, {}),
        ("lenpen0.6", "power", 0.6, 1, {}),
        ("unnormalized", "none", 1.0, 1, {1: ["w1", "w1 w2"]}),
        ("lenpen5.0", "power", 5.0, 1, {1: ["w1 w2 w1", "w2 w2 w2"]}),
        ("max_len_b=2", "power", 1.0, 0, {1: ["w1 w2", "w1"]}),
    ],
)
def test_outputs_are_at_least_as_good_as_fairseqs(
    name: str, penalty: LengthPenalty, alpha: float, extra: int, better: dict[int, list[str]]
) -> None:
    """The outputs that fairseq's own test expects, and better ones that its stopping criterion misses.

    fairseq finishes a hypothesis only if its EOS is among the first `beam` candidates, and stops when `beam`
    hypotheses have ended. Here the first 2 * `beam` candidates count, and the search continues while the result can
    improve. At every rank the score must therefore be at least fairseq's, and outputs that both find must have the
    same probabilities.
    """
    table = load_vectors("fairseq_beam.json")
    model = SlotTableModel(table["probs"], table["columns"])
    options = SearchOptions(table["beam"], 2, penalty, alpha, max_extra_tokens=extra)
    found = beam_search(model, PackedSequences.from_lists([[4, 5, EOS_ID]] * 2), options)
    for sentence, hypotheses in enumerate(found):
        rows = table["expect"][name][2 * sentence : 2 * sentence + 2]
        theirs = {" ".join(tokens[:-1]): probs for tokens, probs in rows}
        ours = {" ".join("w1" if token == 4 else "w2" for token in h.tokens): h for h in hypotheses}
        assert list(ours) == better.get(sentence, list(theirs))
        for hypothesis, probs in zip(hypotheses, theirs.values(), strict=True):
            assert hypothesis.score >= sum(map(math.log, probs)) / reference_penalty(len(probs), options) - 1e-6
        for both in ours.keys() & theirs.keys():
            assert [math.exp(x) for x in ours[both].token_log_probs] == pytest.approx(theirs[both], abs=1e-4)
