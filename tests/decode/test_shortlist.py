"""Shortlists: hand-counted candidates, file verification, and translation."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch_file

from nmt.alignment import pair_chunks
from nmt.alignment.lexical import PASSES, estimate_lexicon
from nmt.data.store import PairStore, PairWriter
from nmt.decode import shortlist as module
from nmt.decode.shortlist import Shortlist, coverage, make_shortlist
from nmt.decode.translator import Translator
from nmt.errors import UserError
from nmt.model.transformer import Transformer
from nmt.recipe import DecodeRecipe, ModelRecipe, TokenizerRecipe
from nmt.special_ids import EOS_ID
from nmt.text.tokenizer import Tokenizers, train_tokenizer
from tests.alignment.test_lexical_alignment import Pairs, language
from tests.decode.copy_model import text_lines

VOCAB = 320
NUM_WORDS = 40  # of the dictionary language


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Tokenizers:
    folder = tmp_path_factory.mktemp("tokenizers")
    joint = train_tokenizer(text_lines(300), TokenizerRecipe(vocab_size=VOCAB), folder / "tokenizer.model")
    return Tokenizers(joint, joint)


@pytest.fixture(scope="module")
def separate(tokenizers: Tokenizers, tmp_path_factory: pytest.TempPathFactory) -> Tokenizers:
    folder = tmp_path_factory.mktemp("separate")
    other = train_tokenizer(text_lines(300, seed=1), TokenizerRecipe(vocab_size=310), folder / "tokenizer.model")
    return Tokenizers(tokenizers.src, other)


def write_pairs(directory: Path, pairs: Pairs) -> PairStore:
    dtype = np.dtype(np.uint16)
    with PairWriter(directory, "train", {"src": dtype, "tgt": dtype}) as writer:
        writer.append(
            "src", np.array([token for src, _ in pairs for token in src]), np.array([len(s) for s, _ in pairs])
        )
        writer.append(
            "tgt", np.array([token for _, tgt in pairs for token in tgt]), np.array([len(t) for _, t in pairs])
        )
    return PairStore(directory, "train")


def corpus(count: int = 200, seed: int = 1) -> Pairs:
    """Return pairs of the dictionary language with ordinary ids: the translation of source token i is 100 + i."""
    first = EOS_ID + 1
    return [([first + w for w in src], [first + w for w in tgt]) for src, tgt in language(count, seed)[0]]


def lists(shortlist: Shortlist) -> list[set[int]]:
    """Return the target tokens of each source token."""
    ends = zip(shortlist.offsets, shortlist.offsets[1:], strict=False)
    return [set(shortlist.pieces[start:end].tolist()) for start, end in ends]


# --- Creation ---------------------------------------------------------------------------------------------------------


def test_lists_have_the_most_probable_tokens_and_the_source_token(
    tokenizers: Tokenizers, separate: Tokenizers, tmp_path: Path
) -> None:
    pairs = corpus()
    store = write_pairs(tmp_path, pairs)
    done: list[int] = []
    made = make_shortlist(store, tokenizers, best=1, frequent=7, progress=done.append)
    assert sum(done) == PASSES * len(pairs)
    special, words = range(EOS_ID + 1), range(EOS_ID + 1, EOS_ID + 1 + NUM_WORDS)
    expected: list[set[int]] = [set() for _ in special]
    expected += [{token, 100 + token} for token in words]
    expected += [{token} for token in range(words.stop, VOCAB)]
    assert lists(made) == expected
    counts = Counter(token for _, tgt in pairs for token in tgt)
    assert made.frequent.tolist() == sorted(counts, key=lambda token: (-counts[token], token))[:7]

    made = make_shortlist(store, separate, best=5, frequent=1_000)
    expected = [set() for _ in range(VOCAB)]
    for key in estimate_lexicon(lambda: [pairs], VOCAB).best(5).tolist():
        expected[key // VOCAB].add(key % VOCAB)
    assert (lists(made), made.tgt_vocab_size, len(made.frequent)) == (expected, 310, len(counts))
    assert {len(candidates) for candidates in expected} == {0, 5}


def test_lists_do_not_depend_on_chunks_or_direction(
    tokenizers: Tokenizers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [*corpus(60), ([], [5]), ([5], [])]
    for name in ("forward", "backward"):
        (tmp_path / name).mkdir()
    forward = write_pairs(tmp_path / "forward", pairs)
    backward = write_pairs(tmp_path / "backward", [(src, tgt[::-1]) for src, tgt in pairs])
    whole = make_shortlist(forward, tokenizers, best=4)
    assert lists(make_shortlist(backward, tokenizers, best=4)) != lists(whole)
    assert lists(make_shortlist(backward, tokenizers, best=4, reverse_target=True)) == lists(whole)
    measured = coverage(whole, forward)
    monkeypatch.setattr(pair_chunks, "CHUNK_CELLS", 50)
    monkeypatch.setattr(module, "_CHUNK_TOKENS", 7)
    chunked = make_shortlist(forward, tokenizers, best=4)
    assert lists(chunked) == lists(whole)
    assert chunked.frequent.tolist() == whole.frequent.tolist()
    assert coverage(whole, forward) == measured


def test_pairs_without_a_source_are_rejected(tokenizers: Tokenizers, tmp_path: Path) -> None:
    store = write_pairs(tmp_path, [([], [5, 6]), ([], [7])])
    with pytest.raises(UserError, match="the training text has no source; a shortlist"):
        make_shortlist(store, tokenizers)


def test_max_pairs_samples_the_whole_corpus(tokenizers: Tokenizers, tmp_path: Path) -> None:
    pairs = [([4 + offset], [104 + offset]) for offset in range(50)]
    read: list[int] = []
    made = make_shortlist(write_pairs(tmp_path, pairs), tokenizers, best=3, max_pairs=5, progress=read.append)
    assert sum(read) == PASSES * 5
    with_translation = [token for token, candidates in enumerate(lists(made)) if candidates - {token}]
    assert with_translation == [4, 16, 28, 40, 53]


def test_candidates_are_those_of_the_source_tokens() -> None:
    shortlist = Shortlist(12, np.array([4, 9]), np.array([0, 0, 2, 3]), np.array([5, 6, 7]))
    found = shortlist.candidates([[1, 1], [2, 1], [0]], [(), [8], [11, 11]])
    assert found.dtype == torch.bool
    assert [row.nonzero().flatten().tolist() for row in found] == [
        [3, 4, 5, 6, 9],
        [3, 4, 5, 6, 7, 8, 9],
        [3, 4, 9, 11],
    ]


def test_coverage_has_the_mean_number_of_candidates_and_the_fraction_found(tmp_path: Path) -> None:
    shortlist = Shortlist(12, np.array([4]), np.array([0, 0, 2, 3]), np.array([5, 6, 7]))
    store = write_pairs(tmp_path, [([1], [5, 5, 7]), ([2, 1], [4])])
    # The candidates are EOS, 4, 5 and 6, and for the second sentence also 7. Only 7 of the first is not found.
    assert coverage(shortlist, store) == ((4 + 5) / 2, 3 / 4)


# --- The file ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def made(tokenizers: Tokenizers, tmp_path: Path) -> Shortlist:
    return make_shortlist(write_pairs(tmp_path, corpus(30)), tokenizers, best=2, frequent=5)


def test_round_trip(made: Shortlist, tokenizers: Tokenizers, tmp_path: Path) -> None:
    path = tmp_path / "lists" / "list"
    path.parent.mkdir()
    for saved in (made, replace(made, frequent=made.frequent[:1])):  # the second replaces the first
        saved.save(path, tokenizers)
        loaded = Shortlist.load(path, tokenizers)
        assert loaded.tgt_vocab_size == VOCAB
        for name in ("frequent", "offsets", "pieces"):
            array = getattr(loaded, name)
            assert array.dtype == np.int32
            assert array.tolist() == getattr(saved, name).tolist()
    assert [file.name for file in path.parent.iterdir()] == ["list"]


def test_equal_shortlists_are_equal_files(made: Shortlist, tokenizers: Tokenizers, tmp_path: Path) -> None:
    """Translation memories and resumed outputs identify a shortlist by the SHA-256 of its file."""
    for number in range(8):
        made.save(tmp_path / str(number), tokenizers, ("en", "de"))
    assert len({path.read_bytes() for path in tmp_path.glob("[0-9]")}) == 1


def load_error(path: Path, tokenizers: Tokenizers) -> str:
    """Return the error of loading a file, which must name the file."""
    with pytest.raises(UserError, match=r"^[^\n]*;[^\n]*;[^\n]*$") as raised:
        Shortlist.load(path, tokenizers)
    assert str(path) in str(raised.value)
    return str(raised.value)


@pytest.mark.slow
def test_damaged_files_are_rejected(made: Shortlist, tokenizers: Tokenizers, tmp_path: Path) -> None:
    path = tmp_path / "list"
    made.save(path, tokenizers)
    whole = path.read_bytes()
    for offset in [*range(0, 900, 5), *range(900, len(whole), 101)]:
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 1 << offset % 8]) + whole[offset + 1 :])
        load_error(path, tokenizers)
    for size in (0, 5, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        load_error(path, tokenizers)


def test_other_files_and_tokenizers_are_rejected(
    made: Shortlist, tokenizers: Tokenizers, separate: Tokenizers, tmp_path: Path
) -> None:
    assert "cannot be read" in load_error(tmp_path / "none", tokenizers)
    assert "cannot be read" in load_error(tmp_path, tokenizers)
    save_file({"weight": np.zeros(3)}, tmp_path / "model.safetensors")
    assert "is not a shortlist" in load_error(tmp_path / "model.safetensors", tokenizers)
    save_torch_file({"weight": torch.zeros(3, dtype=torch.bfloat16)}, tmp_path / "bf16.safetensors")
    assert "is not a shortlist" in load_error(tmp_path / "bf16.safetensors", tokenizers)
    made.save(tmp_path / "list", tokenizers)
    assert "belongs to other tokenizers" in load_error(tmp_path / "list", separate)
    assert "belongs to other tokenizers" in load_error(tmp_path / "list", Tokenizers(separate.tgt, separate.tgt))


def test_a_pipe_is_an_error(tokenizers: Tokenizers, tmp_path: Path) -> None:
    """Opening it would wait forever."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe is a pipe"):
        Shortlist.load(tmp_path / "pipe", tokenizers)


