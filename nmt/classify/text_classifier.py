"""A trained classifier: its files, and the class probabilities that it computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

import numpy as np
import tomli_w
import torch
from numpy.typing import NDArray
from pydantic import Field, PositiveInt
from safetensors.torch import save

from nmt.checkpoint import Tensors, load_tensors, read_tensors
from nmt.classify.examples import Examples, TextEncoder, Texts
from nmt.classify.model import Classifier
from nmt.data.epoch_plan import plan_by_length
from nmt.devices.precision import ComputeType, Precision, autocast, choose_precision, row_multiple, torch_dtype
from nmt.evaluate.classification import ClassificationScore, score_classes
from nmt.logs import counted
from nmt.packing.packed import PackedSequences
from nmt.processes.distributed import choose_device
from nmt.recipe import ModelRecipe, Section, UnicodeForm
from nmt.storage.description import FORMAT, read_description
from nmt.storage.run_folder import CLASSIFIER, find_model
from nmt.storage.sealed import verify_directory
from nmt.text.tokenizer import Tokenizer

TOKENIZER_FILE = "tokenizer.model"
_BATCH_TOKENS = 8_192


class ClassifierMetadata(Section, extra="ignore"):
    """The content of `classifier.toml`, without its format number.

    labels: names of the classes, in the order of the output
    texts:  number of texts of an example
    """

    labels: tuple[str, ...] = Field(min_length=2)
    texts: int = Field(ge=1, le=2)
    unicode_form: UnicodeForm
    max_tokens: PositiveInt
    model: ModelRecipe


class TextClassifier:
    """Computes class probabilities for texts or pairs of texts."""

    def __init__(
        self,
        model: Classifier,
        tokenizer: Tokenizer,
        metadata: ClassifierMetadata,
        device: torch.device,
        precision: Precision = "auto",
    ) -> None:
        self.model, self.metadata = model.eval(), metadata
        self.encode = TextEncoder(tokenizer, metadata.unicode_form, metadata.max_tokens)
        self._device = device
        self._precision = choose_precision(precision, device)

    @classmethod
    def load(cls, path: Path | str, device: str = "auto", precision: Precision = "auto") -> TextClassifier:
        """Load a classifier's directory, a checkpoint or a run.

        Raises UserError, CorruptError for damaged files, and ValueError for an unknown precision.
        """
        if precision not in get_args(Precision):
            raise ValueError(f"precision must be one of {', '.join(get_args(Precision))}, got {precision!r}")
        directory = find_model(Path(path), CLASSIFIER)
        verify_directory(directory)
        metadata = read_description(directory / CLASSIFIER, ClassifierMetadata)
        tokenizer = Tokenizer.load(directory / TOKENIZER_FILE)
        chosen = choose_device(device)
        with chosen:
            model = Classifier(metadata.model, tokenizer.vocab_size, len(metadata.labels))
        model.to(chosen)  # moves position tables
        load_tensors(model, read_tensors(directory / "model.safetensors"), directory)
        return cls(model, tokenizer, metadata, chosen, precision)

    def probabilities(self, examples: Sequence[Texts]) -> NDArray[np.float64]:
        """Return the class probabilities (examples, classes) for tuples of `metadata.texts` texts.

        Raises TypeError unless `examples` is a sequence of tuples or lists of strings, and ValueError for a wrong
        number of texts.
        """
        _check(examples, self.metadata.texts)
        return self.probabilities_of(Examples.encode(examples, [0] * len(examples), self.encode))

    @torch.inference_mode()
    def probabilities_of(self, examples: Examples) -> NDArray[np.float64]:
        """Return the class probabilities (examples, classes) for encoded examples."""
        result = np.empty((len(examples.labels), len(self.metadata.labels)))
        self.model.eval()
        for ids in plan_by_length(examples.lengths, examples.lengths, micro_batch_tokens=_BATCH_TOKENS):
            with autocast(self._precision, self._device):
                logits = classify(self.model, examples.gather(ids), self._precision, self._device)
            result[ids] = logits.double().softmax(dim=1).cpu().numpy()
        return result

    def files(self, tensors: Tensors) -> dict[str, bytes | Callable[[], bytes]]:
        """Return the files of a directory for `write_directory`, with these tensors of the model."""
        description = {"format": FORMAT} | self.metadata.model_dump(mode="json", exclude_none=True)
        return {
            "model.safetensors": lambda: save(dict(tensors)),
            CLASSIFIER: tomli_w.dumps(description).encode(),
            TOKENIZER_FILE: self.encode.tokenizer.model,
        }

    def score(self, examples: Examples) -> ClassificationScore:
        """Score the probabilities of encoded examples against their labels."""
        return score_classes(self.probabilities_of(examples), examples.labels, self.metadata.labels)


def _check(examples: object, num_texts: int) -> None:
    advice = "use [(text,)]" if num_texts == 1 else "use [(source, target)]"
    if isinstance(examples, (str, bytes)) or not isinstance(examples, Sequence):
        raise TypeError(f"examples must be a list of tuples of strings, got {type(examples).__name__}; {advice}")
    for number, texts in enumerate(examples, start=1):
        kind = type(texts).__name__
        if not isinstance(texts, (tuple, list)):
            raise TypeError(f"example {number:,} must be a tuple of strings, got {kind}; {advice}")
        if wrong := [type(text).__name__ for text in texts if not isinstance(text, str)]:
            raise TypeError(f"example {number:,} must be a tuple of strings, got a {kind} with {wrong[0]}; {advice}")
        if len(texts) != num_texts:
            has = counted(len(texts), "text")
            raise ValueError(f"example {number:,} has {has}, but the classifier needs {num_texts}; {advice}")


def classify(model: Classifier, texts: PackedSequences, precision: ComputeType, device: torch.device) -> torch.Tensor:
    """Return the logits (num_sentences, classes) on the device of the model; `texts` are on the CPU."""
    count = texts.num_sentences
    padding = -texts.total % row_multiple(torch_dtype(precision), device)
    if padding:  # in sequences no longer than the longest text, to stay within the model's positions
        full, rest = divmod(padding, texts.max_length)
        lengths = [texts.max_length] * full
        if rest:
            lengths.append(rest)
        texts = texts.append_padding(lengths)
    logits: torch.Tensor = model(texts.to(device))
    return logits[:count]
