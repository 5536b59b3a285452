"""Where a run is: what a checkpoint must hold besides tensors."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from nmt.recipe import Recipe, TrainRecipe, UserError, load_saved_recipe
from nmt.storage.run_folder import list_checkpoints
from nmt.storage.sealed import CorruptError

_SHOWN_CHARACTERS = 80


@dataclass(frozen=True)
class Change:
    """What changed when a run resumed: after which update, the full name of an option, its values as in JSON."""

    step: int
    option: str
    before: Any
    now: Any


@dataclass
class TrainState:
    """The place of a run, and what it has found on the way.

    step:                updates done
    epoch, update:       the next update to do
    pair:                pairs of the epoch that the updates before it have shown
    micro_batch_tokens:  the budget of a micro-batch; 0 before the start
    processes:           how many trained last; 0 before the start
    workload:            how evenly updates kept them busy, see `nmt.data.workload.Workload`
    text:                the identity of the training text, see `nmt.data.fingerprint.text_identity`
    validation_due:      the run was stopped before it had validated this step
    scores:              what each validated step scored; higher is better
    valid:               the identity of the text that they were measured on; "" where that is unknown
    scored_from:         where they begin; scores of before that were forgotten
    loss_scale:          the state of fp16's loss scaling
    unlogged:            sums over the updates since the last line of metrics
    changes:             the options that changed on the way, oldest first
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
    workload: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    skipped: int = 0
    skipped_in_a_row: int = 0
    validation_due: bool = False
    validations_without_best: int = 0
    best_step: int = 0
    scores: dict[str, float] = field(default_factory=dict)
    valid: str = ""
    scored_from: int = 0
    best_validation: dict[str, float] = field(default_factory=dict)
    loss_scale: dict[str, float] = field(default_factory=dict)
    unlogged: dict[str, float] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)

    @classmethod
    def load(cls, checkpoint: Path) -> TrainState:
        """The state that a checkpoint directory holds, unverified; CorruptError where it holds none."""
        try:
            state = json.loads((checkpoint / "state.json").read_bytes())
        except (OSError, ValueError) as error:
            raise CorruptError(f"{checkpoint / 'state.json'} is not JSON; copy the checkpoint again") from error
        return cls.read(state, checkpoint)

    @classmethod
    def read(cls, state: object, checkpoint: Path) -> TrainState:
        """The state that the parsed `state.json` of a checkpoint tells; UserError for that of another version."""
        known = {entry.name for entry in fields(cls)}
        if not isinstance(state, dict) or not state.keys() <= known:
            raise UserError(
                f"{checkpoint / 'state.json'} is of another version of nmt; it must be of this one; go on with the "
                "version that wrote it, or start from its weights (train.start_from)"
            )
        changes = [Change(**entry) for entry in state.get("changes", [])]  # checkpoints of earlier versions have none
        return cls(**{**state, "changes": changes})

    def limits_reached(self, train: TrainRecipe) -> list[str]:
        """The options that end the run here; none where it goes on."""
        reached = {
            "max_steps": self.step >= train.max_steps,
            "max_epochs": train.max_epochs is not None and self.epoch >= train.max_epochs,
            "patience": 0 < train.patience <= self.validations_without_best,
            "max_minutes": train.max_minutes is not None and self.seconds >= train.max_minutes * 60,
        }
        return [f"train.{name}" for name, is_reached in reached.items() if is_reached]

    @property
    def epochs(self) -> float:
        """Passes over the training pairs, a begun one as its share."""
        return self.epoch + (self.update / self.updates_in_epoch if self.updates_in_epoch else 0.0)

    @property
    def best_score(self) -> float:
        """The best score so far."""
        return self.scores.get(str(self.best_step), -math.inf)

    def best_steps(self, count: int) -> list[int]:
        """The steps of the `count` best scores, best first."""
        return [int(step) for step in sorted(self.scores, key=lambda step: -self.scores[step])[:count]]

    def note_score(self, score: float, figures: dict[str, float]) -> bool:
        """Enter what this step scored; returns whether it is the best so far."""
        is_best = score > self.best_score  # never one of -inf
        self.scores[str(self.step)] = score
        self.validations_without_best = 0 if is_best else self.validations_without_best + 1
        if is_best:
            self.best_step, self.best_validation = self.step, figures
        return is_best

    def forget_scores(self) -> None:
        """Forget all scores, as the next ones do not compare with them; this step is then measured again."""
        self.validation_due = self.validation_due or str(self.step) in self.scores
        self.scores, self.best_validation = {}, {}
        self.best_step, self.validations_without_best = 0, 0
        self.scored_from = self.step


def require_same_run(recipe: Recipe) -> None:
    """Raise UserError when the run's folder holds a run that was begun with another recipe.

    What shapes the text, the model and its state must stay; limits, intervals, rates and search may change. To be
    called before anything is prepared, so that a mistaken recipe changes nothing.
    """
    begun = _recipe_of(recipe.directory)
    if begun is None:
        return
    now, then = _identity(recipe), _identity(begun)
    differences = [f"{key} is {_shown(now[key])}, was {_shown(then[key])}" for key in now if now[key] != then[key]]
    if differences:
        raise UserError(
            f"{recipe.directory} holds a run that began otherwise: {'; '.join(differences)}; these must stay; "
            "choose another name or run_dir, or remove that folder"
        )


def _shown(value: object) -> str:
    """A value on one line, not too long."""
    text = str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _recipe_of(run_dir: Path) -> Recipe | None:
    """The recipe of the newest checkpoint that has a readable one, unverified; None where there is no checkpoint.

    Raises UserError where there are checkpoints, but nothing says with which options they were made.
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


def _identity(recipe: Recipe) -> dict[str, object]:
    """The options that a run keeps from its beginning, by full name."""
    own_state = {"optimizer", "start_from", "start_optimizer", "freeze", "ema_decay", "rdrop"}
    sampling = {"subword_sampling", "subword_sampling_sides"}
    sections = {
        "data": recipe.data.model_dump(exclude={"root", "workers", "test", "valid"}),
        "tokenizer": recipe.tokenizer.model_dump(),
        "model": recipe.model.model_dump(),
        "train": recipe.train.model_dump(include=own_state | sampling),
    }
    named = {f"{section}.{key}": value for section, part in sections.items() for key, value in part.items()}
    return {"src_lang": recipe.src_lang, "tgt_lang": recipe.tgt_lang, "seed": recipe.seed, **named}
