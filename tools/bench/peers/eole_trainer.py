"""eole: the trainer of `eole train` on the same pieces; each report ends a round.

Its decoder is always pre-norm, so both stacks are, each with a final norm. It drops sentences whose source is already
in the batch. Options, as in eole: bucket_size, num_workers, torch_compile (true or false); also batches: `sorted` has
pairs of similar length in a batch, eole's default; `random` has the same number of pairs, of any length, in each batch.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from eole import train_single
from eole.config.run import PredictConfig, TrainConfig
from eole.inference_engine import InferenceEnginePY
from eole.trainer import Trainer
from eole.utils.statistics import Statistics
from torch import Tensor

from bench.token_nll import mean_nll
from bench.trainers import NEVER, check_precision, pair_lengths, sorted_batch_size, write_vocabulary
from bench.worker import Clock
from bench.workload import Workload

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def train(workload: Workload, clock: Clock) -> None:
    """Train with eole; each report ends a round."""

    def report(statistics: Statistics, *_: Any) -> None:
        clock.end_round(int(statistics.n_tokens))

    Statistics.output = report
    with tempfile.TemporaryDirectory() as folder:
        _run_trainer(workload, Path(folder), {})


def learn(workload: Workload, clock: Clock) -> None:
    """Train with the schedule of the workload; then translate the test set with `eole predict`."""
    learning = workload.learning
    assert learning is not None
    started: dict[str, Any] = {}
    build_trainer, train_step = train_single.build_trainer, Trainer._train_step
    rounds_left = learning.rounds

    def build(config: Any, device_id: int, model: Any, vocabs: Any, *rest: Any, **named: Any) -> Trainer:
        started.update(model=model, vocabs=vocabs)
        started["trainer"] = build_trainer(config, device_id, model, vocabs, *rest, **named)
        return started["trainer"]

    def step(trainer: Trainer, *batch: Any, **named: Any) -> None:
        if "first" not in started:
            started["first"] = True
            clock.end_round(0)  # reading text is not part of the first round
        train_step(trainer, *batch, **named)

    def report(statistics: Statistics, *_: Any) -> None:
        nonlocal rounds_left
        model = started["model"]
        model.eval()
        clock.end_round(int(statistics.n_tokens), lambda: {"nll": _validation_nll(workload, model, started["vocabs"])})
        model.train()
        rounds_left -= 1
        if rounds_left == 0:
            started["trainer"].model_saver.save(1)
            clock.end_round(_translate(workload, Path(folder) / "model"))

    train_single.build_trainer, Trainer._train_step, Statistics.output = build, step, report
    schedule = {"seed": learning.seed, "learning_rate": learning.learning_rate, "warmup_steps": learning.warmup_steps}
    with tempfile.TemporaryDirectory() as folder:
        _run_trainer(workload, Path(folder), schedule)


def _run_trainer(workload: Workload, folder: Path, changes: dict[str, Any]) -> None:
    """Run eole's trainer; `changes` override its seed and training options."""
    # On a CPU, eole computes fp16 in bf16.
    check_precision(workload, "eole", cpu=("fp32", "bf16"), cuda=("fp32", "bf16", "fp16"))
    torch.set_num_threads(workload.threads)
    if workload.on_gpu and workload.precision in DTYPES:
        # Otherwise eole uses torch's default autocast dtype, fp16, for every precision.
        torch.set_autocast_dtype("cuda", DTYPES[workload.precision])
    config = configuration(workload, folder)
    config["seed"] = changes.pop("seed", config["seed"])
    config["training"] |= changes
    train_single.main(TrainConfig(**config), device_id=0 if workload.on_gpu else -1)


def _validation_nll(workload: Workload, model: Any, vocabs: Any) -> float:
    """Return the nll of the validation set in fp32, without EOS in the source, as in eole's training."""
    pad, bos, eos = (vocabs["tgt"][vocabs["specials"][f"{name}_token"]] for name in ("pad", "bos", "eos"))

    def log_probs(src: Tensor, tgt: Tensor) -> Tensor:
        result: Tensor = model.compute_log_probs(src, tgt, (src != pad).sum(1))["token_log_probs"]
        return result.float()

    src = [vocabs["src"](pieces) for pieces in workload.pieces("valid", "src")]
    tgt = [[bos, *vocabs["tgt"](pieces), eos] for pieces in workload.pieces("valid", "tgt")]
    return mean_nll(src, tgt, log_probs, pad=pad, device=workload.device)


def _translate(workload: Workload, model: Path) -> int:
    """Translate the test set with the saved model; returns the number of sentences."""
    assert workload.learning is not None
    config = PredictConfig(
        model_path=[str(model)],
        src=str(workload.path("test.src.pieces")),
        output=f"{workload.learning.output}.pieces",
        beam_size=workload.beam_size,
        batch_size=workload.batch_sentences,
        gpu_ranks=[0] if workload.on_gpu else [],
    )
    InferenceEnginePY(config).infer_file()
    return len(workload.lines("test.src.pieces"))


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
        "num_workers": _num_workers(workload),
        "torch_compile": workload.options.get("torch_compile", "false") == "true",
        "world_size": 1,
        "gpu_ranks": [0] if workload.on_gpu else [],
        **_batches(workload),
        "batch_size_multiple": 8 if workload.on_gpu else 1,
        "accum_count": [1],
        "accum_steps": [0],
        "normalization": "tokens",
        "compute_dtype": workload.precision,
        "log_attention_entropy": False,
        "param_init_method": "xavier_uniform",
        "optim": "adam",
        "adam_beta2": 0.98,
        "adam_eps": 1e-9,
        "learning_rate": 2,
        "warmup_steps": 4000,
        "decay_method": "noam",
        "max_grad_norm": 0,
        "label_smoothing": workload.label_smoothing,
        "dropout_steps": [0],
        "dropout": [workload.shape.dropout],
        "attention_dropout": [0.0],
    }


def _num_workers(workload: Workload) -> int:
    return int(workload.options.get("num_workers", "4" if workload.on_gpu else "1"))


def _batches(workload: Workload) -> dict[str, Any]:
    """Return options for batches with `batch_tokens` target tokens on average."""
    if workload.options.get("batches", "sorted") == "random":  # a bucket is one batch
        lengths = pair_lengths(workload)
        size = round(workload.batch_tokens * len(lengths) / sum(tgt + 1 for _, tgt in lengths))
        return {"batch_type": "sents", "batch_size": size, "bucket_size": size}
    # A worker reads every n-th pair. eole drops copies within a batch: a bucket with many copies of its text is mostly
    # discarded, and the loader is slower than a GPU.
    num_pairs = len(workload.lines("train.src.ids")) // _num_workers(workload)
    size = int(workload.options.get("bucket_size", min(262_144, max(1, num_pairs))))
    return {"batch_type": "tokens", "batch_size": sorted_batch_size(workload), "bucket_size": size}


def _model(workload: Workload) -> dict[str, Any]:
    shape = workload.shape
    return {
        "architecture": "transformer",
        "hidden_size": shape.d_model,
        "heads": shape.num_heads,
        "transformer_ff": shape.d_ff,
        "add_qkvbias": True,
        "add_final_linear_bias": True,
        "add_ffnbias": True,
        "encoder": {"encoder_type": "transformer", "layers": shape.num_encoder_layers},
        "decoder": {"decoder_type": "transformer", "layers": shape.num_decoder_layers},
        "share_embeddings": True,
        "share_decoder_embeddings": True,
        "embeddings": {"word_vec_size": shape.d_model, "position_encoding_type": "SinusoidalInterleaved"},
    }
