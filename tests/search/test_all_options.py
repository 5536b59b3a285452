"""Search with all options, separately and together, against exhaustive enumeration and the reference beam."""

import math
import random
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.errors import UserError
from nmt.packing.packed import PackedSequences
from nmt.recipe import DecodeRecipe
from nmt.search.beam_search import beam_search
from nmt.search.hypothesis import Hypothesis
from nmt.search.options import SearchOptions
from tests.search.reference_search import Task, beam_outputs, best_outputs
from tests.search.test_search import Prefix, TableModel, alphas, assert_same, penalties, random_table, source_of, zeros

WORDS = (4, 5)

phrases = st.lists(st.sampled_from(WORDS), min_size=1, max_size=2).map(tuple)
some_phrases = st.one_of(st.just(()), st.lists(phrases, max_size=2).map(tuple))
prefixes = st.one_of(st.just(()), st.lists(st.sampled_from(WORDS), max_size=2).map(tuple))
bias_values = st.sampled_from((-2.0, -0.3, 0.5, 1.7, 6.0))
requirements = st.one_of(
    st.just(()), st.lists(st.lists(phrases, min_size=1, max_size=3).map(tuple), max_size=2).map(tuple)
)
biases = st.one_of(st.just(()), st.lists(st.tuples(phrases, bias_values), max_size=3).map(tuple))


def sometimes(off: Any, on: Any) -> st.SearchStrategy[Any]:
    """Return the strategy of an option that is inactive half of the time, to test options separately and together."""
    return st.one_of(st.just(off), on)


search_options = st.fixed_dictionaries(
    {
        "length_penalty": penalties,
        "length_alpha": alphas,
        "max_extra_tokens": st.integers(0, 2),
        "max_length_ratio": sometimes(math.inf, st.sampled_from((0.5, 1.0))),
        "max_tokens": sometimes(None, st.integers(0, 4)),
        "min_tokens": sometimes(0, st.integers(1, 4)),
        "min_length_ratio": sometimes(0.0, st.sampled_from((0.5, 1.5))),
        "no_repeat_ngram": sometimes(0, st.integers(1, 3)),
        "forbidden": some_phrases,
        "bias": biases,
    }
)


stops: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    ({}, {"stop": "first"}, {"stop": "patience", "patience": 0.5}, {"stop": "patience", "patience": 2.0})
)


def tasks_of(
    seed: int, lengths: Sequence[int], zeros: float, words: int, options: SearchOptions, constraints: Sequence[Any]
) -> list[Task]:
    table = random_table(seed, words, zeros)
    return [
        Task(table, source_of(length, name), options, *constraint)
        for name, (length, constraint) in enumerate(zip(lengths, constraints, strict=False))
    ]


