"""`nmt leaks`: which test sentences are in the training text, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from nmt.cli.arguments import Overrides, RecipeArgument
from nmt.cli.scored_text import Format, FormatOption, echo_found
from nmt.data.leaks import LeakFinder, SearchedSet, SetLeaks, describe_place, search_training_text, searched_sets
from nmt.evaluate.result_tables import leak_list_table, leak_table
from nmt.recipe import DataRecipe, load_recipe


def leaks(recipe: RecipeArgument, overrides: Overrides = None, output: FormatOption = Format.text) -> None:
    """List the test and validation sentences that are in the training text: how many, which, in which file and line.

    A sentence is there exactly (white space at its end aside) or nearly (case, punctuation, spacing and Unicode form
    aside), with its source, its reference, or both in one training pair. Short sentences often occur by chance, and
    mostly with one side; a test sentence of which both sides occur in one pair has most likely been taken from there,
    or the other way round. A sentence of which a word was changed is not found.

    The training text is searched as it is in its files, before cleaning. For each sentence, the list names the first
    place and counts the training pairs. Nothing is written; the report of `nmt run` has the same counts, and the scores
    of the clean sentences. Text that a model of `train.start_from` was trained on is not searched.
    """
    loaded = load_recipe(recipe, overrides or ())
    finder = LeakFinder(searched_sets(loaded))
    search_training_text(loaded, finder)
    found = finder.leaks()
    document = {"sets": [_as_json(*both, loaded.data) for both in zip(finder.sets, found, strict=True)]}
    tables = [leak_table({one.name: one.counts() for one in found})]
    if any(one.leaks for one in found):
        tables.append(leak_list_table(_rows(document["sets"])))
    echo_found(document, tables, output)


def _as_json(searched: SearchedSet, found: SetLeaks, data: DataRecipe) -> dict[str, Any]:
    counts = found.counts()
    listed = [
        {
            "line": leak.line,
            "part": leak.part,
            "kind": leak.kind,
            "text": searched.text(leak),
            "place": describe_place(leak, data),
            "found": leak.found,
            "times": leak.times,
        }
        for leak in found.leaks
    ]
    return {"name": found.name, **asdict(counts), "clean": counts.clean, "leaks": listed}


def _rows(sets: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    return [
        (
            f"{found['name']}:{leak['line']}",
            leak["part"],
            "exactly" if leak["kind"] == "exact" else "nearly",
            leak["place"],
            f"{leak['times']:,}",
            leak["text"],
            leak["found"] if leak["kind"] == "near" else "",
        )
        for found in sets
        for leak in found["leaks"]
    ]
