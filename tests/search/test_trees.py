"""Search for well-formed trees against enumeration of all outputs."""

import itertools
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.decode.shortlist import Shortlist
from nmt.errors import UserError
from nmt.model.transformer import Transformer
from nmt.packing.packed import PackedSequences
from nmt.recipe import DecodeRecipe, ModelRecipe, TokenizerRecipe, parse_recipe
from nmt.search.beam_search import beam_search
from nmt.search.hypothesis import Hypothesis
from nmt.search.options import SearchOptions
from nmt.search.trees import TreeConstraint, TreeProgress, TreeTokens
from nmt.special_ids import EOS_ID
from nmt.text.tokenizer import Tokenizers, train_tokenizers
from nmt.text.trees import brackets, read_tree
from tests.decode.copy_model import make_translator
from tests.search.test_continuous_batching import RefillableTableModel
from tests.search.test_search import Prefix, TableModel, random_table, reference_penalty

SYMBOLS = ("XX", ".", "(S", ")S", "(NP", ")NP", "other")
TOKENS = TreeTokens(4 + len(SYMBOLS), (4, 5), ((6, 7), (8, 9)))
IDS = {symbol: 4 + index for index, symbol in enumerate(SYMBOLS)}


def is_tree(text: str, num_words: int) -> bool:
    """Return whether a text is one tree by the rules of the metric, without empty brackets."""
    tokens = text.split()
    try:
        _, found = brackets(text)
    except ValueError:
        return False
    depths = [*itertools.accumulate(token.startswith("(") - token.startswith(")") for token in tokens)]
    is_single = num_words == 1 == len(tokens) or 0 not in depths[:-1]
    has_empty = any(left[0] == "(" and right[0] == ")" for left, right in itertools.pairwise(tokens))
    return len(found) == num_words and is_single and not has_empty


@cache
def all_trees(num_words: int, longest: int) -> list[Prefix]:
    symbols = [symbol for symbol in SYMBOLS if symbol != "other"]
    sequences = itertools.chain.from_iterable(itertools.product(symbols, repeat=n) for n in range(1, longest + 1))
    return [tuple(IDS[s] for s in sequence) for sequence in sequences if is_tree(" ".join(sequence), num_words)]


def search(model: TableModel, sizes: list[int], options: SearchOptions, **keywords: Any) -> list[list[Hypothesis]]:
    src = PackedSequences.from_lists([[*range(4, 4 + size), EOS_ID] for size in sizes])
    return beam_search(model, src, options, trees=TreeConstraint(TOKENS, sizes, torch.device("cpu")), **keywords)


def progress_of(num_words: int, limit: int) -> TreeProgress:
    constraint = TreeConstraint(TOKENS, [num_words], torch.device("cpu"))
    return constraint.start(torch.tensor([0]), torch.tensor([limit + 1]), limit + 1, 1)


def possible(progress: TreeProgress) -> set[int]:
    log_probs = torch.zeros(1, 1, TOKENS.vocab_size)
    progress.apply(log_probs)
    return {token for token, value in enumerate(log_probs[0, 0].tolist()) if value > -math.inf}


def outputs(progress: TreeProgress, output: Prefix = ()) -> Iterator[Prefix]:
    """Yield all outputs that the automaton allows."""
    following = possible(progress)
    assert following, "every beginning can be completed"
    for token in following:
        if token == EOS_ID:
            yield output
        else:
            yield from outputs(progress.extend(torch.tensor([[0]]), torch.tensor([[token]])), (*output, token))


@pytest.mark.slow
@pytest.mark.parametrize(("num_words", "longest"), [(1, 5), (2, 6), (3, 5)])
def test_the_automaton_allows_exactly_the_trees_that_fit(num_words: int, longest: int) -> None:
    assert sorted(outputs(progress_of(num_words, longest))) == sorted(all_trees(num_words, longest))


