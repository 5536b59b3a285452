"""Steps of a run: prepare, train, average, translate, score and report."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch

from nmt.alignment.term_markup import prepare_alignments
from nmt.alignment.training import require_alignment_files
from nmt.checkpoint import Tensors, average_checkpoints, average_origin, ema_origin, model_files, write_ema
from nmt.data import prepare as preparation
from nmt.data.prepare import Prepared, load_prepared
from nmt.data.shared import load_shared
from nmt.data.store import PairStore
from nmt.data.test_sets import TestSet, test_sets
from nmt.decode.context import translate_documents
from nmt.decode.requirements import decoding_files, require_decoding, require_decoding_inputs
from nmt.decode.scoring import TextScorer
from nmt.decode.translator import Translator
from nmt.devices.precision import choose_precision
from nmt.diagnostics.leaks import SetLeaks, begin_search, read_leaks, record_leaks
from nmt.errors import UserError
from nmt.evaluate.baselines import find_baseline
from nmt.evaluate.forecast import read_forecast
from nmt.evaluate.inputs import check_scoring, hint_at_lowercase_output, scoring_options
from nmt.evaluate.likelihood import require_test_lengths, score_test_set
from nmt.evaluate.metrics import Score, make_scorer, score_corpus, score_labels
from nmt.evaluate.report import (
    DataSummary,
    RunReport,
    ScoredTestSet,
    TrainingSummary,
    choose_samples,
    describe_machine,
    describe_software,
    find_git_commit,
    summarize,
    with_direction,
)
from nmt.evaluate.report_format import write_report
from nmt.evaluate.translated import (
    TranslatedSet,
    context_digest,
    find_translated,
    output_name,
    references_digest,
    text_digest,
    translation_digest,
)
from nmt.logs import counted, progress, say, warn
from nmt.models import build_model
from nmt.plots.curves import draw_curves
from nmt.processes.distributed import World, start_world
from nmt.processes.interruption import interruptible
from nmt.processes.run_lock import run_lock
from nmt.recipe import DecodeRecipe, Recipe, dump_choices, dump_recipe, load_saved_recipe
from nmt.recipe.corpora import directions, directions_by_tag
from nmt.storage.model_metadata import ModelMetadata, longest_source_of, read_model_metadata
from nmt.storage.run_folder import checkpoint_step, list_checkpoints, require_own_files, require_own_model, require_run
from nmt.storage.sealed import (
    CorruptError,
    manifest_digest,
    remove_partial_files,
    require_new,
    verify_directory,
    write_file,
)
from nmt.train.batching import Workload
from nmt.train.data import TrainingData
from nmt.train.disk_space import require_disk_space
from nmt.train.resume import require_same_text, require_same_tokenizers
from nmt.train.state import TrainState, require_same_run
from nmt.train.trainer import ModelFiles, Trainer
from nmt.train.validate import validate_average
from nmt.train.warm_start import require_start_model, with_start_model
from nmt.validation_bleu import validation_translator

# Test sentences per window; GPU batches are up to 16 times as large as CPU batches.
_TEST_WINDOW, _TEST_GPU_FACTOR = 256, 16
# Options that may differ between the processes of a job.
_OPTIONS_OF_MACHINES: dict[str, Any] = {
    "run_dir": True,
    "data": {"root", "workers"},
    "train": {"device", "threads", "start_from"},
}

AverageKind = Literal["last", "best", "ema"]


def run(recipe: Recipe) -> None:
    """Execute all steps of a run; steps with up-to-date results are skipped.

    Raises UserError, or Stopped after a signal.
    """
    recipe = with_start_model(recipe, warns=True)
    with interruptible(), start_world(recipe.train.device) as world, _locked(recipe, world):
        require_same_run(recipe)
        world.run_on_main(lambda: require_own_model(recipe.directory))
        world.run_on_main(lambda: require_test_sets(recipe))
        state = _train(recipe, world, scores_tests=True)
        world.run_on_main(lambda: _finish(recipe, world, state))


def prepare(recipe: Recipe) -> Prepared:
    """Clean the corpora, train the tokenizers and write the token store.

    Raises UserError for unreadable input, and if the text that a run was trained on would be lost.
    """
    recipe = with_start_model(recipe, warns=True)
    with interruptible(), run_lock(recipe.directory):
        return _prepare(recipe)


def train(recipe: Recipe) -> TrainState:
    """Prepare the data unless it is up to date, and train; raises UserError, or Stopped after a signal."""
    recipe = with_start_model(recipe, warns=True)
    with interruptible(), start_world(recipe.train.device) as world, _locked(recipe, world):
        return _train(recipe, world)


def average(run_dir: str | Path, out: str | Path, kind: AverageKind, count: int) -> list[Path]:
    """Write an averaged model of a run; return the averaged checkpoints.

    kind: `last` averages the newest `count` checkpoints, `best` those with the best validation results; `ema` is
        the EMA at the newest checkpoint

    Raises UserError if `out` exists, if there are too few checkpoints, or if there is no EMA.
    """
    run_dir, out = Path(run_dir), Path(out)
    require_new(out)
    checkpoints = _choose_checkpoints(run_dir, kind, count)
    saved_recipe = run_dir / "recipe.toml"
    # Not the search options of the checkpoints, which may be older.
    decode = load_saved_recipe(saved_recipe).decode if saved_recipe.is_file() else None
    _write_average(checkpoints, kind, out, decode)
    return checkpoints


def _choose_checkpoints(run_dir: Path, kind: AverageKind, count: int, *, accept_fewer: bool = False) -> list[Path]:
    """Return the checkpoints to average, oldest first."""
    require_run(run_dir)
    checkpoints = list_checkpoints(run_dir)
    if not checkpoints:
        raise UserError(f"{run_dir} has no checkpoints; train first")
    if kind == "ema":
        return checkpoints[-1:]
    noun, option = "checkpoint", "keep_last"
    if kind == "best":
        noun, option = "validated checkpoint", "keep_best"
        by_step = {checkpoint_step(checkpoint): checkpoint for checkpoint in checkpoints}
        best = TrainState.load(checkpoints[-1]).best_steps()
        missing = set(best[:count]) - by_step.keys()
        if missing and not accept_fewer:
            steps = ", ".join(map(str, sorted(missing)))
            raise UserError(
                f"{run_dir} lacks checkpoints that are among its {count} best (steps {steps}); average fewer, or train "
                "another run with a higher train.keep_best"
            )
        checkpoints = [by_step[step] for step in reversed(best) if step in by_step]
        if not checkpoints:
            raise UserError(
                f"{run_dir} has no validated checkpoint; the average of the best needs one; lower "
                "train.validate_every and train longer, or average the last checkpoints"
            )
    if len(checkpoints) < count and not accept_fewer:
        available = counted(len(checkpoints), noun)
        raise UserError(
            f"cannot average {count} checkpoints: {run_dir} has {available}; average fewer (--{kind} "
            f"{len(checkpoints)}); another run keeps more with train.{option} or a lower train.save_every"
        )
    return sorted(checkpoints[-count:])


def _write_average(
    paths: Sequence[Path], kind: AverageKind, out: Path, decode: DecodeRecipe | None, *, replaces: bool = False
) -> None:
    if kind == "ema":
        write_ema(paths[-1], out, decode, replaces=replaces)
    else:
        average_checkpoints(paths, out, decode, replaces=replaces)


# --- Training -------------------------------------------------------------------------------------------------------


def require_test_sets(recipe: Recipe) -> None:
    """Raise UserError, before training, for a test set that cannot be read or scored; warn about wrong references."""
    tests = test_sets(recipe)
    if recipe.is_language_model:
        return
    for test in tests.values():
        options = scoring_options(recipe, recipe.tokenizer.lowercase, test.name)
        test.warn_of_wrong_references(recipe.data.unicode_form)
        check_scoring(f"data.test.{test.name}", test.refs, recipe.evaluate.metrics, options)


def _require_validation_bleu(recipe: Recipe) -> None:
    """Raise UserError if the recipe measures validation BLEU and BLEU's tokenizer is not available."""
    if recipe.train.validate_bleu_every:
        make_scorer("bleu", tgt_lang=recipe.tgt_lang, tokenize=recipe.evaluate.tokenize)


