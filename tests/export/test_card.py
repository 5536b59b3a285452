"""Model cards: front matter, scores with signatures, and the reports from which they are made."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt.checkpoint import load_model
from nmt.export.card import write_card
from nmt.recipe import Context, DecodeRecipe
from nmt.storage.run_folder import find_report
from tests.export.conftest import MakeModel

REPORT: dict[str, Any] = {
    "summary": "en to de",
    "seed": 7,
    "data": {"train_pairs": 29_000, "valid_pairs": 1_014},
    "training": {"steps": 4_900, "epochs": 21.04, "averaged": 5},
    "git_commit": None,
    "tests": [{"name": "news", "scores": [{"name": "bleu", "value": 27.346, "signature": "nrefs:1|case:mixed"}]}],
}


@pytest.fixture
def run(make_model: MakeModel, tmp_path: Path) -> Path:
    shutil.copytree(make_model(), tmp_path / "run" / "model")
    (tmp_path / "run" / "report.json").write_text(json.dumps(REPORT))
    return tmp_path / "run"


@pytest.mark.slow
def test_the_card_of_a_run_has_its_scores(run: Path) -> None:
    loaded = load_model(run, torch.device("cpu"))
    card = write_card(loaded, "huggingface", "apache-2.0", "print(1)", ("Parity check passed: details.",))
    head, _, body = card.removeprefix("---\n").partition("\n---\n")
    assert head.splitlines() == [
        'language: ["en", "de"]',
        "license: apache-2.0",
        "pipeline_tag: translation",
        "library_name: transformers",
        "tags: [translation, nmt]",
    ]
    assert r"| news | bleu | 27.35 | `nrefs:1\|case:mixed` |" in body
    assert "| training pairs | 29,000 |" in body
    assert "initial model" not in body
    assert "in the training text" not in body
    assert "| norm_order | post |" in body
    assert not re.search(r"\| (attention|input_feeding|max_distance) \|", body)  # without effect on this model
    assert "| length_penalty | power |" in body
    assert "git" not in body
    assert "- Parity check passed: details.\n" in body
    assert "```bash\npip install transformers torch sentencepiece\n```\n\n```python\nprint(1)\n```\n" in body


def test_the_card_names_the_initial_model_without_its_folder(run: Path) -> None:
    (run / "report.json").write_text(json.dumps(REPORT | {"start_from": "/secret/base/model"}))
    card = write_card(load_model(run, torch.device("cpu")), "huggingface", None, "", ())
    assert "\n| initial model | base |\n" in card
    assert "secret" not in card


def test_the_card_names_tags_and_their_languages(run: Path) -> None:
    test = REPORT["tests"][0] | {"tag": "<2fr>", "languages": "en to fr"}
    (run / "report.json").write_text(json.dumps(REPORT | {"tests": [test]}))
    loaded = load_model(run, torch.device("cpu"))
    metadata = replace(loaded.metadata, tags={"<2de>": "en to de", "<2fr>": "en to fr"})
    metadata = replace(metadata, trained_directions=("en to de", "en to fr"))
    card = write_card(replace(loaded, metadata=metadata), "huggingface", None, "", ())
    assert 'language: ["en", "de", "fr"]\n' in card and "\n# en to de, en to fr\n" in card
    assert "these tags: `<2de>` (en to de), `<2fr>` (en to fr). The code above adds none of them." in card
    assert "\n| news, en to fr, `<2fr>` | bleu | 27.35 |" in card


def test_the_card_counts_test_sentences_in_the_training_text(run: Path) -> None:
    counts = {"exact": 2, "near": 1}
    clean = [{"name": "bleu", "value": 21.0, "signature": ""}]
    test = REPORT["tests"][0] | {"sentences": 3_003, "leaks": {"any": counts}, "clean_scores": clean}
    (run / "report.json").write_text(json.dumps(REPORT | {"tests": [test]}))
    card = write_card(load_model(run, torch.device("cpu")), "huggingface", None, "", ())
    matches = "Sentences of news with an exact or near match in the training text: 3 of 3,003"
    assert f"\n{matches}; scores of the others: bleu 21.00.\n" in card
    assert "\nMeasured by nmt before the export, with the search options below.\n" in card


@pytest.mark.parametrize(("averaged", "text"), [(5, "5"), (0, "none; the model is the EMA")])
def test_the_card_has_the_number_of_averaged_checkpoints(averaged: int, text: str, run: Path) -> None:
    (run / "report.json").write_text(json.dumps(REPORT | {"training": {"averaged": averaged}}))
    card = write_card(load_model(run, torch.device("cpu")), "huggingface", None, "", ())
    assert f"\n| averaged checkpoints | {text} |\n" in card


def test_a_checkpoint_does_not_get_the_scores_of_the_average(run: Path) -> None:
    assert find_report(run / "model") == REPORT
    shutil.copytree(run / "model", run / "checkpoints" / "step-00000001")
    shutil.copy(run / "report.json", run / "checkpoints" / "report.json")
    assert find_report(run / "checkpoints" / "step-00000001") is None
    (run / "report.json").write_text("{")
    assert find_report(run / "model") is None


def test_a_model_without_a_run_has_a_card(make_model: MakeModel) -> None:
    loaded = load_model(make_model(joint=False, tied_embeddings="decoder"), torch.device("cpu"))
    decode = loaded.metadata.decode.model_copy(update={"shortlist": Path("local")})
    changed = replace(loaded, metadata=replace(loaded.metadata, decode=decode))
    card = write_card(changed, "ctranslate2", None, "", ())
    assert "shortlist" not in card
    assert "license" not in card
    assert "Scores" not in card


def test_the_card_describes_the_input(make_model: MakeModel) -> None:
    loaded = load_model(make_model(), torch.device("cpu"))
    decode = loaded.metadata.decode.model_copy(update={"long_lines": "truncate"})
    changed = replace(loaded, metadata=replace(loaded.metadata, decode=decode))
    card = write_card(loaded, "ctranslate2", None, "", ())
    assert " and splits lines of more than 95 tokens" in card  # the model has 96 positions
    assert " and truncates lines of more than 95 tokens" in write_card(changed, "ctranslate2", None, "", ())
    assert "lower case" not in card
    assert "<term-source>" not in card
    lowercase = load_model(make_model(lowercase=True), torch.device("cpu"))
    assert "in lower case" in write_card(lowercase, "ctranslate2", None, "", ())


def test_the_card_has_options_that_affect_only_some_architectures(make_model: MakeModel) -> None:
    relative = load_model(make_model(positions="relative", max_distance=4), torch.device("cpu"))
    assert "| max_distance | 4 |" in write_card(relative, "ctranslate2", None, "", ())


def test_the_card_names_the_search_even_with_default_options(run: Path) -> None:
    loaded = load_model(run, torch.device("cpu"))
    for decode in (DecodeRecipe(), DecodeRecipe(beam_size=2, max_tokens=9)):
        card = write_card(
            replace(loaded, metadata=replace(loaded.metadata, decode=decode)), "huggingface", None, "", ()
        )
        assert f"| search | beam {decode.beam_size}, length penalty gnmt 0.6 |\n" in card
        assert ("\n| beam_size | 2 |\n| max_tokens | 9 |\n" in card) == (decode.max_tokens == 9)


def test_the_card_of_a_model_with_context_says_so(run: Path) -> None:
    loaded = load_model(run, torch.device("cpu"))
    assert "previous sentences" not in write_card(loaded, "huggingface", None, "", ())
    with_context = replace(loaded, metadata=replace(loaded.metadata, context=Context(3)))
    text = write_card(with_context, "huggingface", None, "", ())
    assert "In training, up to 3 previous sentences of the document preceded each" in text
    both = replace(loaded, metadata=replace(loaded.metadata, context=Context(3, "both")))
    assert "their translations" not in text
    assert "their translations" in write_card(both, "huggingface", None, "", ())
