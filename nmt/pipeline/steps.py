"""The steps up to the trained model, and `run`, which executes all steps."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from nmt.alignment.term_markup import prepare_alignments
from nmt.alignment.training import require_alignment_files
from nmt.checkpoint import Tensors, model_files
from nmt.data import prepare as preparation
from nmt.data.prepare import Prepared
from nmt.data.shared import load_shared
from nmt.data.store import PairStore
from nmt.data.test_sets import test_sets
from nmt.decode.requirements import require_decoding, require_decoding_inputs
from nmt.diagnostics.leaks import begin_search, record_leaks
from nmt.errors import UserError
from nmt.evaluate.hints import check_scoring
from nmt.evaluate.likelihood import require_test_lengths
from nmt.evaluate.metrics import make_scorer, scoring_options
from nmt.evaluate.translated import output_name
from nmt.logs import say
from nmt.models import build_model
from nmt.pipeline.reporting import finish
from nmt.processes.distributed import World, start_world
from nmt.processes.interruption import interruptible
from nmt.processes.run_lock import run_lock
from nmt.recipe import Recipe, dump_recipe
from nmt.recipe.corpora import directions, directions_by_tag
from nmt.storage.model_metadata import ModelMetadata, longest_source_of
from nmt.storage.run_folder import require_own_files, require_own_model
from nmt.storage.sealed import remove_partial_files, write_file
from nmt.train.data import TrainingData
from nmt.train.disk_space import require_disk_space
from nmt.train.resume import require_same_text, require_same_tokenizers
from nmt.train.state import TrainState, require_same_run
from nmt.train.trainer import ModelFiles, Trainer
from nmt.train.warm_start import require_start_model, with_start_model
from nmt.validation_bleu import validation_translator

# Options that may differ between the processes of a job.
_OPTIONS_OF_MACHINES: dict[str, Any] = {
    "run_dir": True,
    "data": {"root", "workers"},
    "train": {"device", "threads", "start_from"},
}


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
        world.run_on_main(lambda: finish(recipe, world, state))


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
