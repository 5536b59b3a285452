"""eole: its own trainer, as `eole train` calls it, on the same pieces; a lap ends where it reports.

Its decoder is always pre-norm, so both stacks are, each with one more norm at its end. It drops a sentence from a batch
that has the same source already. Options: bucket_size, num_workers and torch_compile (true or false), as eole has them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from eole.config.run import TrainConfig
from eole.train_single import main
from eole.utils.statistics import Statistics

from bench.trainers import NEVER, refuse_other_precisions, sorted_size, write_vocabulary
from bench.work import Work
from bench.worker import Clock

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def train(work: Work, clock: Clock) -> None:
    """Let eole train, and stand where it would print its report."""
    on_gpu = work.device.startswith("cuda")
    # On a CPU, what eole calls fp16 is computed in bf16.
    refuse_other_precisions(work, ("fp32", "bf16", "fp16") if on_gpu else ("fp32", "bf16"), "eole")

    def report(statistics: Statistics, *_: Any) -> None:
        clock.lap(int(statistics.n_tokens))

    Statistics.output = report
    torch.set_num_threads(work.threads)
    if on_gpu and work.precision in DTYPES:
        # Otherwise eole computes in torch's own choice, which is fp16, whatever precision it is asked for.
        torch.set_autocast_dtype("cuda", DTYPES[work.precision])
    with tempfile.TemporaryDirectory() as folder:
        main(TrainConfig(**configuration(work, Path(folder))), device_id=0 if on_gpu else -1)


def configuration(work: Work, folder: Path) -> dict[str, Any]:
    """The recipe of eole's WMT17 example, with the shape and batches of the work."""
    vocabulary = str(write_vocabulary(work, folder / "vocabulary.txt"))
    corpus = {"path_src": str(work.path("train.src.pieces")), "path_tgt": str(work.path("train.tgt.pieces"))}
    return {
        "save_data": str(folder / "data"),
        "overwrite": True,
        "seed": 1,
        "report_every": work.updates,
        "src_vocab": vocabulary,
        "tgt_vocab": vocabulary,
        "src_vocab_size": work.vocab_size,
        "tgt_vocab_size": work.vocab_size,
        "share_vocab": True,
        "n_sample": 0,
        "transforms": [],
        "data": {"corpus": corpus},
        "training": _training(work, folder),
        "model": _model(work),
    }


def _training(work: Work, folder: Path) -> dict[str, Any]:
    on_gpu = work.device.startswith("cuda")
    return {
        "model_path": str(folder / "model"),
        "train_steps": NEVER,
        "valid_steps": NEVER,
        "save_checkpoint_steps": NEVER,
        "bucket_size": int(work.option("bucket_size", "262144")),
        "num_workers": int(work.option("num_workers", "2" if on_gpu else "1")),
        "torch_compile": work.option("torch_compile", "false") == "true",
        "world_size": 1,
        "gpu_ranks": [0] if on_gpu else [],
        "batch_type": "tokens",
        "batch_size": sorted_size(work),
        "batch_size_multiple": 8 if on_gpu else 1,
        "accum_count": [1],
        "accum_steps": [0],
        "normalization": "tokens",
        "compute_dtype": work.precision,
        "log_attention_entropy": False,
        "param_init_method": "xavier_uniform",
        "optim": "adam",
        "adam_beta2": 0.98,
        "learning_rate": 2,
        "warmup_steps": 4000,
        "decay_method": "noam",
        "max_grad_norm": 0,
        "label_smoothing": work.label_smoothing,
        "dropout_steps": [0],
        "dropout": [work.shape.dropout],
        "attention_dropout": [0.0],
    }


def _model(work: Work) -> dict[str, Any]:
    shape = work.shape
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
