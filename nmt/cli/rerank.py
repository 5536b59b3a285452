"""`nmt rerank`: rerank n-best lists with several models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.arguments import (
    Device,
    ModelArgument,
    SrcArgument,
    check_inputs,
    file_path,
    languages,
    missing_option,
    require_languages,
)
from nmt.decode.scoring import TextScorer
from nmt.errors import UserError
from nmt.evaluate.hints import hint_at_unicode_form
from nmt.evaluate.metrics import Scorer, make_scorer, tokenizer_of_run
from nmt.evaluate.sentence_counts import SentenceMetric, sentence_counts
from nmt.logs import counted, progress, say
from nmt.recipe import NO_LANGUAGE
from nmt.rerank.corpus_counts import CorpusMetric, Counts
from nmt.rerank.mert import TunedWeights, TuningSet, tune
from nmt.rerank.nbest import Candidate, read_n_best, write_n_best
from nmt.rerank.rerank import (
    FeatureModel,
    best_first,
    feature_names,
    features,
    load_weights,
    parameters_digest,
    save_weights,
)
from nmt.storage.model_metadata import read_model_metadata, warn_of_missing_tag
from nmt.storage.run_folder import find_model
from nmt.streams.output_checks import require_output
from nmt.text.format_warnings import warn_of_empty, warn_of_pairs
from nmt.text.lines import input_name, read_lines, require_lines, require_same_length
from nmt.text.tokenizer import Tokenizers

NBestArgument = Annotated[
    Path, typer.Argument(help="n-best lists as text, written by `nmt translate --n-best`; - is standard input.")
]
WeightsOut = Annotated[
    Path | None,
    typer.Option("--save-weights", parser=file_path, metavar="FILE", help="Write the tuned weights to this file."),
]


def rerank(
    model: ModelArgument,
    src: SrcArgument,
    nbest: NBestArgument,
    models: Annotated[
        list[Path] | None,
        typer.Option("--model", help="Additional model for the same languages, or a language model; repeatable."),
    ] = None,
    reverse_models: Annotated[
        list[Path] | None, typer.Option("--reverse-model", help="Target-to-source model; repeatable.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="Feature weights, as written by --save-weights.")] = None,
    tune_on: Annotated[
        Path | None, typer.Option("--tune", metavar="REF", help="Tune the weights on these references (MERT).")
    ] = None,
    metric: Annotated[CorpusMetric | None, typer.Option(help="Metric that --tune maximizes (default: bleu).")] = None,
    restarts: Annotated[int | None, typer.Option(min=0, help="Random restarts of --tune (default: 10).")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of --tune (default: 1).")] = None,
    weights_out: WeightsOut = None,
    n_best: Annotated[int, typer.Option(min=1, help="Translations per line; if above 1: number, score, text.")] = 1,
    device: Device = "auto",
) -> None:
    """Print the best translation of each n-best list by a weighted sum of features.

    The features are the score in the list, the number of words, and the log-probabilities of MODEL, of each --model,
    and of each --reverse-model (source given translation). Tune the weights on the validation set with --tune and
    --save-weights, and apply them to test text with --weights.
    """
    if (weights is None) == (tune_on is None):
        raise typer.BadParameter("the features need weights; give either --weights or --tune")
    tuning_options = {"--metric": metric, "--restarts": restarts, "--seed": seed, "--save-weights": weights_out}
    for option, value in tuning_options.items():
        if value is not None and tune_on is None:
            raise missing_option(option, "--tune")
    directories = map(find_model, (model, *(models or ()), *(reverse_models or ())))
    require_output("--save-weights", weights_out, chain([src, nbest, tune_on], directories), replaces=b"[weights]")
    check_inputs([src, nbest, tune_on])
    sources, lists = _read_lists(src, nbest)
    references = [] if tune_on is None else _read_references(tune_on, src, sources, lists)
    warn_of_pairs(src, sources, tune_on, references)
    metric = metric or "bleu"
    scorer = None if tune_on is None else _make_scorer(model, metric)
    feature_models = _load_models([model, *(models or ())], reverse_models or (), device)
    feature_weights = None if weights is None else load_weights(weights, feature_models)
    with progress("scoring", sum(map(len, lists)) * len(feature_models), "translations") as bar:
        values = features(sources, lists, feature_models, progress=bar.advance)
    if feature_weights is None:
        assert scorer is not None, "either --weights or --tune is given"
        seed = 1 if seed is None else seed
        tuning_set = TuningSet.from_lists(values, _count_matches(scorer.metric, lists, references), metric)
        tuned = tune(tuning_set, restarts=10 if restarts is None else restarts, seed=seed)
        case = "" if scorer.is_case_sensitive else ", ignoring case"
        say(f"{metric} {tuned.before:.2f} with the scores in the list, {tuned.after:.2f} tuned{case}")
        _save(tuned, feature_models, {"metric": metric, "seed": seed}, weights_out)
        feature_weights = tuned.weights
    for number, (candidates, candidate_values) in enumerate(zip(lists, values, strict=True), start=1):
        ranked = best_first(candidates, candidate_values, feature_weights)
        lines = [ranked[0].text] if n_best == 1 else write_n_best(number, ranked[:n_best])
        for line in lines:
            typer.echo(line)


def _load_models(models: Sequence[Path], reverse_models: Sequence[Path], device: str) -> list[FeatureModel]:
    """Load the models, named model, model-2, ... and reverse-model, reverse-model-2, ..."""
    src_lang, tgt_lang = languages(models[0])
    loaded = []
    for name, paths, pair in (
        ("model", models, (src_lang, tgt_lang)),
        ("reverse-model", reverse_models, (tgt_lang, src_lang)),
    ):
        for number, path in enumerate(paths, start=1):
            if name != "model" or languages(path) != (NO_LANGUAGE, tgt_lang):
                require_languages(f"--{name}", path, pair)
            metadata = read_model_metadata(find_model(path))
            warn_of_missing_tag(path, metadata, metadata.decode.tag, has_option=False)
            full_name = name if number == 1 else f"{name}-{number}"
            scorer = TextScorer.load(path, device)
            digest = parameters_digest(find_model(path))
            loaded.append(FeatureModel(full_name, scorer, reverse=name != "model", path=path, digest=digest))
    return loaded


def _make_scorer(model: Path, metric: CorpusMetric) -> Scorer:
    """Return the scorer of `nmt run`: with the tokenizer of the recipe, ignoring case if the model writes lowercase."""
    directory = find_model(model)
    lowercase = Tokenizers.load(directory).tgt.lowercases()
    tokenize = tokenizer_of_run(directory)
    return make_scorer(metric, tgt_lang=languages(model)[1], tokenize=tokenize, lowercase=lowercase)


def _save(tuned: TunedWeights, models: Sequence[FeatureModel], options: Mapping[str, object], out: Path | None) -> None:
    """Log the weights, and write them to a file, if any, with the scores and options of the tuning."""
    weights = dict(zip(feature_names(models), tuned.weights.tolist(), strict=True))
    say("weights: " + ", ".join(f"{name} {weight:.4f}" for name, weight in weights.items()))
    if out is not None:
        scores = {"before": round(tuned.before, 4), "after": round(tuned.after, 4)}
        save_weights(out, weights, {**options, **scores}, models)


def _count_matches(scorer: SentenceMetric, lists: Sequence[list[Candidate]], references: Sequence[str]) -> list[Counts]:
    """Count the matches of the candidates of each line with its reference."""
    return [
        sentence_counts(scorer, [candidate.text for candidate in candidates], [[reference] * len(candidates)])
        for candidates, reference in zip(lists, references, strict=True)
    ]


def _read_references(tune_on: Path, src: Path, sources: Sequence[str], lists: Sequence[list[Candidate]]) -> list[str]:
    references = list(read_lines(tune_on, allow_pipe=True))
    require_same_length(tune_on, len(references), src, len(sources))
    warn_of_empty(input_name(tune_on), references, [sources], "any translation of such a line counts as wrong")
    hint_at_unicode_form("the n-best list", [candidates[0].text for candidates in lists], [references])
    return references


def _read_lists(src: Path, nbest: Path) -> tuple[list[str], list[list[Candidate]]]:
    sources = list(read_lines(src, allow_pipe=True))
    lists = read_n_best(read_lines(nbest, allow_pipe=True), input_name(nbest))
    require_lines(src, len(sources))
    if len(sources) != len(lists):
        raise UserError(
            f"{input_name(src)} has {counted(len(sources), 'line')} and {input_name(nbest)} has translations of "
            f"{len(lists):,}; each line must have an n-best list; check both"
        )
    return sources, lists
