"""JoeyNMT: its own trainer on the same pieces; a round is a fixed number of its steps.

It batches sentences at random, so a large fraction of each batch is padding, and also applies dropout to attention
weights.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import torch
from joeynmt.training import TrainManager
from joeynmt.training import train as train_joeynmt

from bench.trainers import NEVER, check_precision, count_steps, padded_batch_size, pair_lengths
from bench.worker import Clock
from bench.workload import Workload


def train(workload: Workload, clock: Clock) -> None:
    """Train with JoeyNMT, counting its steps."""
    check_precision(workload, "JoeyNMT")
    TrainManager._train_step = count_steps(
        TrainManager._train_step, lambda batch: int(batch.ntokens), workload.updates, clock
    )
    torch.set_num_threads(workload.threads)
    with tempfile.TemporaryDirectory() as folder:
        train_joeynmt(rank=0, world_size=0, cfg=configuration(workload, Path(folder)), skip_test=True)


def configuration(workload: Workload, folder: Path) -> dict[str, Any]:
    """Settings of JoeyNMT's WMT14 example with the shape and batch size of the workload."""
    for split in ("train", "valid"):
        for side in ("src", "tgt"):  # JoeyNMT's file names end in the language
            (folder / f"{split}.{side}").symlink_to(workload.path(f"{split}.{side}.pieces").absolute())
    (folder / "model").mkdir()
    vocabulary = {"level": "word", "voc_file": str(workload.path("vocab.txt"))}
    return {
        "name": "bench",
        "model_dir": str(folder / "model"),
        "use_cuda": workload.on_gpu,
        "fp16": workload.precision == "fp16",
        "random_seed": 1,
        "data": {
            "train": str(folder / "train"),
            "dev": str(folder / "valid"),
            "dataset_type": "plain",
            "src": {"lang": "src", **vocabulary},
            "trg": {"lang": "tgt", **vocabulary},
        },
        "testing": {},
        "training": _training(workload),
        "model": _model(workload),
    }


def _training(workload: Workload) -> dict[str, Any]:
    return {
        "batch_type": "token",
        "batch_size": batch_size(workload),
        "normalization": "tokens",
        "label_smoothing": workload.label_smoothing,
        "optimizer": "adam",
        "adam_betas": [0.9, 0.98],
        "scheduling": "warmupinversesquareroot",
        "learning_rate": 0.0007,
        "learning_rate_min": 0.0,
        "learning_rate_warmup": 4000,
        "epochs": NEVER,
        "validation_freq": NEVER,
        "logging_freq": NEVER,
        "print_valid_sents": [],
    }


def _model(workload: Workload) -> dict[str, Any]:
    shape = workload.shape
    stack = {
        "type": "transformer",
        "num_heads": shape.num_heads,
        "embeddings": {"embedding_dim": shape.d_model, "scale": True, "dropout": shape.dropout},
        "hidden_size": shape.d_model,
        "ff_size": shape.d_ff,
        "dropout": shape.dropout,
        "layer_norm": "post",
    }
    return {
        "initializer": "xavier_uniform",
        "bias_initializer": "zeros",
        "embed_initializer": "xavier_uniform",
        "tied_embeddings": True,
        "tied_softmax": True,
        "encoder": {**stack, "num_layers": shape.num_encoder_layers},
        "decoder": {**stack, "num_layers": shape.num_decoder_layers},
    }


def batch_size(workload: Workload) -> int:
    """Padded batch size. JoeyNMT shuffles the corpus and counts the longer side of a pair with EOS."""
    pairs = pair_lengths(workload)
    random.Random(1).shuffle(pairs)
    return padded_batch_size(
        [max(src, tgt) + 1 for src, tgt in pairs], [tgt + 1 for _, tgt in pairs], workload.batch_tokens
    )
