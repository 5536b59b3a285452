"""The statistical aligner against plain loops, and on a language with a known dictionary."""

import math
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from nmt.alignment import lexical
from nmt.alignment.lexical import PASSES, LexicalAligner, agreed_links, best_sources, estimate_lexicon

Pairs = list[tuple[list[int], list[int]]]
Table = dict[tuple[int | None, int], float]


def sources_of(src: list[int], i: int, n: int) -> list[tuple[int, int | None, float]]:
    """Possible sources of the i-th of n target words: position, word and prior; None is the null word."""
    if not src:
        return [(-1, None, 1.0)]
    near = [math.exp(-4.0 * abs((i + 1) / n - (j + 1) / len(src))) for j in range(len(src))]
    return [(-1, None, 0.08)] + [(j, word, 0.92 * near[j] / sum(near)) for j, word in enumerate(src)]


def table_by_loops(pairs: Pairs, iterations: int = 5) -> Table:
    """EM with dictionaries."""
    table: Table = defaultdict(lambda: 1.0)
    for _ in range(iterations):
        counts: Table = defaultdict(float)
        totals: dict[int | None, float] = defaultdict(float)
        for src, tgt in pairs:
            for i, word in enumerate(tgt):
                joint = [(source, prior * table[source, word]) for _, source, prior in sources_of(src, i, len(tgt))]
                for source, joint_probability in joint:
                    counts[source, word] += joint_probability / sum(value for _, value in joint)
                    totals[source] += joint_probability / sum(value for _, value in joint)
        table = defaultdict(float, {key: count / totals[key[0]] for key, count in counts.items()})
    return table


def best_sources_by_loops(pairs: Pairs, trained_on: Pairs | None = None) -> list[list[int]]:
    """Return the position of the most probable source of each target word."""
    table = table_by_loops(pairs if trained_on is None else trained_on)
    best: list[list[int]] = []
    for src, tgt in pairs:
        best.append([])
        for i, word in enumerate(tgt):
            sources = sources_of(src, i, len(tgt))
            joint = {position: prior * table.get((source, word), 1e-9) for position, source, prior in sources}
            best[-1].append(max(joint, key=joint.__getitem__))
    return best


def random_pairs(seed: int, count: int = 25) -> Pairs:
    rng = random.Random(seed)
    return [
        ([rng.randrange(9) for _ in range(rng.randint(1, 6))], [rng.randrange(9) for _ in range(rng.randint(1, 6))])
        for _ in range(count)
    ]


def language(count: int, seed: int) -> tuple[Pairs, list[set[tuple[int, int]]]]:
    """Sentences translated word by word (w becomes 100 + w), with swapped neighbors, and their true links."""
    rng = random.Random(seed)
    pairs, links = [], []
    for _ in range(count):
        src = rng.sample(range(40), k=rng.randint(2, 9))
        order = list(range(len(src)))
        for position in range(0, len(src) - 1, 2):
            if rng.random() < 0.5:
                order[position], order[position + 1] = order[position + 1], order[position]
        pairs.append((src, [100 + src[position] for position in order]))
        links.append({(source, target) for target, source in enumerate(order)})
    return pairs, links


@pytest.mark.parametrize("seed", range(3))
def test_best_sources_equal_those_of_plain_loops(seed: int) -> None:
    pairs = random_pairs(seed)
    assert best_sources(pairs) == best_sources_by_loops(pairs)


@pytest.mark.parametrize("size", [1, 7, 100])
def test_lexicon_of_chunks_equals_that_of_plain_loops(size: int) -> None:
    pairs, vocab = [*random_pairs(3), ([], [4, 10]), ([2], [])], 11
    passes: list[int] = []

    def read() -> Iterator[Pairs]:
        passes.append(0)
        yield from (pairs[start : start + size] for start in range(0, len(pairs), size))

    lexicon = estimate_lexicon(read, vocab)
    assert len(passes) == PASSES
    expected = {}
    for (source, target), probability in table_by_loops(pairs).items():
        expected[(vocab if source is None else source) * vocab + target] = probability
    assert lexicon.keys.tolist() == sorted(expected)
    assert lexicon.probability.tolist() == pytest.approx([expected[key] for key in sorted(expected)], rel=1e-12)
    by_source: list[list[tuple[float, int]]] = [[] for _ in range(vocab + 1)]
    for key, probability in expected.items():
        by_source[key // vocab].append((-probability, key))
    del by_source[vocab]  # the null word has no best targets
    for best in by_source:
        best.sort()
    for count in (1, 3, 50):
        assert lexicon.best(count).tolist() == sorted(key for best in by_source for _, key in best[:count])


def test_a_saved_aligner_links_other_pairs(tmp_path: Path) -> None:
    """Their words may be unknown, or may not have been seen together."""
    seen, others, vocab = random_pairs(4, count=8), [*random_pairs(5), ([3], [10]), ([10, 1], [2])], 11
    LexicalAligner.train(lambda: [seen], vocab).save(tmp_path / "lexicons")
    forward = best_sources_by_loops(others, seen)
    backward = best_sources_by_loops([(tgt, src) for src, tgt in others], [(tgt, src) for src, tgt in seen])
    expected = [
        {(source, target) for target, source in enumerate(best) if source >= 0 and best_targets[source] == target}
        for best, best_targets in zip(forward, backward, strict=True)
    ]
    assert LexicalAligner.load(tmp_path / "lexicons", vocab).links(others) == expected


def test_the_aligner_learns_a_small_dictionary() -> None:
    pairs, links = language(300, seed=1)
    found = agreed_links(pairs)
    right = sum(len(one & true) for one, true in zip(found, links, strict=True))
    assert right >= 0.99 * sum(map(len, found))
    assert right >= 0.95 * sum(map(len, links))


def test_empty_sentences_and_empty_text_have_no_links() -> None:
    assert agreed_links([]) == []
    assert agreed_links([([], []), ([1], []), ([], [2])]) == [set(), set(), set()]
    assert agreed_links([([], [5]), ([1], [2]), ([1], [2])])[1:] == [{(0, 0)}, {(0, 0)}]


@pytest.mark.slow
def test_links_do_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs, _ = language(300, seed=1)
    found = agreed_links(pairs)
    monkeypatch.setattr(lexical, "_CHUNK_CELLS", 500)
    assert agreed_links(pairs) == found


def test_very_long_pairs_have_no_links() -> None:
    long = list(range(1_100))
    assert agreed_links([(long, long), ([1], [2]), ([1], [2])]) == [set(), {(0, 0)}, {(0, 0)}]
