"""Training and validation data of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nmt.alignment.term_markup import open_markup, training_identity
from nmt.alignment.training import open_links
from nmt.data.mixture import Mixture
from nmt.data.prepare import Prepared
from nmt.data.sampling import SampledEpochs
from nmt.data.store import PairStore, SideStore
from nmt.errors import UserError
from nmt.models import TranslationModel
from nmt.processes.distributed import World
from nmt.recipe import Recipe


@dataclass(frozen=True)
class TrainingData:
    """Training and validation pairs.

    mixture:        pairs of each corpus in an epoch; None uses every pair once
    epochs:         subword segmentations sampled for each epoch; None uses those of `train`
    identity:       fingerprint of the training text, its links and marked terms; "" if unknown
    valid_identity: fingerprint of the validation set, see `nmt.data.prepare.Prepared.valid_identity`
    links:          word alignments of `train` for guided alignment; None without it
    """

    train: PairStore
    valid: PairStore
    mixture: Mixture | None = None
    epochs: SampledEpochs | None = None
    identity: str = ""
    valid_identity: str = ""
    links: SideStore | None = None

    @classmethod
    def from_prepared(cls, prepared: Prepared, recipe: Recipe, world: World) -> TrainingData:
        """Open a prepared corpus; rank 0 samples segmentations if `subword_sampling` is set.

        Raises UserError if files are missing, damaged or outdated, or if they are not the same on all ranks.
        """
        directory, data = prepared.directory, recipe.data
        epochs = None
        if recipe.train.subword_sampling:
            epochs = SampledEpochs(
                directory,
                recipe.train,
                seed=recipe.seed,
                max_tokens=data.max_tokens,
                workers=data.workers,
                is_builder=world.is_main,
                reverse_target=data.reverse_target,
            )
        links = open_links(prepared)[0] if recipe.train.guided_alignment else None
        identity = training_identity(prepared.report, directory, recipe)
        valid_identity = prepared.valid_identity()
        text = f"{identity} {valid_identity}"
        if text != world.broadcast_text(text):
            raise UserError(
                f"the text in {directory} on rank {world.rank} differs from that on rank 0; all processes must train "
                "on the same text; put run_dir on a shared file system"
            )
        return cls(
            train=open_markup(prepared, recipe) if recipe.train.glossary_markup else PairStore(directory, "train"),
            valid=PairStore(directory, "valid"),
            mixture=prepared.mixture(recipe),
            epochs=epochs,
            identity=identity,
            valid_identity=valid_identity,
            links=links,
        )


@dataclass(frozen=True)
class ValidationBleu:
    """BLEU of the validation set, and sample translations."""

    bleu: float
    samples: str


# Translates the validation set, distributed over all processes; only rank 0 gets the result. All processes call the
# second argument regularly at the same points; it may raise to stop.
TranslateValidation = Callable[[TranslationModel, Callable[[], None]], ValidationBleu | None]
