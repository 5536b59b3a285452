"""OpenNMT-py: its own `onmt_train`, on the same pieces; a lap ends where it reports.

It knows no post-norm, so both stacks are pre-norm, each with one more norm at its end. It drops a sentence from a batch
that has the same source already. Options: bucket_size and num_workers, as OpenNMT-py has them.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from onmt.bin.train import main
from onmt.utils.statistics import Statistics

from bench.trainers import NEVER, refuse_other_precisions, sorted_size, write_vocabulary
from bench.work import Work
from bench.worker import Clock


def train(work: Work, clock: Clock) -> None:
    """Let OpenNMT-py train, and stand where it would print its report."""
    able = ("fp32", "fp16") if work.device.startswith("cuda") else ("fp32",)
    refuse_other_precisions(work, able, "OpenNMT-py")

    def report(statistics: Statistics, *_: Any) -> None:
        clock.lap(int(statistics.n_words))

    Statistics.output = report
    torch.set_num_threads(work.threads)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(json.dumps(configuration(work, Path(folder))), encoding="utf-8")  # YAML holds JSON
        sys.argv = ["onmt_train", "-config", str(path)]
        main()


def configuration(work: Work, folder: Path) -> dict[str, Any]:
    """The options of its documentation's Transformer, with the shape and batches of the work."""
    vocabulary = str(write_vocabulary(work, folder / "vocabulary.txt"))
    corpus = {"path_src": str(work.path("train.src.pieces")), "path_tgt": str(work.path("train.tgt.pieces"))}
    return {
        "data": {"corpus": {**corpus, "transforms": []}},
        "src_vocab": vocabulary,
        "tgt_vocab": vocabulary,
        "src_vocab_size": work.vocab_size,
        "tgt_vocab_size": work.vocab_size,
        "share_vocab": True,
        "save_data": str(folder / "data"),
        "save_model": str(folder / "model"),
        "overwrite": True,
        "n_sample": 0,
        "seed": 1,
        "report_every": work.updates,
        "train_steps": NEVER,
        "valid_steps": NEVER,
        "save_checkpoint_steps": NEVER,
        **_training(work),
        **_model(work),
    }


def _training(work: Work) -> dict[str, Any]:
    on_gpu = work.device.startswith("cuda")
    gpu = {"world_size": 1, "gpu_ranks": [0]}
    return {
        "bucket_size": int(work.option("bucket_size", "262144")),
        "num_workers": int(work.option("num_workers", "2" if on_gpu else "1")),
        "batch_type": "tokens",
        "batch_size": sorted_size(work),
        "batch_size_multiple": 8 if on_gpu else 1,
        "accum_count": [1],
        "normalization": "tokens",
        "model_dtype": work.precision,
        "optim": "adam",
        "adam_beta2": 0.98,
        "learning_rate": 2,
        "warmup_steps": 4000,
        "decay_method": "noam",
        "max_grad_norm": 0,
        "label_smoothing": work.label_smoothing,
        "param_init": 0,
        "param_init_glorot": True,
        "dropout_steps": [0],
        "dropout": [work.shape.dropout],
        "attention_dropout": [0.0],
        **(gpu if on_gpu else {}),
    }


def _model(work: Work) -> dict[str, Any]:
    shape = work.shape
    return {
        "encoder_type": "transformer",
        "decoder_type": "transformer",
        "enc_layers": shape.num_encoder_layers,
        "dec_layers": shape.num_decoder_layers,
        "heads": shape.num_heads,
        "hidden_size": shape.d_model,
        "word_vec_size": shape.d_model,
        "transformer_ff": shape.d_ff,
        "add_qkvbias": True,
        "add_ffnbias": True,
        "position_encoding": True,
        "share_embeddings": True,
        "share_decoder_embeddings": True,
    }
