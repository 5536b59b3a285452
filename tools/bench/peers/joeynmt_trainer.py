"""JoeyNMT: its own trainer, on the same pieces; a lap is so many of its steps.

It fills batches at random, so that a good part of each is padding, and it has dropout on the attention weights too.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import torch
from joeynmt.batch import Batch
from joeynmt.training import TrainManager
from joeynmt.training import train as train_joeynmt

from bench.trainers import NEVER, counted_steps, padded_size, pair_lengths, refuse_other_precisions
from bench.work import Work
from bench.worker import Clock


def train(work: Work, clock: Clock) -> None:
    """Let JoeyNMT train, and look at each of its steps."""
    able = ("fp32", "fp16") if work.device.startswith("cuda") else ("fp32",)
    refuse_other_precisions(work, able, "JoeyNMT")
    TrainManager._train_step = counted_steps(TrainManager._train_step, _target_tokens, work.updates, clock)
    torch.set_num_threads(work.threads)
    with tempfile.TemporaryDirectory() as folder:
        train_joeynmt(rank=0, world_size=0, cfg=configuration(work, Path(folder)), skip_test=True)


def _target_tokens(batch: Batch) -> int:
    return int(batch.ntokens)


def configuration(work: Work, folder: Path) -> dict[str, Any]:
    """The settings of its WMT14 example, with the shape and batches of the work."""
    for split in ("train", "valid"):
        for side in ("src", "tgt"):  # its names of files end in those of languages
            (folder / f"{split}.{side}").symlink_to(work.path(f"{split}.{side}.pieces").absolute())
    (folder / "model").mkdir()
    vocabulary = {"level": "word", "voc_file": str(work.path("vocab.txt"))}
    return {
        "name": "bench",
        "model_dir": str(folder / "model"),
        "use_cuda": work.device.startswith("cuda"),
        "fp16": work.precision == "fp16",
        "random_seed": 1,
        "data": {
            "train": str(folder / "train"),
            "dev": str(folder / "valid"),
            "dataset_type": "plain",
            "src": {"lang": "src", **vocabulary},
            "trg": {"lang": "tgt", **vocabulary},
        },
        "testing": {},
        "training": _training(work),
        "model": _model(work),
    }


def _training(work: Work) -> dict[str, Any]:
    return {
        "batch_type": "token",
        "batch_size": batch_size(work),
        "normalization": "tokens",
        "label_smoothing": work.label_smoothing,
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


def _model(work: Work) -> dict[str, Any]:
    shape = work.shape
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


def batch_size(work: Work) -> int:
    """JoeyNMT counts the longer side of a pair with its end, and takes pairs as they come from a shuffled corpus."""
    pairs = pair_lengths(work)
    random.Random(1).shuffle(pairs)
    return padded_size([max(src, tgt) + 1 for src, tgt in pairs], [tgt + 1 for _, tgt in pairs], work.batch_tokens)
