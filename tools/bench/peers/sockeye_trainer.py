"""Sockeye: its own `sockeye-train`, on the same pieces; a lap is so many of its steps.

Options: batch_type (word or max-word) and bucket_width, as Sockeye has them.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch
from sockeye import constants
from sockeye.data_io import Batch
from sockeye.train import main
from sockeye.training import EarlyStoppingTrainer

from bench.trainers import NEVER, counted_steps, refuse_other_precisions
from bench.work import Work
from bench.worker import Clock


def train(work: Work, clock: Clock) -> None:
    """Let Sockeye train, and look at each of its steps."""
    able = ("fp32", "fp16") if work.device.startswith("cuda") else ("fp32",)
    refuse_other_precisions(work, able, "Sockeye")
    EarlyStoppingTrainer._step = counted_steps(EarlyStoppingTrainer._step, _target_tokens, work.updates, clock)
    torch.set_num_threads(work.threads)
    with tempfile.TemporaryDirectory() as folder:
        sys.argv = ["sockeye-train", *arguments(work, Path(folder))]
        main()


def _target_tokens(batch: Batch) -> int:
    return int((batch.labels[constants.TARGET_LABEL_NAME] != constants.PAD_ID).sum())


def arguments(work: Work, folder: Path) -> list[str]:
    """The command line of its documentation's WMT example, with the shape and batches of the work."""
    pieces = work.path("vocab.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    vocabulary = folder / "vocabulary.json"
    # The special tokens are the same as Sockeye's, by name and by number.
    vocabulary.write_text(json.dumps({piece: number for number, piece in enumerate(pieces)}), encoding="utf-8")
    longest = [max(len(sentence) for sentence in work.pieces("train", side)) for side in ("src", "tgt")]
    options = {
        "source": str(work.path("train.src.pieces")),
        "target": str(work.path("train.tgt.pieces")),
        "validation-source": str(work.path("valid.src.pieces")),
        "validation-target": str(work.path("valid.tgt.pieces")),
        "source-vocab": str(vocabulary),
        "target-vocab": str(vocabulary),
        "output": str(folder / "model"),
        "max-seq-len": ":".join(map(str, longest)),
        "seed": "1",
        **_training(work),
        **_model(work),
    }
    on_gpu = work.device.startswith("cuda")
    flags = ["--shared-vocab", *([] if on_gpu else ["--use-cpu"]), *(["--amp"] if work.precision == "fp16" else [])]
    return [*flags, *(word for name, value in options.items() for word in (f"--{name}", value))]


def _training(work: Work) -> dict[str, str]:
    return {
        "batch-type": work.option("batch_type", "word"),
        "batch-size": str(work.batch_tokens),
        "bucket-width": work.option("bucket_width", "8"),
        "checkpoint-interval": str(NEVER),
        "max-updates": str(NEVER),
        "decode-and-evaluate": "0",
        "label-smoothing": str(work.label_smoothing),
        "label-smoothing-impl": "torch",
        "optimizer": "adam",
        "optimizer-betas": "0.9:0.98",
        "initial-learning-rate": str(work.shape.d_model**-0.5),
        "learning-rate-scheduler-type": "inv-sqrt-decay",
        "learning-rate-warmup": "4000",
    }


def _model(work: Work) -> dict[str, str]:
    shape = work.shape
    return {
        "num-layers": f"{shape.num_encoder_layers}:{shape.num_decoder_layers}",
        "transformer-model-size": str(shape.d_model),
        "transformer-attention-heads": str(shape.num_heads),
        "transformer-feed-forward-num-hidden": str(shape.d_ff),
        "transformer-preprocess": "",
        "transformer-postprocess": "drn",
        "transformer-dropout-prepost": str(shape.dropout),
        "transformer-dropout-attention": "0",
        "transformer-dropout-act": "0",
        "embed-dropout": "0",
        "weight-tying-type": "src_trg_softmax",
    }