def test_other_languages_are_rejected(made: Shortlist, tokenizers: Tokenizers, tmp_path: Path) -> None:
    made.save(tmp_path / "old", tokenizers)
    Shortlist.load(tmp_path / "old", tokenizers, ("de", "en"))
    made.save(tmp_path / "list", tokenizers, ("en", "de"))
    Shortlist.load(tmp_path / "list", tokenizers)
    Shortlist.load(tmp_path / "list", tokenizers, ("en", "de"))
    with pytest.raises(UserError, match="list was made from a run that translates from en to de; the model translates"):
        Shortlist.load(tmp_path / "list", tokenizers, ("de", "en"))


# --- The translator ---------------------------------------------------------------------------------------------------


def translator(tokenizers: Tokenizers, **decode: object) -> Translator:
    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_ff": 32, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1}
    recipe = ModelRecipe.model_validate(sizes | {"max_positions": 48})
    model = Transformer(recipe, VOCAB, VOCAB).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    options = DecodeRecipe.model_validate({"beam_size": 4, "max_extra_tokens": 4} | decode)
    return Translator(
        model.double(), tokenizers, options, max_positions=48, unicode_form="NFC", device=torch.device("cpu")
    )


def ids(tokenizers: Tokenizers, pieces: Sequence[str]) -> set[int]:
    known = {piece: i for i, piece in enumerate(tokenizers.tgt.pieces(range(VOCAB)))}
    return {known[piece] for piece in pieces}


