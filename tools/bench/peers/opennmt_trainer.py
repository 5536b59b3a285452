"""OpenNMT-py: `onmt_train` on the same pieces; each report ends a round.

It has no post-norm, so both stacks are pre-norm, each with a final norm. It drops sentences whose source is already in
the batch. Options, as in OpenNMT-py: bucket_size, num_workers.
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

from bench.trainers import NEVER, check_precision, sorted_batch_size, write_vocabulary
from bench.worker import Clock
from bench.workload import Workload


def train(workload: Workload, clock: Clock) -> None:
    """Train with OpenNMT-py; each report ends a round."""
    check_precision(workload, "OpenNMT-py")

    def report(statistics: Statistics, *_: Any) -> None:
        clock.end_round(int(statistics.n_words))

    Statistics.output = report
    torch.set_num_threads(workload.threads)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(json.dumps(configuration(workload, Path(folder))), encoding="utf-8")  # JSON is valid YAML
        sys.argv = ["onmt_train", "-config", str(path)]
        main()


def configuration(workload: Workload, folder: Path) -> dict[str, Any]:
    """Options of the Transformer in OpenNMT-py's documentation with the shape and batch size of the workload."""
    vocabulary = str(write_vocabulary(workload, folder / "vocabulary.txt"))
    corpus = {"path_src": str(workload.path("train.src.pieces")), "path_tgt": str(workload.path("train.tgt.pieces"))}
    return {
        "data": {"corpus": {**corpus, "transforms": []}},
        "src_vocab": vocabulary,
        "tgt_vocab": vocabulary,
        "src_vocab_size": workload.vocab_size,
        "tgt_vocab_size": workload.vocab_size,
        "share_vocab": True,
        "save_data": str(folder / "data"),
        "save_model": str(folder / "model"),
        "overwrite": True,
        "n_sample": 0,
        "seed": 1,
        "report_every": workload.updates,
        "train_steps": NEVER,
        "valid_steps": NEVER,
        "save_checkpoint_steps": NEVER,
        **_training(workload),
        **_model(workload),
    }


def _training(workload: Workload) -> dict[str, Any]:
    return {
        "bucket_size": int(workload.options.get("bucket_size", "262144")),
        "num_workers": int(workload.options.get("num_workers", "2" if workload.on_gpu else "1")),
        "batch_type": "tokens",
        "batch_size": sorted_batch_size(workload),
        "batch_size_multiple": 8 if workload.on_gpu else 1,
        "accum_count": [1],
        "normalization": "tokens",
        "model_dtype": workload.precision,
        "optim": "adam",
        "adam_beta2": 0.98,
        "learning_rate": 2,
        "warmup_steps": 4000,
        "decay_method": "noam",
        "max_grad_norm": 0,
        "label_smoothing": workload.label_smoothing,
        "param_init": 0,
        "param_init_glorot": True,
        "dropout_steps": [0],
        "dropout": [workload.shape.dropout],
        "attention_dropout": [0.0],
        **({"world_size": 1, "gpu_ranks": [0]} if workload.on_gpu else {}),
    }


def _model(workload: Workload) -> dict[str, Any]:
    shape = workload.shape
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
