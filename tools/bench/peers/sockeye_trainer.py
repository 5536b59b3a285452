"""Sockeye: `sockeye-train` on the same pieces; a round is a fixed number of its steps.

Options, as in Sockeye: batch_type (word or max-word), bucket_width.
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

from bench.trainers import NEVER, check_precision, count_steps
from bench.worker import Clock
from bench.workload import Workload


def train(workload: Workload, clock: Clock) -> None:
    """Train with Sockeye, counting its steps."""
    check_precision(workload, "Sockeye")
    EarlyStoppingTrainer._step = count_steps(EarlyStoppingTrainer._step, _target_tokens, workload.updates, clock)
    torch.set_num_threads(workload.threads)
    with tempfile.TemporaryDirectory() as folder:
        sys.argv = ["sockeye-train", *arguments(workload, Path(folder))]
        main()


def _target_tokens(batch: Batch) -> int:
    return int((batch.labels[constants.TARGET_LABEL_NAME] != constants.PAD_ID).sum())


def arguments(workload: Workload, folder: Path) -> list[str]:
    """Command line of Sockeye's WMT example with the shape and batch size of the workload."""
    pieces = workload.lines("vocab.txt")
    vocabulary = folder / "vocabulary.json"
    # Sockeye has the same special tokens and ids.
    vocabulary.write_text(json.dumps({piece: number for number, piece in enumerate(pieces)}), encoding="utf-8")
    longest = [max(len(sentence) for sentence in workload.pieces("train", side)) for side in ("src", "tgt")]
    options = {
        "source": str(workload.path("train.src.pieces")),
        "target": str(workload.path("train.tgt.pieces")),
        "validation-source": str(workload.path("valid.src.pieces")),
        "validation-target": str(workload.path("valid.tgt.pieces")),
        "source-vocab": str(vocabulary),
        "target-vocab": str(vocabulary),
        "output": str(folder / "model"),
        "max-seq-len": ":".join(map(str, longest)),
        "seed": "1",
        **_training(workload),
        **_model(workload),
    }
    flags = [
        "--shared-vocab",
        *([] if workload.on_gpu else ["--use-cpu"]),
        *(["--amp"] if workload.precision == "fp16" else []),
    ]
    return [*flags, *(word for name, value in options.items() for word in (f"--{name}", value))]


def _training(workload: Workload) -> dict[str, str]:
    return {
        "batch-type": workload.options.get("batch_type", "word"),
        "batch-size": str(workload.batch_tokens),
        "bucket-width": workload.options.get("bucket_width", "8"),
        "checkpoint-interval": str(NEVER),
        "max-updates": str(NEVER),
        "decode-and-evaluate": "0",
        "label-smoothing": str(workload.label_smoothing),
        "label-smoothing-impl": "torch",
        "optimizer": "adam",
        "optimizer-betas": "0.9:0.98",
        "initial-learning-rate": str(workload.shape.d_model**-0.5),
        "learning-rate-scheduler-type": "inv-sqrt-decay",
        "learning-rate-warmup": "4000",
    }


def _model(workload: Workload) -> dict[str, str]:
    shape = workload.shape
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
