"""Import of Marian models made by transformers or exported by nmt, compared with transformers."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from safetensors.torch import load_file, save_file

from nmt.checkpoint import load_model
from nmt.decode.translator import Translator
from nmt.errors import UserError
from nmt.export.bundle import ExportOptions, export_model
from nmt.export.marian import import_marian, read_marian
from nmt.export.packages import load_package
from nmt.export.parity import load_huggingface
from nmt.grammar import ToyPair
from nmt.model.layers import sinusoids
from nmt.packing.packed import PackedSequences
from nmt.recipe import TERM_MARKERS, Context, DecodeRecipe, GlossaryMode
from nmt.special_ids import BOS_ID, EOS_ID, PAD_ID
from nmt.text.tokenizer import Tokenizers
from tests.export.conftest import MakeModel
from tests.export.rounding import perturbed_copies, stable_lines
from tests.extras import needs_transformers

GREEDY = DecodeRecipe(beam_size=1, length_penalty="none", max_extra_tokens=10)


def train_subwords(lines: list[str], path: Path, **options: Any) -> list[str]:
    """Train a model with SentencePiece's default special tokens and normalization; return its ordinary pieces."""
    with path.open("wb") as writer:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=writer, minloglevel=2, **options
        )
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [processor.id_to_piece(i) for i in range(3, processor.get_piece_size())]


