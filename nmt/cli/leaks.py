"""`nmt leaks`: test sentences in the training text."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from nmt.cli.arguments import Overrides, RecipeArgument
from nmt.cli.metric_options import FormatOption, JsonOption, output_format, print_results
from nmt.diagnostics.leaks import (
    LeakFinder,
    SearchedSet,
    SetLeaks,
    describe_location,
    search_training_text,
    searched_sets,
)
from nmt.evaluate.result_tables import leak_list_table, leak_table
from nmt.logs import warn
from nmt.recipe import DataRecipe, load_recipe


def leaks(
    recipe: RecipeArgument, overrides: Overrides = None, output: FormatOption = None, as_json: JsonOption = False
) -> None:
    """List the test and validation sentences that occur in the training text, with file and line.

    Matches are exact (except for trailing white space) or near (ignoring case, punctuation, spacing and Unicode form).
    A match covers the source, the reference, or both in one training pair. Short sentences often match by chance,
    mostly on one side; a match of both sides is most likely a copy. Sentences with changed words are not found.

    Searches the training files before cleaning. For each sentence, the list shows the first location and the number of
    training pairs. The report of `nmt run` has the same counts, and the scores of the clean sentences. The training
    text of a `train.start_from` model is not searched.
    """
    output = output_format(output, as_json)
    loaded = load_recipe(recipe, overrides or ())
    finder = LeakFinder(searched_sets(loaded))
    search_training_text(loaded, finder)
    if loaded.train.start_from is not None:
        warn(f"the training text of train.start_from, {loaded.train.start_from}, was not searched")
    leaks_of_sets = finder.leaks()
    sets = [
        _as_json(searched, set_leaks, loaded.data)
        for searched, set_leaks in zip(finder.sets, leaks_of_sets, strict=True)
    ]
    tables = [leak_table({set_leaks.name: set_leaks.counts() for set_leaks in leaks_of_sets})]
    if any(set_leaks.leaks for set_leaks in leaks_of_sets):
        tables.append(leak_list_table(sets))
    print_results({"sets": sets}, tables, output)


def _as_json(searched: SearchedSet, set_leaks: SetLeaks, data: DataRecipe) -> dict[str, Any]:
    counts = set_leaks.counts()
    listed = [
        {
            "line": leak.line,
            "part": leak.part,
            "kind": leak.kind,
            "text": searched.text(leak),
            "location": describe_location(leak, data),
            "found": leak.found,
            "times": leak.times,
        }
        for leak in set_leaks.leaks
    ]
    return {"name": set_leaks.name, **asdict(counts), "clean": counts.clean, "leaks": listed}
