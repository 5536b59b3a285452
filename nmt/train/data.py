"""The text that a run learns from and is validated on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nmt.data.mixture import Mixture
from nmt.data.sampling import SampledEpochs
from nmt.data.store import PairStore
from nmt.model.transformer import Transformer


@dataclass(frozen=True)
class TrainingData:
    """What is learned from and measured on.

    mixture:  how many pairs of each corpus an epoch shows; None: every pair once
    epochs:   segmentations that are sampled for every epoch; None: always those of `train`
    identity: what tells it from other text, see `nmt.data.fingerprint.text_identity`; "" where that is unknown
    valid_identity: the same of `valid`, see `nmt.data.prepare.Prepared.valid_identity`
    """

    train: PairStore
    valid: PairStore
    mixture: Mixture | None = None
    epochs: SampledEpochs | None = None
    identity: str = ""
    valid_identity: str = ""


@dataclass(frozen=True)
class ValidationBleu:
    """What decoding the validation text gave: its BLEU, and some translations to look at."""

    bleu: float
    samples: str


# Decodes the validation text with a model, distributed over all processes; only the first one gets the result. Calls
# its second argument now and then, on all processes alike; that may raise to stop early.
TranslateValidation = Callable[[Transformer, Callable[[], None]], ValidationBleu | None]