@pytest.fixture(scope="module", params=[{}, {"share": False, "scale": False}, {"tie": False}], ids=str)
def marian(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, pairs: list[ToyPair]) -> Path:
    """A random model saved by transformers, with a vocabulary like those of OPUS models: two subword models, a
    `vocab.json` that lacks some pieces, EOS first and the padding token last."""
    folder = tmp_path_factory.mktemp("marian")
    src = train_subwords([pair.src for pair in pairs], folder / "source.spm", vocab_size=150)
    tgt = train_subwords([pair.tgt for pair in pairs], folder / "target.spm", vocab_size=170)
    pieces = dict.fromkeys(["</s>", "<unk>", *src[:-4], *tgt, ">>deu<<", "ß", "<pad>"])
    pieces["<pad>"] = pieces.pop("<pad>")
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    names = {"tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "de"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    transformers = load_package("transformers")
    config = transformers.MarianConfig(
        vocab_size=len(pieces),
        d_model=32,
        encoder_layers=2,
        decoder_layers=1,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        activation_function="swish",
        scale_embedding=request.param.get("scale", True),
        share_encoder_decoder_embeddings=request.param.get("share", True),
        tie_word_embeddings=request.param.get("tie", True),
        max_position_embeddings=256,
        pad_token_id=len(pieces) - 1,
        decoder_start_token_id=len(pieces) - 1,
        eos_token_id=0,
        forced_eos_token_id=0,
        init_std=0.4 if request.param.get("tie", True) else 0.3,  # parity of larger log-probabilities is worse
    )
    torch.manual_seed(2)
    model = transformers.MarianMTModel(config).eval()
    model.final_logits_bias.normal_()
    model.save_pretrained(folder)
    return folder


def expected_translations(directory: Path, lines: list[str], length: int) -> list[list[str]]:
    """Return the pieces of greedy translations by transformers."""
    model, tokenizer = load_huggingface(directory)
    batch = tokenizer(lines, padding=True, return_tensors="pt")
    suppressed = [tokenizer.pad_token_id, tokenizer.unk_token_id, model.config.decoder_start_token_id]
    ids = model.generate(**batch, num_beams=1, do_sample=False, max_new_tokens=length, suppress_tokens=suppressed)
    eos = tokenizer.eos_token_id
    rows = [row[1:].tolist() for row in ids]
    return [tokenizer.convert_ids_to_tokens(row[: row.index(eos)] if eos in row else row) for row in rows]


@pytest.mark.slow
@needs_transformers
def test_translations_match_transformers(marian: Path, lines: list[str], tmp_path: Path) -> None:
    import_marian(marian, tmp_path / "model")
    loaded = load_model(tmp_path / "model", torch.device("cpu"))
    assert (loaded.metadata.src_lang, loaded.metadata.tgt_lang) == ("en", "de")
    assert (loaded.model.recipe.activation, loaded.model.recipe.output_bias) == ("swish", True)
    texts = [*lines, "☃ unknown ☃☃", "ßo", ">>deu<< The dog", "ﬁne ½"]
    ours = Translator.load(tmp_path / "model", "cpu", "fp32", GREEDY).translate_n_best(texts)
    length = 12  # nmt's maximum length depends on the source, and transformers forces EOS as the last token
    theirs = expected_translations(marian, texts, length)
    copies = perturbed_copies(tmp_path / "model", tmp_path)
    for number in stable_lines(copies, GREEDY, texts):
        assert ours[number][0].pieces[: length - 1] == theirs[number][: length - 1]
    assert len({tuple(pieces) for pieces in theirs}) > len(texts) // 2


@pytest.mark.slow
@needs_transformers
def test_log_probabilities_match_transformers(marian: Path, lines: list[str], tmp_path: Path) -> None:
    import_marian(marian, tmp_path / "model")
    loaded, tokenizers = load_model(tmp_path / "model", torch.device("cpu")), Tokenizers.load(tmp_path / "model")
    model, tokenizer = load_huggingface(marian)
    for line in lines[:5]:
        theirs = model(
            **tokenizer(line, return_tensors="pt"),
            decoder_input_ids=torch.tensor([[model.config.decoder_start_token_id, 7, 11]]),
        ).logits.log_softmax(dim=-1)[0]
        names = tokenizers.tgt.pieces(range(tokenizers.tgt.vocab_size))
        prefix = [names.index(piece) for piece in tokenizer.convert_ids_to_tokens([7, 11])]
        src = PackedSequences.from_lists([[*tokenizers.src.encode(line), EOS_ID]])
        hidden = loaded.model(src, PackedSequences.from_lists([[2, *prefix]]))
        ours = loaded.model.logits(hidden).log_softmax(dim=-1)
        order = {
            piece: number for piece, number in tokenizer.get_vocab().items() if piece in names and piece != "<pad>"
        }
        assert len(order) == tokenizers.tgt.vocab_size - 2  # all but BOS and PAD
        columns = torch.tensor([names.index(piece) for piece in order])
        difference = ours[:, columns] - theirs[:, torch.tensor([*order.values()])]
        assert difference.abs().max() < 1e-4


@needs_transformers
def test_language_codes_are_tags(marian: Path, tmp_path: Path) -> None:
    import_marian(marian, tmp_path / "model")
    tokenizer = Tokenizers.load(tmp_path / "model").src
    assert tokenizer.encode(">>deu<< The dog") == [tokenizer.tag_id(">>deu<<"), *tokenizer.encode("The dog")]
    with pytest.raises(UserError, match=r"tag '>>fra<<' is unknown .* one of >>deu<<; "):
        tokenizer.tag_id(">>fra<<")


@pytest.mark.slow
@needs_transformers
def test_export_of_an_imported_model_round_trips(marian: Path, lines: list[str], tmp_path: Path) -> None:
    import_marian(marian, tmp_path / "model")
    export_model(tmp_path / "model", tmp_path / "export", ExportOptions("huggingface", sample=lines))
    texts = [*lines, ">>deu<< The dog"]
    assert expected_translations(tmp_path / "export", texts, 12) == expected_translations(marian, texts, 12)
    import_marian(tmp_path / "export", tmp_path / "back")
    assert Tokenizers.load(tmp_path / "back").files() == Tokenizers.load(tmp_path / "model").files()


@pytest.mark.parametrize("options", [{"src_lang": "EN!"}, {"tgt_lang": "english"}, {"tgt_lang": ""}], ids=str)
def test_invalid_languages_are_rejected(options: dict[str, str], tmp_path: Path) -> None:
    ((name, language),) = options.items()
    wrong = f"--{name.replace('_', '-')} is '{language}'; it must be an ISO 639 code such as de"
    with pytest.raises(UserError, match=wrong):
        import_marian(tmp_path, tmp_path / "model", **options)


@pytest.mark.slow
def test_an_invalid_language_of_a_tokenizer_is_unknown(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(exported / "tokenizer_config.json", source_lang="english", target_lang="deu")
    metadata = read_marian(exported).metadata
    assert (metadata.src_lang, metadata.tgt_lang) == ("und", "deu")
    assert "source_lang = 'english', which is not an ISO 639 code; add --src-lang" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant",
    [
        {},
        {"norm_order": "pre", "activation": "gelu", "output_bias": True},
        {"tied_embeddings": "none", "joint": False},
        {"tied_embeddings": "decoder"},
    ],
    ids=str,
)
def test_import_of_an_export_round_trips(
    variant: dict[str, object], make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmt.export.bundle.is_installed", lambda package: False)
    model = make_model(**variant)
    export_model(model, tmp_path / "export", ExportOptions("huggingface", check_parity=False))
    import_marian(tmp_path / "export", tmp_path / "back")
    assert Tokenizers.load(tmp_path / "back").files() == Tokenizers.load(model).files()
    before, after = (load_model(path, torch.device("cpu")) for path in (model, tmp_path / "back"))
    assert after.model.recipe == before.model.recipe
    weights, imported = (load_file(path / "model.safetensors") for path in (model, tmp_path / "back"))
    assert weights.keys() == imported.keys()
    assert all(torch.equal(weight, imported[name]) for name, weight in weights.items())
    assert after.metadata.decode.beam_size == before.metadata.decode.beam_size
    assert (after.metadata.src_lang, after.metadata.tgt_lang, after.metadata.unicode_form) == ("en", "de", "NFC")


def test_import_of_an_export_restores_the_options_of_the_text(
    make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmt.export.bundle.is_installed", lambda package: False)
    text: dict[str, object] = {"unicode_form": "NFKC", "max_tokens": 40, "longest_source": 39}
    text |= {"context": Context(2, "both"), "tags": dict.fromkeys(TERM_MARKERS, "en to de")}
    text |= {"trained_directions": ("en to de", "en to fr")}
    decode = DecodeRecipe(length_penalty="power", tag=TERM_MARKERS[0])
    model = make_model(text=text, marks_terms=True, decode=decode)
    export_model(model, tmp_path / "export", ExportOptions("huggingface", check_parity=False))
    metadata = read_marian(tmp_path / "export").metadata
    assert {name: getattr(metadata, name) for name in text} == text
    assert metadata.decode.tag == TERM_MARKERS[0]
    config = json.loads((tmp_path / "export" / "config.json").read_text())
    for name in ("tags", "trained_directions", "tag"):
        del config["nmt"][name]
    (tmp_path / "export" / "config.json").write_text(json.dumps(config))
    metadata = read_marian(tmp_path / "export").metadata  # an export of an earlier version
    assert (metadata.tags, metadata.trained_directions, metadata.decode.tag) == ({}, (), None)


@pytest.mark.parametrize("mode", ["annotate", "constrain"])
def test_import_of_an_export_restores_the_glossary_mode(
    make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: GlossaryMode
) -> None:
    monkeypatch.setattr("nmt.export.bundle.is_installed", lambda package: False)
    model = make_model(marks_terms=True, decode=DecodeRecipe(glossary_mode=mode))
    export_model(model, tmp_path / "export", ExportOptions("huggingface", check_parity=False))
    assert read_marian(tmp_path / "export").metadata.decode.glossary_mode == mode


@pytest.mark.parametrize(
    "changed",
    [{"max_tokens": "many"}, {"max_tokens": 0}, {"context": {"size": -1}}, {"context": {"sides": "left"}}],
)
def test_invalid_options_of_the_text_are_an_error(changed: dict[str, object], exported: Path) -> None:
    config = json.loads((exported / "config.json").read_text())
    change(exported / "config.json", nmt=config["nmt"] | changed)
    assert "config.json has an invalid entry 'nmt'; export the model again" in error_of(exported)


@pytest.mark.slow
def test_generation_options_that_are_not_read_are_named(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    read_marian(exported)
    assert capsys.readouterr().err == ""
    path = exported / "generation_config.json"
    neutral = {"repetition_penalty": 1.0, "do_sample": False, "forced_bos_token_id": None, "bad_words_ids": [[0]]}
    change(path, **neutral, min_length=0, renormalize_logits=True, suppress_tokens=[0, 1, 2])
    read_marian(exported)
    assert capsys.readouterr().err == ""
    change(path, repetition_penalty=1.3, bad_words_ids=[[0], [7, 8]], min_length=5, suppress_tokens=[0, 9])
    read_marian(exported)
    err = capsys.readouterr().err
    assert f"warning: {exported} has repetition_penalty = 1.3, which nmt does not read; translations may differ" in err
    for option in ("bad_words_ids = [[0], [7, 8]]", "min_length = 5", "suppress_tokens = [0, 9]"):
        assert f"has {option}, which nmt does not read" in err
    change(path, bad_words_ids=5, suppress_tokens=[[9]])  # malformed
    read_marian(exported)
    err = capsys.readouterr().err
    assert all(f"has {option}, which" in err for option in ("bad_words_ids = 5", "suppress_tokens = [[9]]"))
    change(path, num_return_sequences=3, penalty_alpha=0.6, force_words_ids=[[9]], guidance_scale=1.5)
    read_marian(exported)
    err = capsys.readouterr().err
    for option in (
        "num_return_sequences = 3",
        "penalty_alpha = 0.6",
        "force_words_ids = [[9]]",
        "guidance_scale = 1.5",
    ):
        assert f"has {option}, which nmt does not read" in err


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rounded_position_encodings_are_sinusoidal(dtype: torch.dtype, exported: Path) -> None:
    file = exported / "model.safetensors"
    weights = {name: tensor.to(dtype) for name, tensor in load_file(file).items()}
    name = "model.encoder.embed_positions.weight"
    save_file(weights | {name: sinusoids(96, 32).to(dtype)}, file)
    read_marian(exported)
    save_file(weights | {name: sinusoids(96, 32).roll(1, dims=0).to(dtype)}, file)
    assert "is not sinusoidal" in error_of(exported)


def test_a_decoder_that_starts_with_eos_counts_its_probability_once(exported: Path) -> None:
    change(exported / "config.json", decoder_start_token_id=EOS_ID)
    tensors = read_marian(exported).tensors
    assert tensors["output.weight"][BOS_ID].equal(tensors["output.weight"][EOS_ID])  # tied to the embeddings
    assert tensors["output.bias"][[BOS_ID, EOS_ID]].tolist() == [-100, 0]


def test_bytes_that_the_vocabulary_lacks_have_probability_0(exported: Path, tmp_path: Path) -> None:
    vocabulary = json.loads((exported / "vocab.json").read_text())
    row = vocabulary.pop("<0x41>")
    (exported / "vocab.json").write_text(json.dumps(vocabulary | {"☃": row}))
    imported = import_marian(exported, tmp_path / "model")
    tokenizers = Tokenizers.load(tmp_path / "model")
    lost = tokenizers.tgt.all_pieces.index("<0x41>")
    assert imported.tensors["output.bias"][lost] == -100
    # transformers encodes the character as bytes, too
    assert tokenizers.src.pieces(tokenizers.src.encode("☃")) == ["▁", "<0xE2>", "<0x98>", "<0x83>"]


# --- Invalid input ----------------------------------------------------------------------------------------------------


@pytest.fixture
def exported(make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("nmt.export.bundle.is_installed", lambda package: False)
    export_model(make_model(), tmp_path / "export", ExportOptions("huggingface", check_parity=False))
    return tmp_path / "export"


def change(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def error_of(directory: Path) -> str:
    with pytest.raises(UserError) as error:
        read_marian(directory)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_pickle_is_never_read(exported: Path) -> None:
    (exported / "model.safetensors").rename(exported / "pytorch_model.bin")
    message = error_of(exported)
    assert "pickle" in message
    assert "save_pretrained" in message


def test_missing_files_are_named(exported: Path, tmp_path: Path) -> None:
    assert "does not exist" in error_of(tmp_path / "nowhere")
    assert "config.json is not a directory" in error_of(exported / "config.json")
    (exported / "vocab.json").unlink()
    (exported / "source.spm").unlink()
    assert "lacks source.spm, vocab.json" in error_of(exported)
    (exported / "config.json").write_text('{"model_type": "t5"}')
    assert "has a model of type 't5'; it must be the directory of a Hugging Face Marian model" in error_of(exported)


def test_all_invalid_options_of_the_configuration_are_named(exported: Path) -> None:
    change(exported / "config.json", decoder_ffn_dim=7, activation_function="tanh", normalize_before=True, d_model=None)
    message = error_of(exported)
    assert all(name in message for name in ("d_model", "decoder_ffn_dim is 7", "'tanh'", "normalize_before"))
    change(exported / "config.json", model_type="t5", decoder_vocab_size="many")
    assert all(name in error_of(exported) for name in ("'t5'", "decoder_vocab_size is 'many', not an integer"))


def test_damaged_files_are_named(exported: Path) -> None:
    for name, content in {
        "vocab.json": b'{"<unk>": 0, "a": 0}',
        "source.spm": b"x",
        "model.safetensors": b"x",
        "generation_config.json": b"[]",
        "config.json": b"{",
    }.items():
        original = (exported / name).read_bytes()
        (exported / name).write_bytes(content)
        assert name in error_of(exported)
        (exported / name).write_bytes(original)
    read_marian(exported)


@pytest.mark.parametrize("value", ["many", {"a": 2}, [2]])
def test_an_invalid_number_of_beams_is_an_error(value: object, exported: Path) -> None:
    change(exported / "generation_config.json", num_beams=value, early_stopping=False)
    assert "nmt does not support the generation configuration (num_beams = " in error_of(exported)


@pytest.mark.parametrize("name", ["vocab.json", "generation_config.json"])
def test_json_that_is_nested_too_deeply_is_an_error(name: str, exported: Path) -> None:
    (exported / name).write_text("[" * 100_000)
    assert name in error_of(exported)


@pytest.mark.parametrize("name", ["source.spm", "target.spm"])
def test_an_empty_subword_model_is_rejected(name: str, exported: Path) -> None:
    (exported / name).write_bytes(b"")
    assert f"{name} is not a SentencePiece model" in error_of(exported)


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        (5, "(model.d_model is 32; it must be a multiple of model.num_heads (5); try"),
        (-1, "(num_heads = -1; it must be greater than 0"),
    ],
)
def test_an_invalid_architecture_is_explained(exported: Path, heads: int, message: str) -> None:
    change(exported / "config.json", encoder_attention_heads=heads, decoder_attention_heads=heads)
    assert f"config.json is not valid {message}" in error_of(exported)


def test_weights_must_match_the_configuration(exported: Path) -> None:
    change(exported / "config.json", encoder_ffn_dim=50, decoder_ffn_dim=50)
    assert "encoder.layers.0.feed_forward.inner.weight is (48, 32)" in error_of(exported)
    change(exported / "config.json", encoder_ffn_dim=48, decoder_ffn_dim=48, encoder_layers=3)
    assert "model.encoder.layers.2" in error_of(exported)


def test_special_tokens_must_have_different_ids(exported: Path) -> None:
    change(exported / "config.json", eos_token_id=PAD_ID)
    assert "config.json must have different ids for padding, EOS and <unk>; download it again" in error_of(exported)


@pytest.mark.parametrize(
    ("change_weights", "message"),
    [
        (
            lambda w: w | {"model.encoder.layers.0.fc1.bias": torch.full((48,), float("nan"))},
            "fc1.bias has NaN or infin",
        ),
        (lambda w: w | {"model.encoder.layers.0.fc1.bias": torch.ones(48, dtype=torch.int8)}, "fc1.bias has type int8"),
        (
            lambda w: w | {"model.encoder.layers.7.fc1.bias": torch.ones(48)},
            "config.json: model.encoder.layers.7.fc1.b",
        ),
        (
            lambda w: w | {f"adapter.{i}": torch.ones(1) for i in range(5)},
            "adapter.0, adapter.1, adapter.2 and 2 more;",
        ),
    ],
)
def test_damaged_and_unknown_weights_are_rejected(
    change_weights: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], message: str, exported: Path
) -> None:
    file = exported / "model.safetensors"
    save_file(change_weights(load_file(file)), file)
    assert message in error_of(exported)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["source.spm", "target.spm"])
def test_a_subword_model_of_another_model_gives_a_warning(
    name: str, exported: Path, pairs: list[ToyPair], capsys: pytest.CaptureFixture[str]
) -> None:
    read_marian(exported)
    assert "lacks" not in capsys.readouterr().err
    train_subwords([pair.src.upper() for pair in pairs], exported / name, vocab_size=150)
    read_marian(exported)
    assert re.search(rf"lacks 1\d\d of 147 pieces of \S*{name}", capsys.readouterr().err)