@pytest.mark.slow
def test_outputs_have_only_candidates_of_their_line(made: Shortlist, tokenizers: Tokenizers, tmp_path: Path) -> None:
    made.save(tmp_path / "list", tokenizers)
    lines, plain = text_lines(30), translator(tokenizers)
    listed = translator(tokenizers, shortlist=tmp_path / "list")

    def candidates(line: str) -> set[int]:
        [mask] = made.candidates([tokenizers.src.encode(line)], [()])
        return set(mask.nonzero().flatten().tolist())

    found = [best for best, *_ in listed.translate_n_best(lines)]
    for line, best in zip(lines, found, strict=True):
        assert ids(tokenizers, best.pieces) <= candidates(line)
        assert listed.translate([line]) == [best.text]
    texts = [best.text for best in found]
    assert sum(text != unrestricted for text, unrestricted in zip(texts, plain.translate(lines), strict=True)) > 20
    small = translator(tokenizers, shortlist=tmp_path / "list", batch_tokens=40)
    assert small.translate(lines) == texts
    assert listed.translate(["", " "]) == ["", ""]
    sampling = translator(tokenizers, shortlist=tmp_path / "list", sampling=True, n_best=5)
    for line, samples in zip(lines[:4], sampling.translate_n_best(lines[:4]), strict=True):
        assert len(samples) == 5
        assert all(ids(tokenizers, sample.pieces) <= candidates(line) for sample in samples)


