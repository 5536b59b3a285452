"""Resume a run: choose the checkpoint, and check what changed since it was saved."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from nmt.alignment.term_markup import training_identity
from nmt.alignment.training import changed_alignment
from nmt.checkpoint import Checkpoint, load_checkpoint, newest_checkpoint, remove_leftovers
from nmt.data.corpus import require_files
from nmt.data.fingerprint import describe_change, outdated_splits, read_report
from nmt.data.prepare import Prepared
from nmt.data.reused_tokenizers import find_tokenizers, load_verified_tokenizers, tokenizer_sources, with_symbols_of
from nmt.errors import UserError
from nmt.logs import say
from nmt.processes.distributed import World
from nmt.recipe import ClassificationRecipe, Recipe, load_classification_recipe, load_saved_recipe
from nmt.storage.run_folder import checkpoint_directory, checkpoint_step, list_checkpoints
from nmt.storage.sealed import manifest_digest
from nmt.train.schedule import learning_rate
from nmt.train.state import Change, TrainState, differences, full_names

AnyRecipe = Recipe | ClassificationRecipe

# Options of the train section that may change during a run, but not once it is finished.
_UPDATE_OPTIONS = (
    *("max_epochs", "batch_tokens", "learning_rate", "schedule", "warmup_steps", "schedule_start"),
    *("final_rate_ratio", "dropout_ramp_steps", "label_smoothing", "clip_norm", "weight_decay"),
    *("guided_alignment_weight", "adam_betas", "adam_epsilon", "precision", "micro_batch_tokens", "micro_batches"),
    *("activation_checkpointing", "compile", "shapes", "best_metric", "plateau_factor", "plateau_patience"),
)

# The report of a run uses the current values of these options.
_REPORT_OPTIONS = ("data.test", "decode.", "evaluate.")

_VALIDATION_SET = "the validation set"

# Maximum factor by which changed options may raise the learning rate from one update to the next.
_MAX_RATE_FACTOR = 2.0


def choose_checkpoint(run_dir: Path, world: World) -> tuple[Path, Checkpoint] | None:
    """Return on every process the newest checkpoint that is valid on rank 0; None without checkpoints.

    Only rank 0 renames corrupt checkpoints and removes incomplete ones.

    Raises:
        UserError: another process does not see the same checkpoint.
        CorruptError: another process reads different content.
    """
    newest = None
    identity = ""
    if world.is_main:
        remove_leftovers(run_dir)
        newest = newest_checkpoint(run_dir)
        if newest is not None:
            identity = f"{checkpoint_step(newest[0])} {manifest_digest(newest[0])}"
    identity = world.broadcast_text(identity)
    if world.is_main or not identity:
        return newest
    step, _, digest = identity.partition(" ")
    directory = checkpoint_directory(run_dir, int(step))
    if manifest_digest(directory) != digest:
        raise UserError(
            f"{directory} is missing or differs from the one that rank 0 reads; all processes must see the same files; "
            "put run_dir on a shared file system"
        )
    return directory, load_checkpoint(directory)


def require_same_text(recipe: Recipe) -> None:
    """Raise UserError if the run has checkpoints and its prepared training text is outdated.

    Call it before preparing data: a new tokenizer for old parameters would destroy the run.
    """
    directory = recipe.data_directory
    report = read_report(directory)
    if report is None or not _is_text_of_run(recipe, report):
        return
    if "train" in outdated_splits(recipe, directory, warns=False):
        require_files((*recipe.data.train, *recipe.data.valid), recipe.data.root)
        changed = _changed_tokenizer(recipe, report) or describe_change(recipe, report)
    else:
        changed = changed_alignment(recipe)
    if changed:
        raise UserError(_text_error(recipe, f"{changed} has changed since the text was prepared"))


def _changed_tokenizer(recipe: Recipe, report: dict[str, Any]) -> str:
    """Describe the first reused tokenizer that is not that of the prepared text; "" if there is none."""
    for path in tokenizer_sources(recipe):
        if path.exists():
            tokenizers = with_symbols_of(recipe, load_verified_tokenizers(find_tokenizers(path)))
            if tokenizers.digests() != report["tokenizers"]:
                return f"the tokenizer of {path}"
    return ""


def _is_text_of_run(recipe: Recipe, report: dict[str, Any]) -> bool:
    """Return whether the run has checkpoints trained on the prepared text; if not, the text is prepared again."""
    for checkpoint in reversed(list_checkpoints(recipe.directory)):
        with suppress(UserError):  # damaged, or of another version
            text = TrainState.load(checkpoint).text
            return text in ("", training_identity(report, recipe.data_directory, recipe))
    return bool(list_checkpoints(recipe.directory))


def require_same_identity(recipe: Recipe, state: TrainState, identity: str) -> None:
    """Raise UserError if a checkpoint was trained on different text; identity: see `TrainState.text`."""
    if state.text and identity and state.text != identity:
        raise UserError(_text_error(recipe, "its prepared training text is not that of the checkpoint"))


def require_same_tokenizers(recipe: Recipe, prepared: Prepared) -> None:
    """Raise UserError if the newest checkpoint with valid tokenizer files has other tokenizers than `prepared`.

    If the prepared files are damaged, the error says so. Damaged checkpoints are skipped; resuming reports them.
    """
    for checkpoint in reversed(list_checkpoints(recipe.directory)):
        try:
            saved = load_verified_tokenizers(checkpoint)
        except UserError:
            continue
        if saved.files() != prepared.tokenizers.files():
            prepared.verify()
            raise UserError(_text_error(recipe, f"{checkpoint.name} was trained with another tokenizer"))
        return


def _text_error(recipe: Recipe, what: str) -> str:
    return (
        f"{recipe.directory} cannot be resumed: {what}; its text and tokenizer must not change; "
        f"restore the files, train under another name, or fine-tune: name=NEW train.start_from={recipe.directory}"
    )


def log_resuming(recipe: AnyRecipe, state: TrainState, checkpoint: Path) -> None:
    """Raise UserError for invalid changes; else log the checkpoint and the options that changed since it was saved."""
    if (before := _recipe_of(checkpoint, recipe)) is None:
        say(f"resuming from {checkpoint}; another version of nmt wrote its recipe, so changed options are unknown")
        return
    if recipe.train.batch_tokens != before.train.batch_tokens and state.update and not state.pair:
        raise UserError(
            f"train.batch_tokens is {recipe.train.batch_tokens}, was {before.train.batch_tokens}; an earlier "
            f"version of nmt saved {checkpoint} within an epoch; keep the old value until the epoch ends"
        )
    rate = changed_learning_rate(recipe, before, state)
    say(f"resuming from {checkpoint}")
    changed: list[str] = []
    for change in _changes(recipe, before, state.step):
        changed += differences(change.option, change.now, change.before)
    if changed:
        say(f"changed options: {'; '.join(changed)}")
    if rate and not state.limits_reached(recipe.train):
        say(rate)


def record_changes(recipe: AnyRecipe, state: TrainState, checkpoint: Path, *, is_finished: bool) -> None:
    """Record the training options that changed since a checkpoint was saved, for the report.

    For a finished run, only `max_steps` is recorded. If it was lowered to end training, the schedule used the old
    value.
    """
    if (before := _recipe_of(checkpoint, recipe)) is None:
        return
    score_options = _score_options(recipe) if isinstance(recipe, Recipe) else {}
    for change in _changes(recipe, before, state.step):
        affects_training = change.option in score_options or not change.option.startswith(_REPORT_OPTIONS)
        if change.option == "train.max_steps" or (affects_training and not is_finished):
            state.changes.append(change)


def discard_other_scores(recipe: Recipe, state: TrainState, checkpoint: Path, valid: str, is_finished: bool) -> str:
    """Discard scores of a validation set other than `valid` and, in an unfinished run, those under other options.

    Returns a message for the log, "" if there is nothing to report.
    """
    if not (state.scores or state.plateau_step) and state.start_score is None:
        return ""
    before = _recipe_of(checkpoint, recipe)
    changed: list[str] = []
    if isinstance(before, Recipe) and not is_finished:
        now, then = _score_options(recipe), _score_options(before)
        changed = [key for key in now if now[key] != then.get(key, now[key])]
    if valid and valid != state.valid:
        if state.valid or (before is not None and before.data.valid != recipe.data.valid):
            known = state.valid[:12] or "unknown"
            state.changes.append(Change(state.step, "validation set (SHA-256)", known, valid[:12]))
            changed.insert(0, _VALIDATION_SET)
        elif not changed:
            return f"{checkpoint} does not identify its validation set; scores are assumed to be from the current one"
    if not changed:
        return ""
    best = f" (update {state.best_step:,})" if state.best_step else ""
    state.discard_scores(of_other_set=_VALIDATION_SET in changed)
    return (
        f"{' and '.join(changed)} changed: earlier scores are not comparable; discarding the best{best} and resetting "
        "patience"
    )


def require_used_options(recipe: AnyRecipe, state: TrainState, checkpoint: Path) -> None:
    """Raise UserError if a run that ends with its new options has training options that no update used.

    The report would list them as training options.
    """
    if (before := _recipe_of(checkpoint, recipe)) is None:
        return
    is_interrupted = not state.limits_reached(before.train)
    if recipe.train.max_steps < state.step and is_interrupted:
        raise UserError(
            f"train.max_steps is {recipe.train.max_steps}, but {recipe.directory} has {state.step} updates; it must be "
            f"at least {state.step}, which ends the run here"
        )
    names = _UPDATE_OPTIONS if recipe.train.max_steps == state.step else ("max_steps", *_UPDATE_OPTIONS)
    changed: list[str] = []
    for name in names:
        changed += differences(f"train.{name}", getattr(recipe.train, name), getattr(before.train, name))
    if changed:
        limits = " and ".join(state.limits_reached(recipe.train))
        end = f"would end at step {state.step}" if is_interrupted else "is already trained"
        value, old = ("this value", "one") if len(changed) == 1 else ("these values", "ones")
        raise UserError(
            f"{recipe.directory} {end}, and {'; '.join(changed)}: no update used {value}; restore the old {old}, "
            f"raise {limits} to continue training, or choose another name"
        )


def _recipe_of(checkpoint: Path, recipe: AnyRecipe) -> AnyRecipe | None:
    """Return the recipe of a checkpoint, of the type of `recipe`; None if another version wrote it."""
    load = load_saved_recipe if isinstance(recipe, Recipe) else load_classification_recipe
    with suppress(UserError):
        return load(checkpoint / "recipe.toml")
    return None


def _changes(recipe: AnyRecipe, before: AnyRecipe, step: int) -> list[Change]:
    now, then = _options(recipe), _options(before)
    return [Change(step, key, then.get(key), now[key]) for key in now if now[key] != then.get(key)]


def _options(recipe: AnyRecipe) -> dict[str, object]:
    """Return the options of all sections, by full name, without `data.root` and `data.workers`."""
    fields = recipe.model_dump(mode="json", exclude={"data": {"root", "workers"}})
    return full_names({name: value for name, value in fields.items() if isinstance(value, dict)})


def _score_options(recipe: Recipe) -> dict[str, object]:
    """Return the options that affect validation scores, by full name."""
    train = recipe.train
    selection: dict[str, object] = {"train.best_metric": train.best_metric, "train.average": train.average == "ema"}
    if train.best_metric != "bleu":
        return selection | ({"train.label_smoothing": train.label_smoothing} if train.best_metric == "loss" else {})
    options = _options(recipe)
    names = [name for name in options if name.startswith("decode.") and name != "decode.batch_tokens"]
    names += ["train.validate_bleu_sentences", "evaluate.tokenize"]
    return selection | {name: options[name] for name in names}


def changed_learning_rate(recipe: AnyRecipe, before: AnyRecipe, state: TrainState) -> str:
    """Describe a changed learning rate, "" if unchanged.

    Raises UserError for a jump that neither `learning_rate` nor `schedule_start` requests.
    """
    d_model, train, step = recipe.model.d_model, recipe.train, state.step
    last = learning_rate(before.train, d_model, max(1, step))
    planned = learning_rate(before.train, d_model, step + 1)
    now = learning_rate(train, d_model, step + 1) * state.next_rate_factor(train)
    was = f"it was {last:.3g} at update {step:,}"
    if before.train.schedule == "plateau":  # the factor of the last update is unknown
        last = planned = planned * state.next_rate_factor(before.train)
        was = f"without the change, it would be {last:.3g}"
    if now == planned or step == 0:
        return ""
    restarts = train.schedule_start != before.train.schedule_start and train.schedule_start <= step
    is_intended = restarts or train.learning_rate != before.train.learning_rate
    if now > _MAX_RATE_FACTOR * last and not is_intended:
        other = ", or start a new run from this one (train.start_from)" if isinstance(recipe, Recipe) else ""
        has_other_end = train.max_steps != before.train.max_steps
        cause = f"planned for train.max_steps={before.train.max_steps}" if has_other_end else "changed"
        raise UserError(
            f"the learning rate of update {step + 1} would be {now:.3g} after {last:.3g}, because the schedule was "
            f"{cause}; it must not jump; restart the schedule (train.schedule_start={step}){other}"
        )
    return f"the learning rate of update {step + 1:,} is {now:.3g}; {was}"
