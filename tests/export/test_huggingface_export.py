"""Exports to Hugging Face, loaded by transformers itself: tokens, probabilities, and its own search against ours."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nmt.checkpoint import load_model
from nmt.decode.translator import Translator
from nmt.export import bundle, huggingface
from nmt.export.bundle import ExportOptions, export_model
from nmt.export.packages import is_installed
from nmt.export.parity import load_huggingface
from nmt.recipe import DecodeRecipe, UserError
from nmt.text.tokenizer import Tokenizers

MakeModel = Callable[..., Path]

needs_transformers = pytest.mark.skipif(
    not is_installed("transformers"), reason="transformers is not installed: pip install 'nmt[huggingface]'"
)

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
def test_transformers_loads_it_and_translates_the_same(
    variant: dict[str, object], kind: str, make_model: MakeModel, lines: list[str], tmp_path: Path
) -> None:
    model, out = make_model(**variant), tmp_path / "export"
    notes = export_model(model, out, ExportOptions("huggingface"))
    assert any(note.startswith("Parity check passed: ") for note in notes)
    theirs, tokenizer = load_huggingface(out)
    assert type(theirs).__name__ == kind
    assert type(tokenizer).__name__ == "MarianTokenizer"
    _, loading = type(theirs).from_pretrained(out, output_loading_info=True)
    assert not any(loading.values()), loading  # or whoever loads it is told so at length
    batch = tokenizer(lines, padding=True, return_tensors="pt")
    limit = 60  # of tokens; theirs ends what reaches it for nothing, so these are left out
    for beam_size in (1, 4):
        decode = DecodeRecipe(
            beam_size=beam_size, length_penalty="power", length_alpha=1.0, stop="exact", max_extra_tokens=limit
        )
        ours = Translator.load(model, "cpu", "fp32", decode.all_given()).translate_n_best(lines)
        stop = {"early_stopping": "never"} if beam_size > 1 else {}
        ids = theirs.generate(**batch, **stop, max_length=limit, num_beams=beam_size)
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
        ended = (ids[:, 1 : limit - 1] == tokenizer.eos_token_id).any(1)
        assert sum(ended.tolist()) >= 3
        both = [(o[0].text.split(), t.split()) for o, t, end in zip(ours, texts, ended, strict=True) if end]
        apart = sum(own != text for own, text in both)
        assert apart <= 1  # our limit is relative to the source, so that what still runs may count for longer


@needs_transformers
def test_what_is_special_to_a_program_is_text_in_a_line(make_model: MakeModel, tmp_path: Path) -> None:
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


@needs_transformers
def test_an_export_that_is_not_the_model_is_not_there(
    make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = huggingface._config
    monkeypatch.setattr(huggingface, "_config", lambda model: config(model) | {"scale_embedding": False})
    with pytest.raises(UserError, match=r"^the parity check failed: [^\n]* differ by at most [^\n]*$"):
        export_model(make_model(), tmp_path / "export", ExportOptions("huggingface"))
    assert list(tmp_path.iterdir()) == []


@needs_transformers
def test_the_parity_check_cannot_be_left_out_where_it_is_possible(make_model: MakeModel, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="leave out --no-parity-check"):
        export_model(make_model(), tmp_path / "export", ExportOptions("huggingface", is_checked=False))


def test_without_the_package_the_parity_check_can_be_left_out(
    make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "is_installed", lambda package: False)
    with pytest.raises(UserError, match=r"not installed; .*--no-parity-check"):
        export_model(make_model(), tmp_path / "export", ExportOptions("huggingface"))
    export_model(make_model(), tmp_path / "export", ExportOptions("huggingface", is_checked=False))
    assert (tmp_path / "export" / "model.safetensors").exists()


def test_a_model_that_no_class_holds_is_refused(
    make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "is_installed", lambda package: False)
    model = make_model(norm_order="pre", tied_embeddings="decoder")
    with pytest.raises(UserError, match=r"Hugging Face cannot hold this model: .*'pre'.*'decoder'.*; [^\n]*$"):
        export_model(model, tmp_path / "export", ExportOptions("huggingface", is_checked=False))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("norm", "rms"),
        ("activation", "swiglu"),
        ("d_head", 12),
        ("positions", "learned"),
        ("positions", "rotary"),
        ("positions", "relative"),
    ],
)
def test_a_variant_that_transformers_lacks_is_refused(
    option: str, value: object, make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "is_installed", lambda package: False)
    model = make_model(**{option: value}, output_bias=True)
    with pytest.raises(
        UserError, match=rf"^Hugging Face cannot hold this model: model\.{option} is {value!r}; [^\n]*$"
    ):
        export_model(model, tmp_path / "export", ExportOptions("huggingface", is_checked=False))
    assert list(tmp_path.iterdir()) == []


def test_weights_are_stored_once(make_model: MakeModel, tmp_path: Path) -> None:
    loaded = load_model(make_model(), torch.device("cpu"))
    tokenizers = Tokenizers.load(loaded.directory)
    files, lost = huggingface.huggingface_files(loaded.model, tokenizers, loaded.facts)
    weights = 4 * (loaded.model.num_parameters() + tokenizers.tgt.vocab_size)  # and the bias, of zeros
    assert weights < len(files["model.safetensors"]) < weights + 12_000
    assert lost == []
    assert json.loads(files["vocab.json"])["</s>"] == 3