def _locked(recipe: Recipe, world: World) -> AbstractContextManager[None]:
    """Lock the run directory against other jobs; the main rank holds the lock."""
    return run_lock(recipe.directory) if world.is_main else nullcontext()


def _prepare(recipe: Recipe) -> Prepared:
    """Prepare the data unless it is up to date; raises UserError if the run was started with other data."""
    require_own_files(recipe.directory, [output_name(recipe, name) for name in recipe.data.test])
    remove_partial_files(recipe.directory)
    require_same_run(recipe)
    require_same_text(recipe)
    require_alignment_files(recipe)
    search = begin_search(recipe)
    prepared = preparation.prepare(recipe, None if isinstance(search, UserError) else search.add)
    require_same_tokenizers(recipe, prepared)
    record_leaks(recipe, prepared.report, search)
    prepare_alignments(prepared, recipe)
    return prepared


def _train(recipe: Recipe, world: World, *, scores_tests: bool = False) -> TrainState:
    world.require_same_options(recipe.model_dump(mode="json", exclude=_OPTIONS_OF_MACHINES))
    require_same_run(recipe)
    world.run_on_main(lambda: require_disk_space(recipe))
    world.run_on_main(lambda: _require_validation_bleu(recipe))
    world.run_on_main(lambda: require_start_model(recipe))
    world.run_on_main(lambda: require_decoding_inputs(recipe))
    world.run_on_main(lambda: _prepare(recipe))
    prepared = load_shared(recipe.data_directory, world)
    tokenizers = prepared.tokenizers
    require_decoding(recipe, tokenizers)
    if scores_tests and recipe.is_language_model:
        world.run_on_main(lambda: require_test_lengths(recipe, tokenizers))
    torch.manual_seed(recipe.seed)
    model = build_model(recipe.model, tokenizers.src.vocab_size, tokenizers.tgt.vocab_size)
    if world.is_main:
        pairs = len(PairStore(prepared.directory, "train"))
        say(f"{model.num_parameters():,} parameters, {pairs:,} training pairs, {world.device}")
    trainer = Trainer(
        recipe,
        world,
        model,
        TrainingData.from_prepared(prepared, recipe, world),
        model_files=_model_files_of(recipe, prepared),
        translate_validation=validation_translator(recipe, prepared, world),
    )
    if world.is_main:  # the trainer has checked that the recipe fits the checkpoints of the run
        write_file(recipe.directory / "recipe.toml", dump_recipe(recipe).encode())
    return trainer.run()


