"""Exports to Hugging Face, loaded by transformers: tokens, probabilities and translations."""

import json
from pathlib import Path
from typing import Any

import parity_table
import pytest
import torch

from nmt.checkpoint import load_model
from nmt.decode.translator import Translator
from nmt.errors import UserError
from nmt.export import bundle, huggingface, parity
from nmt.export.bundle import ExportOptions, export_model
from nmt.export.parity import load_huggingface
from nmt.recipe import DecodeRecipe, ModelRecipe
from nmt.storage.model_metadata import ModelMetadata
from nmt.text.tokenizer import Tokenizers
from tests.export.conftest import MakeModel
from tests.extras import needs_transformers

VARIANTS = [
    ({"activation": "swish"}, "MarianMTModel"),
    ({"lowercase": True, "seed": 1}, "MarianMTModel"),
    ({"norm_order": "pre", "activation": "gelu", "output_bias": True}, "PegasusForConditionalGeneration"),
    ({"tied_embeddings": "decoder"}, "MarianMTModel"),
    ({"tied_embeddings": "none", "joint": False, "output_bias": True, "num_encoder_layers": 1}, "MarianMTModel"),
    ({"tied_embeddings": "decoder", "joint": False}, "MarianMTModel"),
]


@pytest.mark.slow
@needs_transformers
@pytest.mark.parametrize(("variant", "kind"), VARIANTS, ids=str)
def test_translations_match(
    variant: dict[str, object], kind: str, make_model: MakeModel, lines: list[str], tmp_path: Path
) -> None:
    model, out = make_model(**variant), tmp_path / "export"
    notes = export_model(model, out, ExportOptions("huggingface"))
    assert any(note.startswith("Parity check passed: ") for note in notes)
    theirs, tokenizer = load_huggingface(out)
    assert type(theirs).__name__ == kind
    assert type(tokenizer).__name__ == "MarianTokenizer"
    _, loading = type(theirs).from_pretrained(out, output_loading_info=True)
    assert not any(loading.values()), loading  # no warnings about keys
    batch = tokenizer(lines, padding=True, return_tensors="pt")
    limit = 60  # transformers does not penalize hypotheses at the length limit: they are not compared
    for beam_size in (1, 4) if variant is VARIANTS[0][0] else (1,):  # the parity check compares probabilities
        decode = DecodeRecipe(
            beam_size=beam_size, length_penalty="power", length_alpha=1.0, stop="exact", max_extra_tokens=limit
        )
        ours = Translator.load(model, "cpu", "fp32", decode.all_given()).translate_n_best(lines)
        stop = {"early_stopping": "never"} if beam_size > 1 else {}
        ids = theirs.generate(**batch, **stop, max_length=limit, num_beams=beam_size)
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
        is_finished = (ids[:, 1 : limit - 1] == tokenizer.eos_token_id).any(1)
        assert sum(is_finished.tolist()) >= 3
        pairs = [
            (n_best[0].text.split(), text.split())
            for n_best, text, finished in zip(ours, texts, is_finished, strict=True)
            if finished
        ]
        # Only nmt's maximum length depends on the source, so its live hypotheses compete longer.
        assert sum(own != text for own, text in pairs) <= 1


@pytest.mark.slow
@needs_transformers
def test_special_tokens_in_text_are_plain_text(make_model: MakeModel, tmp_path: Path) -> None:
    model, out = make_model(), tmp_path / "export"
    export_model(model, out, ExportOptions("huggingface"))
    _, tokenizer = load_huggingface(out)
    own = Tokenizers.load(model).src
    for text in [
        "<s> </s> <unk> <pad> <0x0A>",
        "größer 漢字 \U0001f600",
        "a , b .",
        "The dog's ( house )",
        "▁ x",
        "'s n't",
    ]:
        assert tokenizer(text)["input_ids"] == [*own.encode(text), 3]
        assert tokenizer.decode(own.encode(text), skip_special_tokens=True) == own.decode(own.encode(text)).strip()


