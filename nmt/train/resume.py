"""Which checkpoint a run resumes from: the first process decides, and all others follow."""

from __future__ import annotations

from pathlib import Path

from nmt.checkpoint import Checkpoint, load_checkpoint, newest_checkpoint, remove_leftovers
from nmt.data.fingerprint import outdated_splits, read_report
from nmt.data.reused_tokenizers import load_verified_tokenizers
from nmt.logs import say, warn
from nmt.processes.distributed import World
from nmt.recipe import Recipe, UserError, load_saved_recipe
from nmt.storage.run_folder import checkpoint_directory, checkpoint_step, list_checkpoints
from nmt.storage.sealed import manifest_digest
from nmt.text.tokenizer import Tokenizers
from nmt.train.schedule import learning_rate
from nmt.train.state import Change, TrainState

# Options that say how updates are made, and that may change between two of them.
_OF_UPDATES = (
    *("max_epochs", "batch_tokens", "learning_rate", "schedule", "warmup_steps", "schedule_start"),
    *("final_rate_ratio", "dropout_ramp_steps", "label_smoothing", "rdrop", "clip_norm", "weight_decay"),
    "best_metric",
)

# The report of a run is drawn with these as they are now, whatever they were in training.
_OF_REPORT = ("data.test", "decode.", "evaluate.")

_VALID_TEXT = "validation text (SHA-256)"

# Changed options may raise the learning rate from one update to the next by so much.
_MOST_LIFT = 2.0


def choose_checkpoint(run_dir: Path, world: World) -> tuple[Path, Checkpoint] | None:
    """The newest checkpoint that the first process finds whole, on every process; None where there is none.

    The first process alone renames what is corrupt and removes what is half written. Raises UserError on a process that
    sees another checkpoint of this step, or none, and CorruptError where what it reads is not what was saved.
    """
    found, chosen = None, ""
    if world.is_main:
        remove_leftovers(run_dir)
        found = newest_checkpoint(run_dir, warn)
        if found is not None:
            chosen = f"{checkpoint_step(found[0])} {manifest_digest(found[0])}"
    chosen = world.broadcast_text(chosen)
    if not chosen or found is not None:
        return found
    step, _, digest = chosen.partition(" ")
    directory = checkpoint_directory(run_dir, int(step))
    if manifest_digest(directory) != digest:
        raise UserError(
            f"{directory} is missing or differs from what the first process sees there; all processes must see the "
            "same files; put run_dir on a file system that they share"
        )
    return directory, load_checkpoint(directory)


def require_same_text(recipe: Recipe) -> None:
    """Raise UserError where the run has checkpoints, but its prepared training text is no longer what the recipe makes.

    To be called before anything is prepared: a new tokenizer under old weights would destroy the run.
    """
    directory = recipe.data_directory
    if not list_checkpoints(recipe.directory) or read_report(directory) is None:
        return
    if "train" in outdated_splits(recipe, directory):
        raise UserError(_other_text(recipe, "its training text or a corpus file has changed since it was prepared"))


def require_same_identity(recipe: Recipe, state: TrainState, identity: str) -> None:
    """Raise UserError where a checkpoint was trained on another text; see `nmt.data.fingerprint.text_identity`."""
    if state.text and identity and state.text != identity:
        raise UserError(_other_text(recipe, "its prepared training text is not the one that the checkpoint knows"))


def require_same_tokenizers(recipe: Recipe, tokenizers: Tokenizers) -> None:
    """Raise UserError where the newest checkpoint with whole tokenizer files was trained with other tokenizers.

    A damaged checkpoint says nothing here; it is found when the run resumes.
    """
    for checkpoint in reversed(list_checkpoints(recipe.directory)):
        try:
            saved = load_verified_tokenizers(checkpoint)
        except UserError:
            continue
        if saved.files() != tokenizers.files():
            raise UserError(_other_text(recipe, f"{checkpoint.name} was trained with another tokenizer"))
        return


def _other_text(recipe: Recipe, what: str) -> str:
    return (
        f"{recipe.directory} cannot be resumed: {what}; a run keeps its text and its tokenizer; restore the files, "
        f"train under another name, or fine-tune: name=NEW train.start_from={recipe.directory}"
    )


def say_what_changed(recipe: Recipe, state: TrainState, checkpoint: Path) -> None:
    """Tell each option that is another than when a checkpoint was saved; UserError for what makes no sense."""
    before = _recipe_of(checkpoint)
    if before is None:
        say(f"{checkpoint / 'recipe.toml'} is of another version of nmt; which options have changed is not known")
        return
    changes = _changes(recipe, before, state.step)
    if not changes:
        return
    changed = "; ".join(f"{change.option} is {change.now}, was {change.before}" for change in changes)
    say(f"options that have changed since then: {changed}")
    if recipe.train.batch_tokens != before.train.batch_tokens and state.update and not state.pair:
        raise UserError(
            f"train.batch_tokens is {recipe.train.batch_tokens}, but {checkpoint} was saved within an epoch of updates "
            f"of {before.train.batch_tokens} tokens by an earlier version of nmt; it must be that until the epoch ends"
        )
    _judge_rate(recipe, before, state.step)