def _model_files_of(recipe: Recipe, prepared: Prepared) -> ModelFiles:
    tokenizers = prepared.tokenizers
    longest = int(PairStore(prepared.directory, "train").src.lengths.max(initial=0))
    earlier = longest_source_of(recipe.directory, recipe.train.start_from)

    def files(tensors: Tensors, step: int) -> Mapping[str, object]:
        metadata = ModelMetadata(
            src_lang=recipe.src_lang,
            tgt_lang=recipe.tgt_lang,
            src_vocab_size=tokenizers.src.vocab_size,
            tgt_vocab_size=tokenizers.tgt.vocab_size,
            unicode_form=recipe.data.unicode_form,
            decode=recipe.decode,
            origin={"recipe": recipe.name, "seed": recipe.seed, "step": step},
            reverse_target=recipe.data.reverse_target,
            max_tokens=recipe.data.max_tokens,
            context=recipe.data.context_options,
            longest_source=None if earlier is None else max(longest, earlier),
            tags=directions_by_tag(recipe.data.train, recipe),
            trained_directions=directions(recipe.data.train, recipe),
        )
        return model_files(recipe.model, tensors, tokenizers.files(), metadata)

    return files


# --- After training -------------------------------------------------------------------------------------------------


def _finish(recipe: Recipe, world: World, state: TrainState) -> None:
    run_dir = recipe.directory
    averaged = _update_model(recipe)
    average_nll = validate_average(recipe, state, averaged, world.device)
    prepared = load_prepared(recipe.data_directory).report
    record_leaks(recipe, prepared, begin_search(recipe))  # the test sets may have changed during training
    leaks = read_leaks(run_dir)
    files = {} if recipe.is_language_model else decoding_files(recipe.decode)
    score_tests = _score_texts if recipe.is_language_model else _translate_tests
    tests, num_parameters = score_tests(recipe, world, leaks)
    _warn_of_outdated(run_dir / "translations", {output_name(recipe, test.name) for test in tests})
    curves, notes = _draw_curves(recipe)
    report = RunReport(
        name=recipe.name,
        summary=summarize(recipe),
        seed=recipe.seed,
        data=DataSummary.from_prepare_report(prepared, _valid_leaks(leaks)),
        parameters=num_parameters,
        model=manifest_digest(run_dir / "model"),
        training=_summarize_training(recipe, world, state, averaged, average_nll),
        tests=tuple(with_direction(test, recipe) for test in tests),
        machine=describe_machine(),
        versions=describe_software(),
        git_commit=find_git_commit(),
        recipe=dump_choices(recipe),
        curves=curves,
        notes=notes,
        changes=tuple(state.changes),
        forecast=read_forecast(run_dir),
        start_from=None if recipe.train.start_from is None else str(recipe.train.start_from),
        decoding_files=files,
    )
    markdown, _ = write_report(report, run_dir)
    print(markdown.read_text(encoding="utf-8"), flush=True)  # noqa: T201 - the report is the result of the command
    say(f"report: {markdown}, model: {run_dir / 'model'}")


