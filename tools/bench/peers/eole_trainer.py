"""eole: its own `eole train`, on the same pieces; a lap ends where it reports.

Options: num_workers and bucket_size, as eole has them.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from eole.bin.main import main
from eole.utils.statistics import Statistics

from bench.work import Work
from bench.worker import Clock

NEVER = 10**9


def train(work: Work, clock: Clock) -> None:
    """Let eole train, and stand where it would print its report."""

    def report(statistics: Statistics, *_: Any) -> None:
        clock.lap(int(statistics.n_tokens))

    Statistics.output = report
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(configuration(work, Path(folder))), encoding="utf-8")
        sys.argv = ["eole", "train", "-config", str(path)]
        main()


def configuration(work: Work, folder: Path) -> dict[str, Any]:
    """The recipe of eole's WMT17 example, with the shape and batches of the work."""
    shape = work.shape
    vocabulary = folder / "vocabulary.txt"
    pieces = work.path("vocab.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    # eole puts its own special tokens before these.
    vocabulary.write_text("".join(f"{piece}\t1\n" for piece in pieces[4:]), encoding="utf-8")
    on_gpu = work.device.startswith("cuda")
    return {
        "save_data": str(folder / "data"),
        "overwrite": True,
        "seed": 1,
        "report_every": work.updates,
        "src_vocab": str(vocabulary),
        "tgt_vocab": str(vocabulary),
        "share_vocab": True,
        "n_sample": 0,
        "transforms": [],
        "data": {
            "corpus": {
                "path_src": str(work.path("train.src.pieces")),
                "path_tgt": str(work.path("train.tgt.pieces")),
            }
        },
        "training": {
            "model_path": str(folder / "model"),
            "train_steps": NEVER,
            "valid_steps": NEVER,
            "save_checkpoint_steps": NEVER,
            "bucket_size": int(work.option("bucket_size", "262144")),
            "num_workers": int(work.option("num_workers", "1")),
            "world_size": 1,
            "gpu_ranks": [0] if on_gpu else [],
            "batch_type": "tokens",
            "batch_size": work.batch_tokens,
            "batch_size_multiple": 8 if on_gpu else 1,
            "accum_count": [1],
            "accum_steps": [0],
            "normalization": "tokens",
            "compute_dtype": work.precision,
            "optim": "adam",
            "adam_beta2": 0.98,
            "learning_rate": 2,
            "warmup_steps": 4000,
            "decay_method": "noam",
            "max_grad_norm": 0,
            "label_smoothing": work.label_smoothing,
            "dropout_steps": [0],
            "dropout": [shape.dropout],
            "attention_dropout": [0.0],
        },
        "model": {
            "architecture": "transformer",
            "hidden_size": shape.d_model,
            "heads": shape.num_heads,
            "transformer_ff": shape.d_ff,
            "encoder": {"encoder_type": "transformer", "layers": shape.num_encoder_layers},
            "decoder": {"decoder_type": "transformer", "layers": shape.num_decoder_layers},
            "share_embeddings": True,
            "share_decoder_embeddings": True,
            "embeddings": {"word_vec_size": shape.d_model, "position_encoding_type": "SinusoidalInterleaved"},
        },
    }