@pytest.mark.slow
@needs_transformers
def test_text_that_begins_like_a_language_code_is_left_out(
    make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = [">>> the man << sleeps", "the man", "the old man"]
    options = ExportOptions("huggingface", sample=sample)
    (*_, note) = export_model(make_model(), tmp_path / "export", options)
    assert note.startswith("Parity check passed: 2 sentences of ")
    assert "as one token, a language code" in (tmp_path / "export" / "README.md").read_text()
    monkeypatch.setattr(parity, "_language_code", lambda line: None)
    with pytest.raises(UserError, match=r"; the first different sentence is '>>> the man << sleeps'; all values"):
        export_model(make_model(), tmp_path / "new", options)
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
@needs_transformers
def test_a_failed_parity_check_writes_nothing(
    make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = huggingface._config
    monkeypatch.setattr(huggingface, "_config", lambda model: config(model) | {"scale_embedding": False})
    with pytest.raises(UserError, match=r"^the parity check failed: [^\n]* differ by at most [^\n]*$"):
        export_model(make_model(), tmp_path / "export", ExportOptions("huggingface"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@needs_transformers
def test_nan_fails_the_parity_check(make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load_broken(directory: Path) -> tuple[Any, Any]:
        model, tokenizer = load_huggingface(directory)
        model.final_logits_bias.fill_(torch.nan)
        return model, tokenizer

    monkeypatch.setattr(parity, "load_huggingface", load_broken)
    with pytest.raises(UserError, match=r"the parity check failed: .* differ by at most inf "):
        export_model(make_model(), tmp_path / "export", ExportOptions("huggingface"))


@needs_transformers
def test_the_parity_check_is_required_if_transformers_is_installed(make_model: MakeModel, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="omit --no-parity-check"):
        export_model(make_model(), tmp_path / "export", ExportOptions("huggingface", check_parity=False))


def test_without_transformers_the_parity_check_can_be_skipped(
    make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "is_installed", lambda package: False)
    with pytest.raises(UserError, match=r"not installed; .*--no-parity-check"):
        export_model(make_model(), tmp_path / "export", ExportOptions("huggingface"))
    export_model(make_model(), tmp_path / "export", ExportOptions("huggingface", check_parity=False))
    assert (tmp_path / "export" / "model.safetensors").exists()


def test_a_model_without_a_matching_class_is_an_error(
    make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "is_installed", lambda package: False)
    model = make_model(norm_order="pre", tied_embeddings="decoder")
    with pytest.raises(UserError, match=r"Hugging Face cannot represent this model: .*'pre'.*'decoder'.*; [^\n]*$"):
        export_model(model, tmp_path / "export", ExportOptions("huggingface", check_parity=False))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("norm", "rms"),
        ("activation", "swiglu"),
        ("d_head", 12),
        ("num_encoder_heads", 1),
        ("positions", "learned"),
        ("positions", "rotary"),
        ("positions", "relative"),
    ],
)
def test_an_unsupported_variant_is_an_error(
    option: str, value: object, make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "is_installed", lambda package: False)
    model = make_model(**{option: value}, output_bias=True)
    with pytest.raises(
        UserError, match=rf"^Hugging Face cannot represent this model: model\.{option} is {value!r}; [^\n]*$"
    ):
        export_model(model, tmp_path / "export", ExportOptions("huggingface", check_parity=False))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("recipe", "changes", "advice"),
    [
        (ModelRecipe(norm="rms"), {}, "these options must have their defaults; export to ctranslate2 instead"),
        (ModelRecipe(), {"reverse_target": True}, "train with the defaults of these options"),
    ],
)
def test_only_a_target_that_supports_the_model_is_suggested(
    recipe: ModelRecipe, changes: dict[str, object], advice: str
) -> None:
    sizes = {"src_lang": "en", "tgt_lang": "de", "src_vocab_size": 9, "tgt_vocab_size": 9, "unicode_form": "NFC"}
    metadata = ModelMetadata(**sizes | {"decode": DecodeRecipe()} | changes)  # type: ignore[arg-type]
    with pytest.raises(UserError) as raised:
        huggingface._check_architecture(recipe, metadata)
    assert str(raised.value).endswith(f"; {advice}")


def test_weights_are_stored_once(make_model: MakeModel, tmp_path: Path) -> None:
    loaded = load_model(make_model(), torch.device("cpu"))
    tokenizers = Tokenizers.load(loaded.directory)
    files, lost = huggingface.huggingface_files(loaded.transformer, tokenizers, loaded.metadata)
    weights = 4 * (loaded.model.num_parameters() + tokenizers.tgt.vocab_size)  # the bias of zeros is stored, too
    max_header = 12_000
    assert weights < len(files["model.safetensors"]) < weights + max_header
    assert lost[0].startswith("the log-probability of EOS at the maximum length")
    assert lost[1].startswith("decode.max_extra_tokens (replaced by the limit of the longest input, 96;")
    assert json.loads(files["vocab.json"])["</s>"] == 3


@pytest.mark.slow
@needs_transformers
def test_the_parity_table_does_not_use_the_search_of_the_model(
    make_model: MakeModel, lines: list[str], tmp_path: Path
) -> None:
    greedy = DecodeRecipe(beam_size=1, length_penalty="power", max_extra_tokens=10)
    own = DecodeRecipe(beam_size=4, n_best=2, length_penalty="power", no_repeat_ngram=1)
    found = []
    for number, decode in enumerate((greedy, own)):
        model = make_model(decode=decode)
        export_model(model, tmp_path / f"{number}", ExportOptions("huggingface"))
        found.append(parity_table.huggingface_translator(tmp_path / f"{number}", greedy, model)(lines[:6]))
    assert len(found[0]) == 6
    assert found[0] == found[1]