def _translate_tests(
    recipe: Recipe, world: World, leaks: Mapping[str, SetLeaks]
) -> tuple[tuple[ScoredTestSet, ...], int]:
    """Translate and score the test sets; return the scores and the number of parameters."""
    translator = Translator.load(recipe.directory / "model", str(world.device), decode=recipe.decode.all_given())
    window = _TEST_WINDOW * (_TEST_GPU_FACTOR if world.device.type == "cuda" else 1)
    model = manifest_digest(recipe.directory / "model")  # includes search options
    origin = repr([model, str(world.device), describe_machine(), describe_software()])
    if files := decoding_files(recipe.decode):
        origin += repr(files)
    tests = tuple(
        _translate_and_score(recipe, translator, test, window, origin, leaks.get(f"data.test.{name}"))
        for name, test in test_sets(recipe).items()
    )
    return tests, translator.num_parameters


def _score_texts(recipe: Recipe, world: World, leaks: Mapping[str, SetLeaks]) -> tuple[tuple[ScoredTestSet, ...], int]:
    """Score the test sets with a language model; return the scores and the number of parameters."""
    model, device = recipe.directory / "model", str(world.device)
    scorer = TextScorer.load(model, device)
    tests = []
    for name, test in test_sets(recipe).items():
        tag = recipe.data.test[name].tag
        tagged = scorer if tag is None else TextScorer.load(model, device, tag)
        tests.append(score_test_set(tagged, test, leaks.get(f"data.test.{name}")))
    return tuple(tests), scorer.num_parameters


def _warn_of_outdated(translations: Path, current: set[str]) -> None:
    """Warn of translations of test sets that the recipe no longer has."""
    outdated = sorted(path.name for path in translations.glob("*") if path.name not in current)
    if outdated:
        warn(f"{translations} also has {', '.join(outdated)} from an earlier run, which may be outdated")


def _valid_leaks(leaks: Mapping[str, SetLeaks]) -> int | None:
    """Return the number of validation pairs in the training text; None if unknown."""
    counts = [set_leaks.counts() for name, set_leaks in leaks.items() if name.startswith("data.valid.")]
    return sum(count.sentences - count.clean for count in counts) if counts else None


def _draw_curves(recipe: Recipe) -> tuple[str | None, tuple[str, ...]]:
    """Return the file name of the training curves, or None and the reason."""
    try:
        return draw_curves(recipe.directory, recipe.directory / "curves.png", recipe.name).name, ()
    except UserError as error:
        return None, (f"No training curves: {error}",)


def _update_model(recipe: Recipe) -> list[Path]:
    """Write the average that the recipe requests to `model` in the run directory, unless it is up to date.

    Returns the averaged checkpoints.
    """
    kind = recipe.train.average
    out = recipe.directory / "model"
    checkpoints = _choose_checkpoints(recipe.directory, kind, recipe.train.average_count, accept_fewer=True)
    origin = ema_origin(checkpoints[-1]) if kind == "ema" else average_origin(checkpoints)
    try:
        verify_directory(out)
        metadata = read_model_metadata(out)
        if origin.items() <= metadata.origin.items() and metadata.decode.model_dump() == recipe.decode.model_dump():
            say(f"{out} is up to date")
            return checkpoints
    except CorruptError:
        pass
    require_own_model(recipe.directory)
    _write_average(checkpoints, kind, out, recipe.decode, replaces=True)
    first, last = checkpoints[0].name, checkpoints[-1].name
    if kind == "ema":
        content = f"the EMA at {last}"
    elif first == last:
        content = f"checkpoint {last}"
    else:
        content = f"the average of {len(checkpoints)} checkpoints, {first} to {last}"
    say(f"{out} is {content}")
    return checkpoints