def note_what_changed(recipe: Recipe, state: TrainState, checkpoint: Path) -> None:
    """Enter the options of training that are others than when a checkpoint was saved, for the report of the run."""
    before = _recipe_of(checkpoint)
    if before is None:
        return
    changes = _changes(recipe, before, state.step)
    scoring = _of_scores(recipe)
    state.changes += [one for one in changes if one.option in scoring or not one.option.startswith(_OF_REPORT)]


def forget_other_scores(recipe: Recipe, state: TrainState, checkpoint: Path, valid: str, is_finished: bool) -> str:
    """Forget scores that those to come do not compare with; returns what is to be told of that.

    They were measured on another validation text than `valid`, or with other options, which do not matter to a run that
    is finished.
    """
    before = _recipe_of(checkpoint)
    if not state.scores:
        return ""
    changed = []
    if before is not None and not is_finished:
        now, then = _of_scores(recipe), _of_scores(before)
        changed = [key for key in now if now[key] != then.get(key, now[key])]
    if valid and valid != state.valid:
        if state.valid or (before is not None and before.data.valid != recipe.data.valid):
            text = Change(state.step, _VALID_TEXT, state.valid[:12] or "unknown", valid[:12])
            state.changes.append(text)
            changed = ["the validation text", *changed]
        elif not changed:
            return f"{checkpoint} does not name its validation text; its scores are taken as those of the present one"
    if not changed:
        return ""
    best = f" (update {state.best_step:,})" if state.best_step else ""
    state.forget_scores()
    return (
        f"scores from here on do not compare with earlier ones, because {' and '.join(changed)} changed: the best so "
        f"far{best} is forgotten, patience restarts"
    )


def require_no_other_updates(recipe: Recipe, state: TrainState, checkpoint: Path) -> None:
    """Raise UserError where a finished run is called with options of training that none of its updates has used.

    Its report would name them as the options that the model was trained with.
    """
    before = _recipe_of(checkpoint)
    if before is None:
        return
    names = _OF_UPDATES if recipe.train.max_steps == state.step else ("max_steps", *_OF_UPDATES)
    pairs = [(name, getattr(recipe.train, name), getattr(before.train, name)) for name in names]
    limits = " and ".join(state.limits_reached(recipe.train))
    if changed := [f"train.{name} is {now!r}, was {then!r}" for name, now, then in pairs if now != then]:
        raise UserError(
            f"{recipe.directory} is trained to its end, and {'; '.join(changed)}, which no update has used; give the "
            f"values of before, raise {limits} to train further, or choose another name"
        )


def _recipe_of(checkpoint: Path) -> Recipe | None:
    """The recipe of a checkpoint; None for that of another version, whose options this one does not know."""
    try:
        return load_saved_recipe(checkpoint / "recipe.toml")
    except UserError:
        return None


def _changes(recipe: Recipe, before: Recipe, step: int) -> list[Change]:
    now, then = _options(recipe), _options(before)
    return [Change(step, key, then.get(key), now[key]) for key in now if now[key] != then.get(key)]


def _options(recipe: Recipe) -> dict[str, object]:
    """All options of a recipe that a run may change, by full name."""
    sections = recipe.model_dump(mode="json", exclude={"name", "run_dir"})
    parts = {name: part for name, part in sections.items() if isinstance(part, dict)}
    named = {f"{name}.{key}": value for name, part in parts.items() for key, value in part.items()}
    return {key: value for key, value in named.items() if key not in ("data.root", "data.workers")}


def _of_scores(recipe: Recipe) -> dict[str, object]:
    """The options that decide what a validation scores, by full name."""
    train = recipe.train
    found: dict[str, object] = {"train.best_metric": train.best_metric, "train.average": train.average == "ema"}
    if train.best_metric == "loss":
        return found | {"train.label_smoothing": train.label_smoothing}
    of_bleu = ("train.validate_bleu_sentences", "evaluate.tokenize")
    options = _options(recipe).items()
    search = {key: value for key, value in options if key.startswith("decode.") and key != "decode.batch_tokens"}
    return found | search | {key: value for key, value in options if key in of_bleu}


def _judge_rate(recipe: Recipe, before: Recipe, step: int) -> None:
    """Tell how changed options change the learning rate; UserError where they would lift it again unasked."""
    d_model, begun = recipe.model.d_model, recipe.train.schedule_start != before.train.schedule_start
    last, following = (learning_rate(before.train, d_model, max(1, n)) for n in (step, step + 1))
    now = learning_rate(recipe.train, d_model, step + 1)
    if now == following or step == 0:
        return
    say(f"the learning rate of update {step + 1:,} is {now:.3g}; it was {last:.3g} at update {step:,}")
    is_asked_for = begun or recipe.train.learning_rate != before.train.learning_rate
    if now > _MOST_LIFT * last and not is_asked_for:
        raise UserError(
            f"update {step + 1} would have a learning rate of {now:.3g} after {last:.3g} at update {step}, because the "
            f"schedule was made for train.max_steps={before.train.max_steps}; it must not jump so; begin the schedule "
            f"again (train.schedule_start={step}), or start a new run from this one (train.start_from)"
        )