def test_the_tokens_of_all_spellings_of_a_partial_word_are_candidates(tokenizers: Tokenizers, tmp_path: Path) -> None:
    empty = Shortlist(VOCAB, np.array([300]), np.zeros(VOCAB + 1, np.int32), np.zeros(0, np.int32))
    empty.save(tmp_path / "list", tokenizers)
    for beam_size in (1, 4):
        listed = translator(tokenizers, shortlist=tmp_path / "list", beam_size=beam_size)
        for prefix in ("the do", "quick", "zeb\u00e9"):
            ((found,),) = listed.translate_n_best(["a cat"], 1, [prefix], partial_word=True)
            assert found.text.startswith(prefix)


@pytest.mark.slow
def test_constraint_tokens_are_candidates(tokenizers: Tokenizers, tmp_path: Path) -> None:
    empty = Shortlist(VOCAB, np.array([300]), np.zeros(VOCAB + 1, np.int32), np.zeros(0, np.int32))
    empty.save(tmp_path / "list", tokenizers)
    listed = translator(tokenizers, shortlist=tmp_path / "list")
    required = ids(tokenizers, tokenizers.tgt.pieces(tokenizers.tgt.encode("red tree")))
    lines = ["the old dog", "a cat"]
    for found in (
        listed.translate_n_best(lines, prefixes=["red tree", ""]),
        listed.translate_n_best(lines, required=[["red tree"], []]),
    ):
        assert "red tree" in found[0][0].text
        assert ids(tokenizers, found[0][0].pieces) <= {300} | required
        assert ids(tokenizers, found[1][0].pieces) <= {300}
    for value, possible in ((50.0, {300} | required), (-50.0, {300})):
        biased = translator(tokenizers, shortlist=tmp_path / "list", bias={"red tree": value})
        outputs = [ids(tokenizers, best.pieces) for best, *_ in biased.translate_n_best(lines)]
        assert all(pieces <= possible for pieces in outputs)
        assert any(required <= pieces for pieces in outputs) == (value > 0)
    together = translator(tokenizers, shortlist=tmp_path / "list", require=["red tree"])
    assert all("red tree" in text for text in together.translate(lines))


def test_a_changed_file_does_not_change_translators_with_other_options(tokenizers: Tokenizers, tmp_path: Path) -> None:
    """A server makes them while it runs, and its translation memory has the digest of the first file."""
    path = tmp_path / "list"
    nothing = (np.zeros(VOCAB + 1, np.int32), np.zeros(0, np.int32))
    Shortlist(VOCAB, np.array([300]), *nothing).save(path, tokenizers)
    listed = translator(tokenizers, shortlist=path, min_tokens=3)
    texts = listed.translate(["a cat"])
    Shortlist(VOCAB, np.array([301]), *nothing).save(path, tokenizers)
    assert translator(tokenizers, shortlist=path, min_tokens=3).translate(["a cat"]) != texts
    assert listed.with_decode(DecodeRecipe(beam_size=5)).translate(["a cat"]) == texts
    path.unlink()
    assert listed.with_constraints(None, ["dog"]).translate(["a cat"]) == texts
    unlisted = listed.with_decode(DecodeRecipe(shortlist=None))
    assert unlisted.translate(["a cat"]) == translator(tokenizers, min_tokens=3).translate(["a cat"])
    with pytest.raises(UserError, match="cannot be read as a shortlist"):
        unlisted.with_decode(DecodeRecipe(shortlist=path))