def _translate_and_score(
    recipe: Recipe, translator: Translator, test: TestSet, window: int, origin: str, leaks: SetLeaks | None
) -> ScoredTestSet:
    """Translate a test set to `translations/NAME.LANG` in the run directory, unless up to date, and score it."""
    if (tag := recipe.data.test[test.name].tag) is not None:
        translator, origin = translator.with_constraints(tag), f"{origin} {tag}"
    translated = _translate(recipe, translator, test, window, origin)
    lines = translated.lines
    evaluate = recipe.evaluate
    metrics = evaluate.metrics
    options = scoring_options(recipe, translator.lowercases, test.name)
    hint_at_lowercase_output(f"data.test.{test.name}", lines, test.refs, metrics, **options)

    def score(texts: Sequence[str], indices: Sequence[int]) -> tuple[Score, ...]:
        chosen_texts = [texts[index] for index in indices]
        refs = [[stream[index] for index in indices] for stream in test.refs]
        return tuple(score_corpus(chosen_texts, refs, metrics, resamples=evaluate.resamples, **options))

    baseline = find_baseline(test.src, test.ref, metrics, evaluate.lead_sentences)
    every = range(len(lines))
    clean = [] if leaks is None else leaks.clean()
    return ScoredTestSet(
        name=test.name,
        sentences=len(test.src),
        seconds=translated.seconds,
        search=f"torch, {translator.precision}",
        digest=translated.digest,
        source=text_digest(test.src),
        references=references_digest(test.refs),
        context=context_digest(test.previous),
        output=text_digest(lines),
        scores=score(lines, every),
        groups=score_labels(test.refs, test.labels, lines, options),
        samples=choose_samples(test.src, test.ref, lines, evaluate.samples),
        leaks=None if leaks is None else leaks.counts(),
        clean_scores=score(lines, clean) if 0 < len(clean) < len(lines) else (),
        baseline="" if baseline is None else baseline.name,
        baseline_description="" if baseline is None else baseline.description,
        baseline_scores=() if baseline is None else score(baseline.outputs, every),
    )


def _translate(recipe: Recipe, translator: Translator, test: TestSet, window: int, origin: str) -> TranslatedSet:
    out = recipe.directory / "translations" / output_name(recipe, test.name)
    if test.previous is not None:
        origin = f"{origin} {test.previous}"
    translated = find_translated(recipe.directory, test.name, out, origin, test.src)
    if translated is not None:
        say(f"{out} is up to date")
        return translated
    lines_split_before = translator.lines_split
    started = time.perf_counter()
    with progress(f"translating {test.name}", len(test.src), "sentences") as bar:
        lines = translate_documents(translator, test.src, test.previous, window, bar.advance)
    seconds = time.perf_counter() - started
    num_long = translator.lines_split - lines_split_before
    if num_long:
        were = "was" if num_long == 1 else "were"
        result = "truncated" if recipe.decode.long_lines == "truncate" else "translated in parts"
        warn(f"{counted(num_long, 'line')} of data.test.{test.name} {were} too long for the model and {were} {result}")
    out.parent.mkdir(exist_ok=True)
    remove_partial_files(out.parent)
    write_file(out, "".join(f"{line}\n" for line in lines).encode())
    return TranslatedSet(lines, seconds, translation_digest(origin, test.src, lines))


def _summarize_training(
    recipe: Recipe, world: World, state: TrainState, averaged: Sequence[Path], average_nll: float | None
) -> TrainingSummary:
    work = Workload(**state.workload) if state.workload else None
    best = "valid/average_" if state.is_best_from_ema else "valid/"
    return TrainingSummary(
        steps=state.step,
        epochs=state.epochs,
        seconds=state.seconds,
        tgt_tokens=state.tgt_tokens,
        world_size=state.processes or world.size,
        device=state.device or str(world.device),
        precision=state.precision or choose_precision(recipe.train.precision, world.device),
        valid_nll=state.best_validation.get(f"{best}nll"),
        valid_bleu=state.best_validation.get(f"{best}bleu") if recipe.train.best_metric == "bleu" else None,
        valid_step=state.best_step or None,
        is_worse_than_start=state.best_score < (state.start_score or state.best_score),
        is_from_ema=state.is_best_from_ema,
        averaged=0 if recipe.train.average == "ema" else len(averaged),
        skipped=state.skipped,
        micro_batches=work.micro_batches if work else None,
        useful_fraction=work.efficiency if work else None,
        average_nll=average_nll,
        valid=state.valid,
    )
