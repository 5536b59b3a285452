"""State of a run: the contents of a checkpoint, except tensors."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from nmt.data.reused_tokenizers import tokenizer_sources
from nmt.errors import UserError
from nmt.recipe import Recipe, TrainRecipe, explain, load_saved_recipe
from nmt.storage.run_folder import CLASSIFIER, checkpoint_step, find_model, list_checkpoints
from nmt.storage.sealed import CorruptError, manifest_digest

_SHOWN_CHARACTERS = 80


@dataclass(frozen=True)
class Change:
    """An option that changed when a run resumed after update `step`; values as in JSON."""

    step: int
    option: str
    before: Any
    now: Any


@dataclass
class TrainState:
    """Progress and results of a run, saved in `state.json`.

    step:               completed updates
    epoch, update:      next update
    pair:               pairs of the epoch in earlier updates
    updates_in_epoch:   updates in the epoch of the last update
    tgt_tokens:         target tokens of all updates, EOS included
    seconds:            time for updates, without validation and copying checkpoints
    micro_batch_tokens: token budget of a micro-batch; 0 before training
    processes:          world size of the last session; 0 before training
    device, precision:  of the last session; "" if unknown
    workload:           load balance, see `nmt.train.batching.Workload`
    start:              SHA-256 of the initial model; "" without one
    start_score:        score of the initial model; None if unknown
    text:               fingerprint of the training text, see `nmt.alignment.term_markup.training_identity`
    skipped:            updates without a finite gradient, which changed nothing
    skipped_in_a_row:   consecutive skipped updates up to this step
    validation_due:     this step must still be validated: the run stopped before that, or discarded its score
    is_interim:         the checkpoint was saved only because the run stopped; the next one replaces it
    validations_without_best: validations since the best score
    best_step:          step of the best score; 0 without one
    scores:             score by validated step; higher is better
    best_validation:    metrics of the validation of `best_step`
    valid:              fingerprint of the validation set of the scores; "" if unknown
    scored_from:        step from which scores are comparable; earlier ones were discarded
    loss_scale:         state of the fp16 loss scaler
    rate_factor:        factor on the learning rate, lowered by schedule `plateau`
    plateau_best:       lowest validation nll so far, for schedule `plateau`
    plateau_validations: validations since then, or since the last reduction of the rate
    plateau_step:       step of the last validation that counted for schedule `plateau`
    unlogged:           sums over the updates since the last log line
    changes:            options that changed on resuming, oldest first
    """

    step: int = 0
    epoch: int = 0
    update: int = 0
    pair: int = 0
    updates_in_epoch: int = 0
    tgt_tokens: int = 0
    seconds: float = 0.0
    micro_batch_tokens: int = 0
    processes: int = 0
    device: str = ""
    precision: str = ""
    workload: dict[str, Any] = field(default_factory=dict)
    start: str = ""
    start_score: float | None = None
    text: str = ""
    skipped: int = 0
    skipped_in_a_row: int = 0
    validation_due: bool = False
    is_interim: bool = False
    validations_without_best: int = 0
    best_step: int = 0
    scores: dict[str, float] = field(default_factory=dict)
    valid: str = ""
    scored_from: int = 0
    best_validation: dict[str, float] = field(default_factory=dict)
    loss_scale: dict[str, float] = field(default_factory=dict)
    rate_factor: float = 1.0
    plateau_best: float | None = None
    plateau_validations: int = 0
    plateau_step: int = 0
    unlogged: dict[str, float] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)

    @classmethod
    def load(cls, checkpoint: Path) -> TrainState:
        """Read the state of a checkpoint without verification.

        Raises CorruptError if it is unreadable, and UserError if it is of another version.
        """
        try:
            state = json.loads((checkpoint / "state.json").read_bytes())
        except (OSError, ValueError) as error:
            raise CorruptError(f"{checkpoint}: cannot read state.json ({error}); copy the checkpoint again") from error
        return cls.read(state, checkpoint)

    @classmethod
    def read(cls, state: Any, checkpoint: Path) -> TrainState:
        """Build the state from a parsed `state.json`.

        Raises CorruptError if it is invalid, and UserError if it is of another version.
        """
        try:
            values: dict[str, Any] = {"changes": [], **state}  # no changes in checkpoints of earlier versions
            values["changes"] = [Change(**entry) for entry in values["changes"]]
            read = cls(**values)
            TypeAdapter(cls).validate_python(values)
            return read
        except ValidationError as error:
            raise CorruptError(
                f"{checkpoint / 'state.json'} is not valid: {explain(error)}; copy the checkpoint again"
            ) from error
        except TypeError as error:  # other fields, or not a JSON object
            raise UserError(
                f"{checkpoint / 'state.json'} was written by another version of nmt; it must be from this version; "
                "resume with that version, or start from its parameters (train.start_from)"
            ) from error

    def limits_reached(self, train: TrainRecipe) -> list[str]:
        """Return the options whose limit is reached; the run ends if there are any."""
        reached = {
            "max_steps": self.step >= train.max_steps,
            "max_epochs": train.max_epochs is not None and self.epoch >= train.max_epochs,
            "patience": 0 < train.patience <= self.validations_without_best,
            "max_minutes": train.max_minutes is not None and self.seconds >= train.max_minutes * 60,
        }
        return [f"train.{name}" for name, is_reached in reached.items() if is_reached]

    def end_reason(self, train: TrainRecipe) -> str:
        """Return a clause with the options that ended training before `max_steps`, "" if there are none."""
        limits = self.limits_reached(train)
        if not limits or self.step >= train.max_steps:
            return ""
        return f", because {' and '.join(limits)} {'was' if len(limits) == 1 else 'were'} reached"

    @property
    def epochs(self) -> float:
        """Epochs so far, with the fraction of the current one."""
        return self.epoch + (self.update / self.updates_in_epoch if self.updates_in_epoch else 0.0)

    @property
    def best_score(self) -> float:
        """Best score so far."""
        return self.scores.get(str(self.best_step), -math.inf)

    @property
    def is_best_from_ema(self) -> bool:
        """Whether the best score is that of the EMA. `train.average` of a finished run may have changed since."""
        values = self.best_validation
        losses = [-values.get(f"valid/average_{name}", math.nan) for name in ("loss", "nll")]
        return self.best_score in (*losses, values.get("valid/average_bleu"))

    def best_steps(self, count: int | None = None) -> list[int]:
        """Return the steps of the `count` best scores, or of all, best first; of equal scores, the earliest is best.

        Steps of diverged models (-inf) count only if all diverged.
        """
        scores = {step: score for step, score in self.scores.items() if score != -math.inf} or self.scores
        return [int(step) for step in sorted(scores, key=lambda step: -scores[step])[:count]]

    def record_score(self, score: float, metrics: dict[str, float]) -> bool:
        """Record the score and metrics of this step; return whether it is the best so far."""
        is_best = score > self.best_score  # -inf is never the best
        self.scores[str(self.step)] = score
        self.validations_without_best = 0 if is_best else self.validations_without_best + 1
        if is_best:
            self.best_step, self.best_validation = self.step, metrics
        return is_best

    def record_plateau(self, nll: float, train: TrainRecipe) -> bool:
        """Record a validation nll for schedule `plateau`; return whether it lowers the learning rate."""
        if train.schedule != "plateau" or self.plateau_step == self.step > 0:
            return False
        self.plateau_step = self.step
        if math.isfinite(nll) and (self.plateau_best is None or nll < self.plateau_best):
            self.plateau_best, self.plateau_validations = nll, 0
            return False
        self.plateau_validations += 1
        if self.plateau_validations < train.plateau_patience:
            return False
        self.rate_factor *= train.plateau_factor
        self.plateau_validations = 0
        return True

    def next_rate_factor(self, train: TrainRecipe) -> float:
        """Return the factor on the learning rate of the next update."""
        return self.rate_factor if train.schedule == "plateau" and self.step != train.schedule_start else 1.0

    def restart_plateau(self, train: TrainRecipe) -> None:
        """Reset schedule `plateau` if it restarts at this step, or if the run has another schedule now."""
        if train.schedule != "plateau" or self.step == train.schedule_start:
            self.rate_factor, self.plateau_best, self.plateau_validations = 1.0, None, 0

    def discard_scores(self, *, of_other_set: bool) -> None:
        """Discard scores that are not comparable with later ones; validate this step again.

        of_other_set: the validation set has changed, so its nll, which schedule `plateau` compares, is not comparable
        """
        self.validation_due = self.validation_due or str(self.step) in self.scores
        self.scores, self.best_validation = {}, {}
        self.best_step, self.validations_without_best, self.start_score = 0, 0, None
        if of_other_set:
            self.plateau_best, self.plateau_validations, self.plateau_step = None, 0, 0
        self.scored_from = self.step


def interim_steps(run: Path, newest: int) -> set[int]:
    """Return the steps before `newest` whose checkpoints were saved only because the run stopped."""
    steps: set[int] = set()
    for checkpoint in list_checkpoints(run):
        with suppress(UserError):  # of another version, or damaged
            if TrainState.load(checkpoint).is_interim:
                steps.add(checkpoint_step(checkpoint))
    return steps - {newest}


def require_same_run(recipe: Recipe) -> None:
    """Raise UserError if the run directory belongs to a run with another recipe: options of `_identity` differ.

    Call it before preparing data: a wrong recipe must not change any file.
    """
    if any((checkpoint / CLASSIFIER).is_file() for checkpoint in list_checkpoints(recipe.directory)):
        raise UserError(
            f"{recipe.directory} holds the run of a classifier; expected a translation model; choose another "
            "name or run_dir"
        )
    if (saved := _newest_recipe(recipe.directory)) is None:
        return
    reused = bool(tokenizer_sources(recipe) or tokenizer_sources(saved))
    now, then = _identity(recipe, reused_tokenizer=reused), _identity(saved, reused_tokenizer=reused)
    if _has_initial_model(recipe):  # at another path
        now["train.start_from"] = then["train.start_from"]
    require_equal_options(recipe.directory, now, then, can_fine_tune=True)


def _has_initial_model(recipe: Recipe) -> bool:
    """Return whether `train.start_from` is the model that the run started from."""
    with suppress(UserError):
        if recipe.train.start_from is not None:
            start = manifest_digest(find_model(recipe.train.start_from))
            return start == TrainState.load(list_checkpoints(recipe.directory)[-1]).start
    return False


def require_equal_options(
    run: Path, now: dict[str, object], then: dict[str, object], *, can_fine_tune: bool = False
) -> None:
    """Raise UserError if options of a run, by full name, differ from `then`, those of its checkpoints."""
    texts: list[str] = []
    for name in then | now:
        texts += differences(name, now.get(name), then.get(name))
    if texts:
        changed = [name for name, value in then.items() if now.get(name) != value]
        is_other_text = all(name.startswith(("data.", "tokenizer.")) for name in changed)
        remedy = f", or fine-tune: name=NEW train.start_from={run}" if can_fine_tune and is_other_text else ""
        raise UserError(
            f"{run} holds a run with another recipe: {'; '.join(texts)}; these must not change; choose another "
            f"name or run_dir{remedy}"
        )


def differences(key: str, now: Any, then: Any) -> Iterator[str]:
    """Describe the parts of an option that differ: entries of tables, and items of long lists of the same length."""
    if isinstance(now, dict) and isinstance(then, dict):
        for name in now | then:
            yield from differences(f"{key}.{name}", now.get(name), then.get(name))
    elif _is_long(now, then) and len(now) == len(then):
        for index, (a, b) in enumerate(zip(now, then, strict=True)):
            yield from differences(f"{key}.{index}", a, b)
    elif _is_long(now, then):
        yield f"the number of entries of {key} is {len(now)}, was {len(then)}"
    elif now != then:
        yield f"{key} is {_shorten(now)}, was {_shorten(then)}"


def _is_long(now: Any, then: Any) -> bool:
    """Return whether two lists are too long to show in full: they have tables, or look equal when truncated."""
    if not (isinstance(now, list | tuple) and isinstance(then, list | tuple)):
        return False
    return any(isinstance(item, dict) for item in (*now, *then)) or _shorten(now) == _shorten(then)


def _shorten(value: object) -> str:
    """Format a value on one line, truncated; a table is not shown."""
    if value is None:
        return "not set"
    if isinstance(value, dict):
        return "a table"
    text = str(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _newest_recipe(run_dir: Path) -> Recipe | None:
    """Return the recipe of the newest checkpoint with a readable one, unverified; None without checkpoints.

    Raises UserError if no checkpoint has a readable recipe.
    """
    failure: UserError | None = None
    for checkpoint in reversed(list_checkpoints(run_dir)):
        try:
            return load_saved_recipe(checkpoint / "recipe.toml")
        except UserError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return None


def _identity(recipe: Recipe, *, reused_tokenizer: bool) -> dict[str, object]:
    """Return the options that must not change during a run, by full name.

    If the tokenizer is reused, only `start_from` and `user_symbols` of its section are included.
    """
    train = {"optimizer", "start_from", "start_optimizer", "freeze", "ema_decay", "rdrop", "guided_alignment"}
    train |= {"glossary_markup", "subword_sampling", "subword_sampling_sides"}
    decode = {"alignment_layer", "alignment_heads", "alignment_at"} if recipe.train.guided_alignment else set[str]()
    languages = {"src_lang": recipe.src_lang, "tgt_lang": recipe.tgt_lang}
    corpora = [
        {name: None if value == languages.get(name) else value for name, value in corpus.model_dump().items()}
        for corpus in recipe.data.train
    ]
    sections = {
        "data": recipe.data.model_dump(exclude={"root", "workers", "test", "valid"}) | {"train": corpora},
        "tokenizer": recipe.tokenizer.model_dump(include={"start_from", "user_symbols"} if reused_tokenizer else None),
        "model": recipe.model.model_dump(),
        "train": recipe.train.model_dump(include=train),
        "decode": recipe.decode.model_dump(include=decode),
    }
    return {**languages, "seed": recipe.seed, **full_names(sections)}


def full_names(sections: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the options of some sections by full name, such as `train.max_steps`."""
    return {f"{section}.{key}": value for section, options in sections.items() for key, value in options.items()}
