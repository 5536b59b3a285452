"""Options of earlier versions, which saved recipes and models may still have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

REMOVED = {"decode.coverage_penalty": "the coverage penalty was removed because it lowers BLEU"}
"""Reason by removed option."""

RENAMED = {
    "train.recompute": "train.activation_checkpointing",
    "decode.num_groups": "decode.beam_groups",
    "decode.diversity_strength": "decode.diversity_penalty",
    "decode.bayes_risk": "decode.mbr_metric",
    "decode.alignment_place": "decode.alignment_at",
}
"""New name by old name."""

RENAMED_KINDS = {"embedded": "toy"}
"""New kind of a corpus by old kind."""


def upgrade_options(tree: dict[str, Any]) -> list[str]:
    """Update the options of a saved recipe, in place: rename renamed options and kinds, and drop removed options.

    Returns the removed options that were set.
    """
    for old, new in RENAMED.items():
        section, key = old.split(".")
        options = tree.get(section)
        if isinstance(options, dict) and key in options:
            options.setdefault(new.removeprefix(f"{section}."), options.pop(key))
    for corpus in _corpora(tree.get("data")):
        corpus["kind"] = RENAMED_KINDS.get(str(corpus["kind"]), corpus["kind"])
    ignored = []
    for name in REMOVED:
        section, key = name.split(".")
        options = tree.get(section)
        if isinstance(options, dict) and options.pop(key, None):
            ignored.append(name)
    return ignored


def _corpora(data: Any) -> Iterator[dict[str, Any]]:
    """Yield the corpora of section [data], which may be invalid."""
    if not isinstance(data, dict):
        return
    test = data.get("test")
    for corpora in (data.get("train"), data.get("valid"), list(test.values()) if isinstance(test, dict) else None):
        for corpus in corpora if isinstance(corpora, list) else []:
            if isinstance(corpus, dict) and "kind" in corpus:
                yield corpus
