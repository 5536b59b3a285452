"""The steps of a run, and all of them in a row: the one place where training meets decoding."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from nmt.checkpoint import (
    CorruptError,
    ModelFacts,
    average_checkpoints,
    checkpoint_step,
    list_checkpoints,
    model_files,
    model_tensors,
    read_model_facts,
    verify_directory,
)
from nmt.data.prepare import Prepared, TestSet, load_prepared, prepare, test_sets
from nmt.data.store import PairStore
from nmt.decode.translator import Translator
from nmt.distributed import World, start_world
from nmt.evaluate.metrics import score_by_group, score_corpus
from nmt.evaluate.report import (
    DataFacts,
    RunFacts,
    ScoredTestSet,
    TrainingFacts,
    choose_samples,
    describe_machine,
    describe_software,
    find_git_commit,
    summarize,
    write_report,
)
from nmt.logs import progress, say
from nmt.model.transformer import Transformer
from nmt.precision import choose_precision
from nmt.recipe import Recipe, UserError, dump_recipe
from nmt.train.trainer import Position, Trainer, TranslateValidation, ValidationText

# Sentences that are translated between two movements of the progress bar.
TRANSLATION_WINDOW = 256
SHOWN_SAMPLES = 5


def run(recipe: Recipe) -> None:
    """Prepare, train, average, translate and score the test sets, report; what is up to date is not done again.

    Raises UserError, or Stopped when training was asked to stop.
    """
    with start_world(recipe.train.device) as world:
        position = _train(recipe, world)
        if world.is_first:
            _finish(recipe, world, position)
        world.barrier()


def train(recipe: Recipe) -> Position:
    """Prepare if need be, then train to the end; raises UserError, or Stopped after a signal."""
    with start_world(recipe.train.device) as world:
        return _train(recipe, world)


def average(run_dir: Path, out: Path, *, last: int | None = None, best: int | None = None) -> list[Path]:
    """Write the average of the newest `last`, or of the `best` best, checkpoints of a run as a model directory.

    Returns the averaged checkpoints, oldest first; raises UserError when there are not that many.
    """
    found = list_checkpoints(run_dir)
    wanted = best or last or 1
    if len(found) < wanted:
        raise UserError(
            f"{run_dir} has {len(found)} checkpoints; to average {wanted} there must be as many; "
            "raise train.keep_last (or keep_best), or average fewer"
        )
    chosen = _best_checkpoints(found, best) if best else found[-wanted:]
    average_checkpoints(chosen, out)
    return chosen


# --- Training -------------------------------------------------------------------------------------------------------


def _train(recipe: Recipe, world: World) -> Position:
    prepared = _prepare_once(recipe, world)
    directory, tokenizers = prepared.directory, prepared.tokenizers
    if world.is_first:
        (recipe.directory / "recipe.toml").write_text(dump_recipe(recipe), encoding="utf-8")
    torch.manual_seed(recipe.seed)
    model = Transformer(recipe.model, tokenizers.src.vocab_size, tokenizers.tgt.vocab_size)
    if world.is_first:
        say(
            f"{model.num_parameters():,} weights, {len(PairStore(directory, 'train')):,} training pairs, {world.device}"
        )
    trainer = Trainer(
        recipe,
        world,
        model,
        train=PairStore(directory, "train"),
        valid=PairStore(directory, "valid"),
        model_files=_model_files_of(recipe, prepared),
        translate_validation=_validation_translator(recipe, prepared, world),
    )
    return trainer.run()


def _prepare_once(recipe: Recipe, world: World) -> Prepared:
    """The first process prepares, the others wait for it."""
    if world.is_first:
        prepare(recipe)
    world.barrier()
    return load_prepared(recipe.data_directory)


def _model_files_of(recipe: Recipe, prepared: Prepared) -> Callable[[Transformer, int], Mapping[str, object]]:
    tokenizers = prepared.tokenizers

    def files(model: Transformer, step: int) -> Mapping[str, object]:
        facts = ModelFacts(
            src_lang=recipe.src_lang,
            tgt_lang=recipe.tgt_lang,
            src_vocab_size=tokenizers.src.vocab_size,
            tgt_vocab_size=tokenizers.tgt.vocab_size,
            unicode_form=recipe.data.unicode_form,
            decode=recipe.decode,
            origin={"recipe": recipe.name, "seed": recipe.seed, "step": step},
        )
        return model_files(recipe.model, model_tensors(model), tokenizers.files(), facts)

    return files


def _validation_translator(recipe: Recipe, prepared: Prepared, world: World) -> TranslateValidation | None:
    """What decodes the head of the development text during training, where the recipe asks for it."""
    if not recipe.train.validate_bleu_every:
        return None
    valid = prepared.valid_set()
    src, ref = (side[: recipe.train.validate_bleu_sentences] for side in (valid.src, valid.ref))

    def translate(model: Transformer) -> ValidationText:
        lines = _translator_of(model, recipe, prepared, world).translate(src)
        (bleu,) = score_corpus(lines, [ref], ["bleu"], tgt_lang=recipe.tgt_lang)
        shown = choose_samples(src, ref, lines, SHOWN_SAMPLES)
        rows = [f"| {s.src} | {s.translation} | {s.ref} |" for s in shown]
        return ValidationText(bleu.value, "\n".join(["| source | translation | reference |", "|---|---|---|", *rows]))

    return translate


def _translator_of(model: Transformer, recipe: Recipe, prepared: Prepared, world: World) -> Translator:
    return Translator(
        model,
        prepared.tokenizers,
        recipe.decode,
        max_positions=recipe.model.max_positions,
        unicode_form=recipe.data.unicode_form,
        device=world.device,
    )


# --- After training -------------------------------------------------------------------------------------------------


def _finish(recipe: Recipe, world: World, position: Position) -> None:
    run_dir = recipe.directory
    averaged = _average_of_run(recipe)
    translator = Translator.load(run_dir / "model", str(world.device), decode=recipe.decode)
    tests = tuple(_translate_and_score(recipe, translator, test) for test in test_sets(recipe).values())
    facts = RunFacts(
        name=recipe.name,
        summary=summarize(recipe),
        seed=recipe.seed,
        data=DataFacts.from_prepare_report(load_prepared(recipe.data_directory).report),
        parameters=translator.num_parameters,
        training=_training_facts(recipe, world, position, averaged),
        tests=tests,
        machine=describe_machine(),
        versions=describe_software(),
        git_commit=find_git_commit(),
    )
    markdown, _ = write_report(facts, run_dir)
    print(markdown.read_text(encoding="utf-8"))  # noqa: T201 - the report is the result of the command
    say(f"report: {markdown}, model: {run_dir / 'model'}")


def _average_of_run(recipe: Recipe) -> list[Path]:
    """Make `model` in the run directory the average of its last checkpoints, unless it is that already."""
    run_dir, out = recipe.directory, recipe.directory / "model"
    chosen = list_checkpoints(run_dir)[-recipe.train.average_last :]
    names = [directory.name for directory in chosen]
    try:
        verify_directory(out)
        if read_model_facts(out).origin.get("averaged") == names:
            say(f"{out} is up to date")
            return chosen
    except CorruptError:
        pass
    shutil.rmtree(out, ignore_errors=True)
    average_checkpoints(chosen, out)
    say(f"averaged {len(chosen)} checkpoints ({names[0]} to {names[-1]}) into {out}")
    return chosen


def _translate_and_score(recipe: Recipe, translator: Translator, test: TestSet) -> ScoredTestSet:
    """Translate a test set into `translations/<name>.<lang>` of the run directory, and score it."""
    started = time.perf_counter()
    lines: list[str] = []
    with progress(f"translating {test.name}", len(test.src), "sentences") as bar:
        for translations in translator.stream(test.src, TRANSLATION_WINDOW):
            lines.append(translations[0].text)
            bar.advance(1)
    seconds = time.perf_counter() - started
    out = recipe.directory / "translations"
    out.mkdir(exist_ok=True)
    (out / f"{test.name}.{recipe.tgt_lang}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    metrics, language = recipe.evaluate.metrics, recipe.tgt_lang
    return ScoredTestSet(
        name=test.name,
        sentences=len(test.src),
        seconds=seconds,
        scores=tuple(score_corpus(lines, [test.ref], metrics, tgt_lang=language)),
        groups=tuple(score_by_group(lines, [test.ref], test.phenomena, tgt_lang=language)) if test.phenomena else (),
        samples=choose_samples(test.src, test.ref, lines, recipe.evaluate.samples),
    )


def _training_facts(recipe: Recipe, world: World, position: Position, averaged: Sequence[Path]) -> TrainingFacts:
    return TrainingFacts(
        steps=position.step,
        epochs=position.epochs,
        seconds=position.seconds,
        tgt_tokens=position.tgt_tokens,
        world_size=world.size,
        device=str(world.device),
        precision=choose_precision(recipe.train.precision, world.device),
        valid_loss=position.best_validation.get("valid/nll"),
        valid_loss_step=position.best_step or None,
        averaged=len(averaged),
    )


def _best_checkpoints(found: Sequence[Path], count: int) -> list[Path]:
    """The `count` checkpoints with the best validation score, oldest first."""
    scores = Position.load(found[-1]).scores
    scored = [directory for directory in found if str(checkpoint_step(directory)) in scores]
    if len(scored) < count:
        raise UserError(
            f"only {len(scored)} checkpoints were validated; --best {count} needs as many; raise train.keep_best"
        )
    scored.sort(key=lambda directory: -scores[str(checkpoint_step(directory))])
    return sorted(scored[:count])