@pytest.mark.parametrize(
    ("beginning", "impossible"),
    [
        ("", "XX )S . </s>"),  # two words need a bracket
        ("(S", ")S )NP </s>"),  # an empty bracket
        ("(S XX", ")S )NP </s>"),  # a missing word, another label
        ("(S XX XX", "XX . (S (NP )NP </s>"),  # too many words
        ("(S (NP XX XX", ")S </s>"),  # crossing brackets
        ("(S (NP XX )NP", ")S )NP </s>"),
        ("(S XX XX )S", "XX . (S )S (NP )NP"),  # a second tree
    ],
)
def test_malformed_trees_are_impossible(beginning: str, impossible: str) -> None:
    progress = progress_of(2, 20)
    for symbol in beginning.split():
        assert IDS[symbol] in possible(progress)
        progress = progress.extend(torch.tensor([[0]]), torch.tensor([[IDS[symbol]]]))
    assert not possible(progress) & {(IDS | {"</s>": EOS_ID})[symbol] for symbol in impossible.split()}
    assert IDS["other"] not in possible(progress)


def test_no_bracket_opens_that_does_not_fit() -> None:
    assert all_trees(3, 4) == [] and possible(progress_of(3, 4)) == set()
    progress = progress_of(3, 5).extend(torch.tensor([[0]]), torch.tensor([[IDS["(S"]]]))
    assert possible(progress) == {IDS["XX"], IDS["."]}


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    alpha=st.sampled_from([0.0, 0.6]),
)
def test_a_large_beam_finds_the_best_tree(seed: int, sizes: list[int], alpha: float) -> None:
    table = random_table(seed, len(SYMBOLS))
    options = SearchOptions(beam_size=500, n_best=5, length_alpha=alpha, max_extra_tokens=2)
    for size, found in zip(sizes, search(TableModel(table), sizes, options), strict=True):
        source = (*range(4, 4 + size), EOS_ID)
        scored = []
        for tree in all_trees(size, size + 2):
            ended = (*tree, EOS_ID)
            log_prob = math.fsum(table(source, ended[:i])[token] for i, token in enumerate(ended))
            scored.append((log_prob / reference_penalty(len(ended), options), tree))
        best = sorted(scored, reverse=True)[:5]
        assert [tuple(hypothesis.tokens) for hypothesis in found] == [tree for _, tree in best]
        assert [hypothesis.score for hypothesis in found] == pytest.approx([score for score, _ in best], rel=1e-5)


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_results_do_not_depend_on_the_batch(beam_size: int, batch_size: int) -> None:
    model, sizes = RefillableTableModel(random_table(3, len(SYMBOLS))), [5, 1, 4, 2, 5, 3, 1]
    options = SearchOptions(beam_size=beam_size, n_best=beam_size, max_extra_tokens=9)
    together = search(model, sizes, options, batch_size=batch_size)
    assert together == [found for size in sizes for found in search(TableModel(model.table), [size], options)]
    for size, found in zip(sizes, together, strict=True):
        assert found
        for hypothesis in found:
            assert is_tree(" ".join(SYMBOLS[token - 4] for token in hypothesis.tokens), size)


# --- Tokens ----------------------------------------------------------------------------------------------------------

TREES = [
    "(ROOT (S (NP (DT The) (NN dog)) (VP (VBZ sleeps)) (. .)))",
    "(ROOT (NN Yes))",
    "(ROOT (S (`` ``) (NP (PRP I)) (VP (VBP do) (ADVP (RB so))) (, ,) ('' '') (. .)))",
    "(ROOT (NP (NP (NP (NNS friends)))))",
    "((S (NP (NN a))) (X (NN b)))",
]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Tokenizers:
    trees = [read_tree(line) for line in TREES]
    pairs = [(" ".join(tree.words), tree.linearized) for tree in trees]
    symbols = sorted({symbol for _, target in pairs for symbol in target.split()})
    recipe = TokenizerRecipe(vocab_size=300, joint=False)
    return train_tokenizers(lambda: pairs, recipe, tmp_path_factory.mktemp("trees"), tgt_words=symbols)


