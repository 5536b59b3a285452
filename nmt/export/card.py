"""Model cards: languages, scores, training data and options of a model, as Markdown."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from nmt.checkpoint import LoadedModel
from nmt.logs import counted
from nmt.storage.run_folder import find_report
from nmt.text.term_markup import TermMarkers
from nmt.text.tokenizer import Tokenizers

Target = Literal["ctranslate2", "huggingface"]

_CORPUS_KEYS = ("dataset", "config", "test_set", "path", "src", "tgt", "pairs")  # options that identify a corpus

_LIMITS = (
    "nmt also replaces control characters with spaces, removes invisible characters such as soft hyphens, and {} lines "
    "of more than {} tokens; the code above does not."
)

_CODES = "The tokenizer reads `>>...<<` at the beginning of a text as one token, a language code."

_CONTEXT = (
    "In training, up to {} of the document preceded each sentence, each followed by `<sep>`{}. The code above "
    "translates single sentences."
)
_BOTH_SIDES = ", and their translations preceded its translation in the same way"

_MARKUP = (
    "In training, the source contained translations of terms: `<term-source>`, the words of a term, `<term-target>`, "
    "its translation and `<term-end>`. The code above uses no glossary."
)


def write_card(loaded: LoadedModel, target: Target, license: str | None, usage: str, notes: Sequence[str]) -> str:
    """Return the text of README.md.

    license: an identifier such as apache-2.0; None if not stated
    usage:   a program that translates with the export
    notes:   sentences about the export, such as the result of the parity check
    """
    metadata = loaded.metadata
    directions = ", ".join(metadata.directions)
    codes = list(dict.fromkeys(code for pair in metadata.directions for code in pair.split(" to ")))
    packages = "transformers torch sentencepiece" if target == "huggingface" else "ctranslate2 sentencepiece"
    if "import snapshot_download" in usage:
        packages += " huggingface_hub"
    lines = [
        "---",
        f"language: {json.dumps(codes)}",  # quoted, because `no`, Norwegian, is false in YAML
        *([f"license: {license}"] if license is not None else []),
        "pipeline_tag: translation",
        f"library_name: {'transformers' if target == 'huggingface' else 'ctranslate2'}",
        "tags: [translation, nmt]",
        "---",
        "",
        f"# {directions}",
        "",
        f"A Transformer (Vaswani et al. 2017) for translation, {directions}, exported by nmt.",
        "",
        "```bash",
        f"pip install {packages}",
        "```",
        "",
        "```python",
        usage,
        "```",
        "",
        *_input_notes(loaded),
        *([_CODES] if target == "huggingface" else []),
        "",
    ]
    report = find_report(loaded.directory)
    if report is not None:
        lines += [*_scores(report), *_training(report, _corpora(loaded.directory))]
    recipe = loaded.model.recipe
    lines += ["## Architecture", "", *_table(recipe.model_dump(mode="json", exclude=recipe.ineffective_options)), ""]
    local = {"shortlist", "fusion"}  # paths
    options = metadata.decode.model_dump(mode="json", exclude_defaults=True, exclude=local)
    lines += ["## Search", "", *_table({"search": metadata.decode.description, **options}), ""]
    lines += ["## This export", "", *(f"- {note}" for note in notes), ""]
    return "\n".join(lines)


def _input_notes(loaded: LoadedModel) -> Iterator[str]:
    """Describe the input that the model expects and the usage program does not produce."""
    metadata, context = loaded.metadata, loaded.metadata.context
    form = "" if metadata.unicode_form == "none" else f", in Unicode form {metadata.unicode_form}"
    action = "splits" if metadata.decode.long_lines == "split" else "truncates"
    max_tokens = min(metadata.max_tokens, loaded.model.recipe.max_positions - 1)
    yield f"Input is one sentence at a time{form}. {_LIMITS.format(action, max_tokens)}"
    if context.size:
        yield _CONTEXT.format(counted(context.size, "previous sentence"), _BOTH_SIDES if context.has_target else "")
    tokenizers = Tokenizers.load(loaded.directory, metadata.tgt_lang)
    if tokenizers.tgt.lowercases():
        yield "The model ignores case, and translations are in lower case."
    if metadata.tags:
        tags = ", ".join(f"`{tag}` ({languages})" for tag, languages in metadata.tags.items())
        default = f"`{metadata.decode.tag}`" if metadata.decode.tag else "none of them"
        yield f"In training, each source began with one of these tags: {tags}. The code above adds {default}."
    if TermMarkers.ids_of(tokenizers.src):
        yield _MARKUP


def _corpora(model: Path) -> str | None:
    """Name the training corpora in the recipe of the model's run, without folders; None without a recipe."""
    try:
        recipe = tomllib.loads((model.resolve().parent / "recipe.toml").read_text(encoding="utf-8"))
        corpora = [
            [corpus["kind"], *(_short(key, corpus[key]) for key in _CORPUS_KEYS if key in corpus)]
            for corpus in recipe["data"]["train"]
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return ", ".join(" ".join(parts) for parts in corpora)


def _short(key: str, value: object) -> str:
    return Path(str(value)).name if key in ("path", "src", "tgt") else str(value)


def _scores(report: dict[str, Any]) -> Iterator[str]:
    tests = report.get("tests")
    if not tests:
        return
    yield from ("## Scores", "", "Measured by nmt before the export, with the search options below.", "")
    yield from ("| test set | metric | score | signature |", "|---|---|---|---|")
    for test in tests:
        for score in test.get("scores", []):
            signature = _escape(score["signature"])
            tag = f"`{test['tag']}`" if test.get("tag") else None
            direction = ", ".join(filter(None, (test["name"], test.get("languages"), tag)))
            yield f"| {direction} | {score['name']} | {score['value']:.2f} | `{signature}` |"
    yield ""
    for test in tests:
        matches = (test.get("leaks") or {}).get("any") or {"exact": 0, "near": 0}
        leaked = matches["exact"] + matches["near"]
        if leaked:
            clean = ", ".join(f"{score['name']} {score['value']:.2f}" for score in test.get("clean_scores", []))
            others = f"; scores of the others: {clean}" if clean else ""
            yield (
                f"Sentences of {test['name']} with an exact or near match in the training text: {leaked:,} of "
                f"{test['sentences']:,}{others}."
            )
            yield ""


def _training(report: dict[str, Any], corpora: str | None) -> Iterator[str]:
    data, training, start = report.get("data", {}), report.get("training", {}), report.get("start_from")
    averaged = training.get("averaged")
    rows = {
        "recipe": report.get("summary"),
        "initial model": None if start is None else Path(start.removesuffix("/model")).name,
        "corpora": corpora,
        "training pairs": data.get("train_pairs"),
        "validation pairs": data.get("valid_pairs"),
        "updates": training.get("steps"),
        "epochs": None if training.get("epochs") is None else round(training["epochs"], 1),
        "averaged checkpoints": "none; the model is the EMA" if averaged == 0 else averaged,
        "seed": None if report.get("seed") is None else str(report["seed"]),
        "nmt commit": report.get("git_commit"),
    }
    yield from ("## Training", "", *_table(rows), "")


def _table(rows: dict[str, Any]) -> Iterator[str]:
    yield from ("| | |", "|---|---|")
    for name, value in rows.items():
        if value is not None:
            text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
            yield f"| {name} | {_escape(text)} |"


def _escape(text: str) -> str:
    """Escape vertical bars, which would end a table cell."""
    return text.replace("|", "\\|")
