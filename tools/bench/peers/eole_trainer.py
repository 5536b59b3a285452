"""eole: the trainer of `eole train` on the same pieces; a round ends where it reports.

Its decoder is always pre-norm, so both stacks are, each with a final norm. It drops sentences whose source is already
in the batch. Options, as in eole: bucket_size, num_workers, torch_compile (true or false).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from eole.config.run import TrainConfig
from eole.train_single import main
from eole.utils.statistics import Statistics

from bench.trainers import NEVER, check_precision, sorted_batch_size, write_vocabulary
from bench.worker import Clock
from bench.workload import Workload

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def train(workload: Workload, clock: Clock) -> None:
    """Train with eole, ending a round instead of each report."""
    # On a CPU, eole computes fp16 in bf16.
    check_precision(workload, "eole", cpu=("fp32", "bf16"), cuda=("fp32", "bf16", "fp16"))

    def report(statistics: Statistics, *_: Any) -> None:
        clock.end_round(int(statistics.n_tokens))

    Statistics.output = report
    torch.set_num_threads(workload.threads)
    if workload.on_gpu and workload.precision in DTYPES:
        # Otherwise eole uses torch's default autocast dtype, fp16, for every precision.
        torch.set_autocast_dtype("cuda", DTYPES[workload.precision])
    with tempfile.TemporaryDirectory() as folder:
        main(TrainConfig(**configuration(workload, Path(folder))), device_id=0 if workload.on_gpu else -1)


def configuration(workload: Workload, folder: Path) -> dict[str, Any]:
    """Settings of eole's WMT17 example with the shape and batch size of the workload."""
    vocabulary = str(write_vocabulary(workload, folder / "vocabulary.txt"))
    corpus = {"path_src": str(workload.path("train.src.pieces")), "path_tgt": str(workload.path("train.tgt.pieces"))}
    return {
        "save_data": str(folder / "data"),
        "overwrite": True,
        "seed": 1,
        "report_every": workload.updates,
        "src_vocab": vocabulary,
        "tgt_vocab": vocabulary,
        "src_vocab_size": workload.vocab_size,
        "tgt_vocab_size": workload.vocab_size,
        "share_vocab": True,
        "n_sample": 0,
        "transforms": [],
        "data": {"corpus": corpus},
        "training": _training(workload, folder),
        "model": _model(workload),
    }


def _training(workload: Workload, folder: Path) -> dict[str, Any]:
    return {
        "model_path": str(folder / "model"),
        "train_steps": NEVER,
        "valid_steps": NEVER,
        "save_checkpoint_steps": NEVER,
        "bucket_size": int(workload.options.get("bucket_size", "262144")),
        "num_workers": int(workload.options.get("num_workers", "2" if workload.on_gpu else "1")),
        "torch_compile": workload.options.get("torch_compile", "false") == "true",
        "world_size": 1,
        "gpu_ranks": [0] if workload.on_gpu else [],
        "batch_type": "tokens",
        "batch_size": sorted_batch_size(workload),
        "batch_size_multiple": 8 if workload.on_gpu else 1,
        "accum_count": [1],
        "accum_steps": [0],
        "normalization": "tokens",
        "compute_dtype": workload.precision,
        "log_attention_entropy": False,
        "param_init_method": "xavier_uniform",
        "optim": "adam",
        "adam_beta2": 0.98,
        "learning_rate": 2,
        "warmup_steps": 4000,
        "decay_method": "noam",
        "max_grad_norm": 0,
        "label_smoothing": workload.label_smoothing,
        "dropout_steps": [0],
        "dropout": [workload.shape.dropout],
        "attention_dropout": [0.0],
    }


def _model(workload: Workload) -> dict[str, Any]:
    shape = workload.shape
    return {
        "architecture": "transformer",
        "hidden_size": shape.d_model,
        "heads": shape.num_heads,
        "transformer_ff": shape.d_ff,
        "add_qkvbias": True,
        "add_ffnbias": True,
        "encoder": {"encoder_type": "transformer", "layers": shape.num_encoder_layers},
        "decoder": {"decoder_type": "transformer", "layers": shape.num_decoder_layers},
        "share_embeddings": True,
        "share_decoder_embeddings": True,
        "embeddings": {"word_vec_size": shape.d_model, "position_encoding_type": "SinusoidalInterleaved"},
    }
