"""`nmt rerank`: of the n best translations of each line the one that several models together think best."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from nmt.cli.arguments import (
    Device,
    ModelArgument,
    SrcArgument,
    languages,
    require_languages,
    require_one_reader,
    require_output,
)
from nmt.decode.scoring import Scorer
from nmt.logs import progress, say
from nmt.recipe import UserError
from nmt.rerank.corpus_counts import sentence_counts
from nmt.rerank.mert import TuningSet, tune
from nmt.rerank.nbest import Candidate, read_n_best, write_n_best
from nmt.rerank.rerank import (
    Floats,
    Judge,
    best_first,
    feature_names,
    features,
    load_weights,
    save_weights,
)
from nmt.storage.run_folder import find_model
from nmt.text.lines import input_name, read_lines

NBestArgument = Annotated[
    Path, typer.Argument(help="Their translations, as `nmt translate --n-best` writes them; - is standard input.")
]
WeightsOut = Annotated[
    Path | None, typer.Option("--save-weights", metavar="FILE", help="Where to write what --tune found.")
]


class TuningMetric(StrEnum):
    """Choices of --metric."""

    bleu = "bleu"
    chrf = "chrf"


def rerank(
    model: ModelArgument,
    src: SrcArgument,
    nbest: NBestArgument,
    models: Annotated[
        list[Path] | None,
        typer.Option("--model", help="A further model of the same languages, such as one from right to left."),
    ] = None,
    reverse_models: Annotated[
        list[Path] | None, typer.Option("--reverse-model", help="A model from target to source.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="Weights of the features, as --save-weights wrote them.")] = None,
    tune_on: Annotated[
        Path | None, typer.Option("--tune", metavar="REF", help="Find the weights that suit these references best.")
    ] = None,
    metric: Annotated[
        TuningMetric | None, typer.Option(help="What --tune makes as high as it can (default: bleu).")
    ] = None,
    restarts: Annotated[
        int | None, typer.Option(min=0, help="Random places from which --tune starts besides (default: 10).")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of --tune (default: 1).")] = None,
    weights_out: WeightsOut = None,
    n_best: Annotated[int, typer.Option(min=1, help="Translations per line: as number, score, text with tabs.")] = 1,
    device: Device = "auto",
) -> None:
    """Print the best of each line's translations by the weighted sum of what several models say of them.

    The features are the score in the file, the number of words, and the log-probability by MODEL, by each --model and,
    of the source given the translation, by each --reverse-model. Tune the weights on development text, save them, and
    give them for the test text.
    """
    if (weights is None) == (tune_on is None):
        raise typer.BadParameter("the features need weights; give either --weights, or --tune with references")
    of_tuning = {"--metric": metric, "--restarts": restarts, "--seed": seed, "--save-weights": weights_out}
    for option, given in of_tuning.items():
        if given is not None and tune_on is None:
            raise typer.BadParameter(f"{option} has no effect without --tune; add that, or leave it out")
    directories = map(find_model, (model, *(models or ()), *(reverse_models or ())))
    require_output("--save-weights", weights_out, chain([src, nbest, tune_on], directories), replaces=b"[weights]")
    require_one_reader([src, nbest, tune_on])
    sources, lists = _read_lists(src, nbest)
    references = None if tune_on is None else _read_references(tune_on, src, len(sources))
    judges = _load_judges([model, *(models or ())], reverse_models or (), device)
    names = feature_names(judges)
    chosen = None if weights is None else load_weights(weights, names)
    values = _all_features(sources, lists, judges)
    if chosen is None:
        assert references is not None, "without weights there are references"
        restarts, seed = 10 if restarts is None else restarts, 1 if seed is None else seed
        chosen, notes = _tune(values, lists, references, metric or TuningMetric.bleu, restarts, seed)
        found = dict(zip(names, chosen.tolist(), strict=True))
        say("weights: " + ", ".join(f"{name} {weight:.4f}" for name, weight in found.items()))
        if weights_out is not None:
            save_weights(weights_out, found, notes)
    for number, (candidates, own) in enumerate(zip(lists, values, strict=True), start=1):
        ranked = best_first(candidates, own, chosen)
        for line in [ranked[0].text] if n_best == 1 else write_n_best(number, ranked[:n_best]):
            typer.echo(line)


def _load_judges(models: Sequence[Path], reverse_models: Sequence[Path], device: str) -> list[Judge]:
    """The models by name: model, model-2, ... and reverse-model, reverse-model-2, ..."""
    own, judges = languages(models[0]), []
    for name, paths, expected in (("model", models, own), ("reverse-model", reverse_models, own[::-1])):
        for number, path in enumerate(paths, start=1):
            require_languages(f"--{name}", path, expected)
            full_name = name if number == 1 else f"{name}-{number}"
            judges.append(Judge(full_name, Scorer.load(path, device), reverse=name != "model"))
    return judges


def _all_features(sources: Sequence[str], lists: Sequence[list[Candidate]], judges: Sequence[Judge]) -> list[Floats]:
    with progress("scoring", sum(map(len, lists)) * len(judges), "translations") as bar:
        return features(sources, lists, judges, done=bar.advance)


def _tune(
    values: Sequence[Floats],
    lists: Sequence[list[Candidate]],
    references: Sequence[str],
    metric: TuningMetric,
    restarts: int,
    seed: int,
) -> tuple[Floats, dict[str, object]]:
    """The weights, and what is worth noting of how they were found."""
    counts = [
        sentence_counts(metric.value, [candidate.text for candidate in candidates], reference)
        for candidates, reference in zip(lists, references, strict=True)
    ]
    lists_of_counts = TuningSet.from_lists(values, counts, metric.value)
    as_given = np.zeros(values[0].shape[1])
    as_given[0] = 1.0  # the score that the candidates came with
    before = lists_of_counts.score(as_given)
    weights, after = tune(lists_of_counts, as_given, restarts=restarts, seed=seed)
    say(f"{metric.value} {before:.2f} by the scores in the file, {after:.2f} tuned")
    notes: dict[str, object] = {
        "metric": metric.value,
        "before": round(before, 4),
        "after": round(after, 4),
        "seed": seed,
    }
    return weights, notes


def _read_lists(src: Path, nbest: Path) -> tuple[list[str], list[list[Candidate]]]:
    sources, lists = list(read_lines(src, once=True)), read_n_best(read_lines(nbest, once=True), input_name(nbest))
    if not sources:
        raise UserError(f"{input_name(src)} is empty; it must hold one sentence a line; check the file")
    if len(sources) != len(lists):
        raise UserError(
            f"{input_name(src)} has {len(sources):,} lines and {input_name(nbest)} has translations of {len(lists):,}; "
            "they must be of the same text; check both"
        )
    return sources, lists


def _read_references(path: Path, src: Path, wanted: int) -> list[str]:
    references = list(read_lines(path, once=True))
    if len(references) != wanted:
        raise UserError(
            f"{input_name(path)} has {len(references):,} lines and {input_name(src)} has {wanted:,}; they must match "
            "line by line; check both"
        )
    return references