def search_together(tasks: Sequence[Task]) -> list[list[Hypothesis]]:
    """Search tasks with the same table and options as one batch."""
    model = TableModel(tasks[0].table)
    sources = PackedSequences.from_lists([task.source for task in tasks])
    prefixes, required = [task.prefix for task in tasks], [task.required for task in tasks]
    return beam_search(model, sources, tasks[0].options, prefixes, required)


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    lengths=st.lists(st.integers(0, 2), min_size=1, max_size=3),
    zeros=zeros,
    n_best=st.integers(1, 4),
    chosen=search_options,
    constraints=st.lists(st.tuples(prefixes, requirements), min_size=3, max_size=3),
)
def test_exhaustive_beam_finds_the_optimum_with_all_options(
    seed: int, lengths: list[int], zeros: float, n_best: int, chosen: dict[str, Any], constraints: list[Any]
) -> None:
    tasks = tasks_of(
        seed, lengths, zeros, len(WORDS), SearchOptions(beam_size=64, n_best=n_best, **chosen), constraints
    )
    assert all(task.longest <= 6 for task in tasks)  # 2 ** 6 outputs
    for task, found in zip(tasks, search_together(tasks), strict=True):
        assert_same(found, best_outputs(task), task.table, task.source, task.options)


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    lengths=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    zeros=zeros,
    words=st.integers(2, 6),
    width=st.integers(1, 4),
    groups=sometimes(1, st.integers(2, 3)),
    diversity_penalty=st.sampled_from((0.0, 0.5, 3.0)),
    data=st.data(),
    chosen=search_options,
    constraints=st.lists(st.tuples(prefixes, requirements), min_size=4, max_size=4),
)
def test_outputs_equal_the_reference_with_all_options(
    seed: int,
    lengths: list[int],
    zeros: float,
    words: int,
    width: int,
    groups: int,
    diversity_penalty: float,
    data: st.DataObject,
    chosen: dict[str, Any],
    constraints: list[Any],
) -> None:
    n_best = data.draw(st.integers(1, width * groups))
    given_options = {"beam_groups": groups, "diversity_penalty": diversity_penalty, **chosen, **data.draw(stops)}
    given_options["max_extra_tokens"] += data.draw(st.integers(0, 4))
    options = SearchOptions(beam_size=width * groups, n_best=n_best, **given_options)
    tasks = tasks_of(seed, lengths, zeros, words, options, constraints)
    for task, found in zip(tasks, search_together(tasks), strict=True):
        assert_same(found, beam_outputs(task), task.table, task.source, task.options)


def test_canceling_bias_is_compared_within_the_rounding_of_its_addends() -> None:
    """A bias of 12 and a log-probability of -12.1: the float32 score differs from the reference by 1.3e-6."""
    options = SearchOptions(3, 3, "none", max_extra_tokens=4, bias=(((5,), 6.0), ((4,), 6.0)))
    (task,) = tasks_of(423342474, [0], 0.0, 3, options, [((), ())])
    (found,), expected = search_together([task]), beam_outputs(task)
    assert_same(found, expected, task.table, task.source, options)
    (index,) = [i for i, (score, _, _) in enumerate(expected) if abs(score) < 0.1]
    assert abs(found[index].score - expected[index][0]) > 1e-6
    for addend in (12.0, *found[index].token_log_probs):
        wrong = replace(found[index], score=found[index].score + 1e-5 * addend)
        if abs(addend) > 1.0:
            with pytest.raises(AssertionError):
                assert_same([*found[:index], wrong, *found[index + 1 :]], expected, task.table, task.source, options)


# --- Results do not depend on the rest of the batch -------------------------------------------------------------------

BATCH_OPTIONS: list[dict[str, Any]] = [
    {"bias": (((4, 5), 2.0), ((6,), -1.1), ((5,), 0.7))},
    {"beam_groups": 2, "diversity_penalty": 0.8},
    {"beam_groups": 4},
    {"stop": "first"},
    {"stop": "patience", "patience": 1.5, "beam_groups": 2},
    {"beam_size": 1, "n_best": 1},
    {"bias": (((4,), 1.3),), "beam_groups": 2, "no_repeat_ngram": 2, "forbidden": ((7, 7),)},
]


@pytest.mark.slow
@pytest.mark.parametrize("chosen", BATCH_OPTIONS, ids=lambda chosen: "+".join(chosen))
def test_results_do_not_depend_on_the_batch_with_any_option(chosen: dict[str, Any]) -> None:
    options = SearchOptions(**({"beam_size": 4, "n_best": 3, "max_extra_tokens": 5} | chosen))
    constraints: list[tuple[Prefix, tuple[tuple[Prefix, ...], ...]]] = [
        ((), ()),
        ((), (((4, 5), (8, 8, 8)), ((5, 6, 7),))),
        ((6, 6), ()),
        ((), (((8,),),)),
        ((4,), (((5, 4),), ((9, 9, 9), (8, 9)), ((4, 5),))),
    ]
    tasks = tasks_of(3, [3, 0, 7, 1, 3, 5, 2, 2, 9, 4], 0.2, 6, options, constraints * 2)
    alone = [search_together([task])[0] for task in tasks]
    rng = random.Random(0)
    for _ in range(5):
        indices = rng.sample(range(len(tasks)), k=rng.randint(2, len(tasks)))
        assert search_together([tasks[i] for i in indices]) == [alone[i] for i in indices]  # bit-identical
    assert search_together([tasks[4], tasks[1], tasks[4]]) == [alone[4], alone[1], alone[4]]


