"""Training and validation data of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nmt.data.mixture import Mixture
from nmt.data.sampling import SampledEpochs
from nmt.data.store import PairStore
from nmt.model.transformer import Transformer


@dataclass(frozen=True)
class TrainingData:
    """Training and validation pairs.

    mixture:        pairs of each corpus in an epoch; None: every pair once
    epochs:         subword segmentations sampled for each epoch; None: those of `train`
    identity:       fingerprint of the training text, see `nmt.data.fingerprint.text_identity`; "" if unknown
    valid_identity: fingerprint of the validation text, see `nmt.data.prepare.Prepared.valid_identity`
    """

    train: PairStore
    valid: PairStore
    mixture: Mixture | None = None
    epochs: SampledEpochs | None = None
    identity: str = ""
    valid_identity: str = ""


@dataclass(frozen=True)
class ValidationBleu:
    """BLEU of the validation text, and sample translations."""

    bleu: float
    samples: str


# Translates the validation text, distributed over all processes; only rank 0 gets the result. All processes call the
# second argument regularly at the same points; it may raise to stop.
TranslateValidation = Callable[[Transformer, Callable[[], None]], ValidationBleu | None]
