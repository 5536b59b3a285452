"""The model card: what a model is, what it learnt from and how well it translates, as Markdown."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nmt.checkpoint import LoadedModel
from nmt.storage.run_folder import find_report
from nmt.text.tokenizer import Tokenizers

Target = Literal["ctranslate2", "huggingface"]

# What tells a corpus from others.
_CORPUS_NAMES = ("dataset", "config", "test_set", "path", "src", "tgt", "pairs")


@dataclass(frozen=True)
class Card:
    """What the card of an export says besides what the model itself tells.

    licence: an identifier such as apache-2.0, or None where it is not stated
    usage:   a program that translates with the export
    notes:   sentences on the export, such as its parity check
    """

    target: Target
    licence: str | None
    usage: str
    notes: tuple[str, ...]


def write_card(loaded: LoadedModel, card: Card) -> str:
    """The text of README.md."""
    facts, report = loaded.facts, find_report(loaded.directory)
    lowercases = Tokenizers.load(loaded.directory).tgt.lowercases()
    lines = [
        *_front_matter(loaded, card),
        f"# {facts.src_lang} to {facts.tgt_lang}",
        "",
        f"A Transformer (Vaswani et al. 2017), trained with nmt to translate {facts.src_lang} into {facts.tgt_lang}.",
        "",
        "```python",
        card.usage,
        "```",
        "",
        f"Text is expected in Unicode form {facts.unicode_form}, one sentence at a time."
        if facts.unicode_form != "none"
        else "Text is taken as it is, one sentence at a time.",
        *(["Upper case is taken for lower case, and translations are in lower case."] if lowercases else []),
        "",
    ]
    if report is not None:
        lines += [*_scores(report), *_training(report, _corpora(loaded.directory))]
    lines += ["## Architecture", "", *_table(loaded.model.recipe.model_dump(mode="json")), ""]
    search = facts.decode.model_dump(mode="json", exclude_defaults=True, exclude={"shortlist"})  # which stays here
    lines += ["## Search", "", *_table(search), ""]
    lines += ["## This export", "", *(f"- {note}" for note in card.notes), ""]
    return "\n".join(lines)


def _front_matter(loaded: LoadedModel, card: Card) -> Iterator[str]:
    yield "---"
    yield f"language: [{loaded.facts.src_lang}, {loaded.facts.tgt_lang}]"
    if card.licence is not None:
        yield f"license: {card.licence}"
    yield "pipeline_tag: translation"
    yield f"library_name: {'transformers' if card.target == 'huggingface' else 'ctranslate2'}"
    yield "tags: [translation, nmt]"
    yield "---"
    yield ""


def _corpora(model: Path) -> str | None:
    """The training corpora of the run that a model belongs to, as its recipe names them, without folders."""
    try:
        recipe = tomllib.loads((model.resolve().parent / "recipe.toml").read_text(encoding="utf-8"))
        named = [
            [corpus["kind"], *(_short(key, corpus[key]) for key in _CORPUS_NAMES if key in corpus)]
            for corpus in recipe["data"]["train"]
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return ", ".join(" ".join(parts) for parts in named)


def _short(key: str, value: object) -> str:
    return Path(str(value)).name if key in ("path", "src", "tgt") else str(value)


def _scores(report: dict[str, Any]) -> Iterator[str]:
    yield "## Scores"
    yield ""
    yield "| test set | metric | score | signature |"
    yield "|---|---|---|---|"
    for test in report.get("tests", []):
        for score in test.get("scores", []):
            signature = score["signature"].replace("|", "\\|")  # a bar would end the cell
            yield f"| {test['name']} | {score['name']} | {score['value']:.2f} | `{signature}` |"
    yield ""


def _training(report: dict[str, Any], corpora: str | None) -> Iterator[str]:
    data, training = report.get("data", {}), report.get("training", {})
    yield "## Training"
    yield ""
    yield from _table(
        {
            "recipe": report.get("summary"),
            "corpora": corpora,
            "training pairs": data.get("train_pairs"),
            "development pairs": data.get("valid_pairs"),
            "updates": training.get("steps"),
            "epochs": round(training.get("epochs") or 0.0, 1),
            "averaged checkpoints": training.get("averaged"),
            "seed": report.get("seed"),
            "nmt commit": report.get("git_commit"),
        }
    )
    yield ""


def _table(rows: dict[str, Any]) -> Iterator[str]:
    yield "| | |"
    yield "|---|---|"
    for name, value in rows.items():
        if value is not None:
            shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
            yield f"| {name} | {shown.replace('|', chr(92) + '|')} |"