def test_inactive_options_are_bit_identical() -> None:
    """A diversity penalty with one group, and required phrases of other sentences."""
    options = SearchOptions(beam_size=4, n_best=4, max_extra_tokens=5)
    plain = tasks_of(1, [3, 0, 7, 2], 0.2, 6, options, [((), ())] * 4)
    expected = search_together(plain)
    one_group = replace(options, beam_groups=1, diversity_penalty=9.0)
    assert search_together([replace(task, options=one_group) for task in plain]) == expected
    with_required = [*plain, replace(plain[1], required=(((4, 5, 6),), ((7,), (8, 4))))]
    assert search_together(with_required)[:4] == expected


# --- Options ---------------------------------------------------------------------------------------------------------


def test_recipe_options_are_applied() -> None:
    same: dict[str, Any] = {  # names and values are the same in the recipe
        "beam_size": 6,
        "n_best": 2,
        "length_penalty": "power",
        "length_alpha": 0.9,
        "stop": "patience",
        "patience": 3.0,
        "max_extra_tokens": 7,
        "max_length_ratio": 1.5,
        "min_tokens": 2,
        "min_length_ratio": 0.5,
        "no_repeat_ngram": 3,
        "beam_groups": 3,
        "diversity_penalty": 0.7,
    }
    phrases: dict[str, Any] = {"forbidden": ((7,),), "bias": (((4, 5), -1.0),)}
    expected = SearchOptions(**same, **phrases, max_tokens=99, max_own_tokens=40, separator=9)
    assert all(getattr(expected, field.name) != field.default for field in fields(expected)), "none is a default"
    recipe = DecodeRecipe(**same, max_tokens=40)
    assert SearchOptions.from_recipe(recipe, 99, [[7], []], [([4, 5], -1.0), ([], 3.0)], 9) == expected
    assert SearchOptions.from_recipe(DecodeRecipe(sampling=True, n_best=9)).beam_size == 9, "the number of samples"


@pytest.mark.parametrize(
    ("wrong", "option"),
    [
        ({"beam_size": 0}, "n_best"),
        ({"n_best": 0}, "n_best"),
        ({"beam_size": 2, "n_best": 3}, "n_best"),
        ({"beam_size": 4, "beam_groups": 3}, "beam_groups"),
        ({"beam_groups": 0}, "beam_groups"),
    ],
)
def test_invalid_options_are_errors(wrong: dict[str, Any], option: str) -> None:
    with pytest.raises(UserError, match=rf"^{option} must [^\n]*, got [^\n;]*(; change one of them)?$"):
        SearchOptions(**wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"beam_size": 4, "beam_groups": 3}, "beam_size is 4; it must be a multiple of decode.beam_groups"),
        ({"sampling": True, "require": ["word"]}, "require has no effect with decode.sampling"),
        ({"sampling": True, "bias": {"word": 1.0}}, "bias has no effect with decode.sampling"),
        ({"bias": {"word": math.nan}}, "bias.word = nan; it must be"),
        ({"bias": {"word": 1e300}}, "bias.word = 1e[+]300; it must be"),
        ({"diversity_penalty": 1e300}, "diversity_penalty = 1e[+]300; it must be"),
        ({"length_alpha": 10.5}, "length_alpha = 10.5; it must be"),
    ],
)
def test_invalid_recipes_are_errors(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DecodeRecipe(**wrong)