@pytest.mark.parametrize("line", TREES)
def test_every_tree_is_possible(line: str, tokenizers: Tokenizers) -> None:
    tree = read_tree(line)
    tokens, num_words = tokenizers.tgt.encode(tree.linearized), len(tree.words)
    constraint = TreeConstraint(TreeTokens.find(tokenizers), [num_words], torch.device("cpu"))
    progress = constraint.start(torch.tensor([0]), torch.tensor([len(tokens) + 1]), 40, 1)
    for token in [*tokens, EOS_ID]:
        log_probs = torch.zeros(1, 1, tokenizers.tgt.vocab_size)
        progress.apply(log_probs)
        assert log_probs[0, 0, token] == 0
        progress = progress.extend(torch.tensor([[0]]), torch.tensor([[token]]))


@pytest.mark.parametrize("beam_size", [1, 3])
def test_translations_are_trees_with_the_words_of_the_line(beam_size: int, tokenizers: Tokenizers) -> None:
    model: Any = TableModel(random_table(1, tokenizers.tgt.vocab_size - 4))
    lines = ["Unknown words-with-dashes: 3.5 !", "Yes", "( « Ünïcode 漢字 » )", "the XX (NP )S dog . "]
    translator = make_translator(model, tokenizers, beam_size=beam_size, max_extra_tokens=20, trees=True)
    for line, tree in zip(lines, translator.translate(lines), strict=True):
        assert is_tree(tree, len(line.split())), tree


@pytest.mark.slow
def test_a_prefix_begins_a_tree(tokenizers: Tokenizers) -> None:
    model: Any = TableModel(random_table(1, tokenizers.tgt.vocab_size - 4))
    line, prefix = "the old dog .", "(S (NP XX"
    translator = make_translator(model, tokenizers, beam_size=3, max_extra_tokens=20, trees=True)
    (tree,) = translator.translate([line], [prefix])
    assert tree.startswith(prefix)
    for text in [tree, *(one.text for one in translator.alternatives(line, prefix, 300))]:
        assert is_tree(text, len(line.split())), text
    for other in ("(S )NP", "dog", "XX"):
        with pytest.raises(UserError, match="no translation is possible"):
            translator.translate([line], [other])


def test_a_shortlist_has_the_tokens_of_trees(tokenizers: Tokenizers, tmp_path: Path) -> None:
    size, none = tokenizers.tgt.vocab_size, np.zeros(0, np.int32)
    Shortlist(size, none, np.zeros(tokenizers.src.vocab_size + 1, np.int32), none).save(tmp_path / "list", tokenizers)
    recipe = ModelRecipe(d_model=8, d_ff=8, num_heads=2, num_decoder_layers=1, tied_embeddings="none")
    model: Any = Transformer(recipe, tokenizers.src.vocab_size, size).eval()
    translator = make_translator(model, tokenizers, trees=True, shortlist=tmp_path / "list")
    (tree,) = translator.translate(["the old dog"])
    assert is_tree(tree, 3)


def test_other_tokenizers_are_an_error(tokenizers: Tokenizers) -> None:
    with pytest.raises(
        UserError, match=r"no tokens for brackets, which decode\.trees needs; train it on corpora of kind"
    ):
        TreeTokens.find(Tokenizers(tokenizers.src, tokenizers.src))


RECIPE = """
name = "parsing"
src_lang = "en"
tgt_lang = "zxx"
data = { train = [{ kind = "trees", path = "t" }], valid = [{ kind = "trees", path = "v" }] }
tokenizer.joint = false
model.tied_embeddings = "decoder"
decode.trees = true
"""


@pytest.mark.parametrize(
    "option",
    [
        "tokenizer.joint=true",
        "data.reverse_target=true",
        "data.context=1",
        "data.train=[{kind='text',src='a',tgt='b'}]",
    ],
)
def test_recipes_for_other_text_are_an_error(option: str) -> None:
    assert parse_recipe(RECIPE).decode.trees
    with pytest.raises(UserError, match=r"decode\.trees has no effect on this text; it needs corpora of kind 'trees'"):
        parse_recipe(RECIPE, [option])


def test_trees_are_searched_not_sampled() -> None:
    with pytest.raises(ValueError, match=r"decode\.trees has no effect with decode\.sampling"):
        DecodeRecipe(trees=True, sampling=True)
