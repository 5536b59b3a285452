"""SentencePiece models of other programs as tokenizers, compared with SentencePiece."""

from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from nmt.data.encoding import SentenceEncoder
from nmt.data.reused_tokenizers import find_tokenizers
from nmt.errors import UserError
from nmt.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.text.tokenizer import Tokenizers

TEXT = Path(__file__).with_name("sentences.txt").read_text(encoding="utf-8").splitlines()
ODD = [
    "",
    "日本 🙂🙂 x🙂",
    "\uff21\uff22 ½ … ﬁ",
    "a <s> b </s><pad> <unk> c",
    "▁ a  b▁",
    "<2de>hello <sep> x<mask>y",
    "  lead  trail ",
]
SYMBOLS = {"control_symbols": ["<sep>"], "user_defined_symbols": ["<2de>", "<mask>"]}
NAMES = {"unk_piece": "[UNK]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "pad_id": 3, "pad_piece": "[PAD]"}


def train(path: Path, **options: Any) -> sentencepiece.SentencePieceProcessor:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT[::2]), model_prefix=path.with_suffix(""), minloglevel=2, **options
    )
    return sentencepiece.SentencePieceProcessor(model_file=str(path))


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
@pytest.mark.parametrize(
    "options",
    [
        {"vocab_size": 400},
        {"vocab_size": 600, "byte_fallback": True, "normalization_rule_name": "identity", "pad_id": 3},
        {"vocab_size": 400, "normalization_rule_name": "nmt_nfkc_cf", **NAMES},
        {"vocab_size": 400, "pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3, "unk_piece": "[UNK]", **SYMBOLS},
        {"vocab_size": 400, "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, **SYMBOLS},
    ],
)
def test_the_pieces_are_those_of_sentencepiece(algorithm: str, options: dict[str, Any], tmp_path: Path) -> None:
    path, lines = tmp_path / "spm.model", [*TEXT, *ODD]
    original = train(path, model_type=algorithm, **options)
    tokenizer = Tokenizers.load(path).src
    assert tokenizer.pieces([PAD_ID, UNK_ID, BOS_ID, EOS_ID]) == ["<pad>", "<unk>", "<s>", "</s>"]
    specials = [i for i in range(original.get_piece_size()) if original.is_control(i) or original.is_unknown(i)]
    assert tokenizer.vocab_size == 4 + original.get_piece_size() - len(specials)
    for line in lines:
        expected = original.encode(line)
        ids = tokenizer.encode(line)
        pieces = ["<unk>" if original.is_unknown(i) else original.id_to_piece(i) for i in expected]
        assert tokenizer.pieces(ids) == pieces
        assert tokenizer.decode(ids) == original.decode(expected)
    sentences = SentenceEncoder(tokenizer)(TEXT)
    assert sentences.tokens.tolist() == [i for line in TEXT for i in tokenizer.encode(line)]
    assert list(tokenizer.user_symbols()) == options.get("user_defined_symbols", [])
    assert tokenizer.options()["lowercase"] == (options.get("normalization_rule_name") == "nmt_nfkc_cf")
    path.write_bytes(tokenizer.model)
    assert Tokenizers.load(path).src.model == tokenizer.model


def test_a_directory_has_one_model(tmp_path: Path) -> None:
    train(tmp_path / "tokenizer.model", vocab_size=300)
    (tmp_path / "tokenizer.vocab").unlink()
    tokenizers = Tokenizers.load(tmp_path)
    assert (tokenizers.src.vocab_size, tokenizers.joint, find_tokenizers(tmp_path)) == (301, True, tmp_path)


def test_a_directory_has_a_model_per_side(tmp_path: Path) -> None:
    for side, size in (("src", 300), ("tgt", 310)):
        train(tmp_path / f"tokenizer.{side}.model", vocab_size=size)
        (tmp_path / f"tokenizer.{side}.vocab").unlink()
    tokenizers = Tokenizers.load(tmp_path)
    assert (tokenizers.src.vocab_size, tokenizers.tgt.vocab_size, tokenizers.joint) == (301, 311, False)


def test_other_files_and_marks_of_words_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "spm.model"
    for content in (b"", b"the\t-1.5\n"):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"spm\.model is not a SentencePiece model; it must be one; correct the"):
            Tokenizers.load(path)
    for option in ({"add_dummy_prefix": False}, {"treat_whitespace_as_suffix": True}):
        train(path, vocab_size=300, **option)
        with pytest.raises(UserError, match="does not mark the beginning of each word with ▁; it must; train it witho"):
            Tokenizers.load(path)


def test_a_model_of_words_is_an_error(tmp_path: Path) -> None:
    train(tmp_path / "spm.model", vocab_size=30, model_type="word")
    with pytest.raises(UserError, match="is a word model; it must have subwords"):
        Tokenizers.load(tmp_path / "spm.model")


def test_a_control_symbol_with_the_name_of_a_tag_becomes_a_tag(tmp_path: Path) -> None:
    ids = {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3}  # as in this project
    train(tmp_path / "spm.model", vocab_size=300, control_symbols=["<web>"], **ids)
    tokenizer = Tokenizers.load(tmp_path / "spm.model").src.with_symbols(["<web>"])
    assert tokenizer.pieces([tokenizer.tag_id("<web>")]) == ["<web>"]
