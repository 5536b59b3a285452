"""Hugging Face transformers: MarianMTModel in a plain training loop and with `generate`.

Its layers are post-norm, as in Vaswani et al. 2017. Options: attn (sdpa or eager); for training: compile (true or
false), and batches: `sorted` has pairs of similar length in a batch, as usual; `random` has pairs of any length, with
more padding.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import count
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from transformers import MarianConfig, MarianMTModel

from bench.token_nll import mean_nll
from bench.worker import Clock
from bench.workload import Workload

PAD, BOS, EOS = 0, 2, 3
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def build_model(workload: Workload, seed: int = 1) -> MarianMTModel:
    """Model of the workload's shape, randomly initialized."""
    shape = workload.shape
    torch.manual_seed(seed)
    config = MarianConfig(  # type: ignore[call-arg]  # `attn_implementation` is not a declared field
        vocab_size=workload.vocab_size,
        d_model=shape.d_model,
        encoder_layers=shape.num_encoder_layers,
        decoder_layers=shape.num_decoder_layers,
        encoder_ffn_dim=shape.d_ff,
        decoder_ffn_dim=shape.d_ff,
        encoder_attention_heads=shape.num_heads,
        decoder_attention_heads=shape.num_heads,
        dropout=shape.dropout,
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation_function="relu",
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        max_position_embeddings=1024,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,
        attn_implementation=workload.options.get("attn", "sdpa"),
    )
    model: MarianMTModel = MarianMTModel(config).to(workload.device)  # type: ignore[arg-type]  # wrapped without types
    return model


def train(workload: Workload, clock: Clock) -> None:
    """Train with fused Adam. By default, batches have pairs of similar length, as with `group_by_length`."""
    torch.set_num_threads(workload.threads)
    model = build_model(workload).train()
    optimizer = _optimizer(model)
    forward = torch.compile(model, dynamic=True) if workload.options.get("compile", "false") == "true" else model
    batches = _prefetched(workload)
    while True:
        clock.end_round(sum(_update(workload, forward, optimizer, next(batches)) for _ in range(workload.updates)))


def learn(workload: Workload, clock: Clock) -> None:
    """Train with the schedule of the workload; then translate the test set with `generate`."""
    learning = workload.learning
    assert learning is not None
    torch.set_num_threads(workload.threads)
    model = build_model(workload, learning.seed)
    optimizer, batches = _optimizer(model), _batches(workload, learning.seed)
    clock.end_round(0)
    for number in range(learning.rounds):
        model.train()
        tokens = 0
        for update in range(workload.updates):
            step = number * workload.updates + update + 1
            optimizer.param_groups[0]["lr"] = learning.rate(workload.shape.d_model, step)
            tokens += _update(workload, model, optimizer, next(batches))
        model.eval()
        clock.end_round(tokens, lambda: {"nll": _validation_nll(workload, model)})
    pieces = _translate(workload, model)
    workload.write_pieces(pieces)
    clock.end_round(len(pieces))


def _optimizer(model: MarianMTModel) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)


def _update(workload: Workload, model: Any, optimizer: torch.optim.Adam, batch: Sequence[torch.Tensor]) -> int:
    """Perform one update; returns its number of target tokens."""
    num_tokens = int((batch[2] != -100).sum())  # counted on the host, which does not synchronize a GPU
    src, decoder_input, labels = (side.to(workload.device, non_blocking=True) for side in batch)
    optimizer.zero_grad(set_to_none=True)
    with _autocast(workload):
        logits = model(input_ids=src, attention_mask=src != PAD, decoder_input_ids=decoder_input).logits
        loss = F.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=-100, label_smoothing=workload.label_smoothing
        )
    loss.backward()
    optimizer.step()
    return num_tokens


def _validation_nll(workload: Workload, model: MarianMTModel) -> float:
    def log_probs(src: torch.Tensor, tgt: torch.Tensor) -> torch.Tensor:
        logits = model(input_ids=src, attention_mask=src != PAD, decoder_input_ids=tgt[:, :-1]).logits
        found: torch.Tensor = logits.log_softmax(-1).gather(-1, tgt[:, 1:, None]).squeeze(-1)
        return found

    src = [[*ids, EOS] for ids in workload.ids("valid", "src")]
    tgt = [[BOS, *ids, EOS] for ids in workload.ids("valid", "tgt")]
    return mean_nll(src, tgt, log_probs, pad=PAD, device=workload.device)


def _translate(workload: Workload, model: Any) -> list[list[str]]:
    """Translate the test set; returns pieces."""
    vocabulary, sentences = workload.lines("vocab.txt"), workload.ids("test", "src")
    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]), reverse=True)
    translations = [list[str]()] * len(sentences)
    for start in range(0, len(order), workload.batch_sentences):
        batch = order[start : start + workload.batch_sentences]
        src = _pad([[*sentences[i], EOS] for i in batch], PAD).to(workload.device)
        with torch.inference_mode():
            outputs = model.generate(
                input_ids=src,
                attention_mask=(src != PAD).long(),
                num_beams=workload.beam_size,
                length_penalty=1.0,
                do_sample=False,
                max_new_tokens=src.shape[1] + 50,
            )
        for i, ids in zip(batch, outputs[:, 1:].tolist(), strict=True):
            end = ids.index(EOS) if EOS in ids else len(ids)
            translations[i] = [vocabulary[token] for token in ids[:end]]
    return translations


def decode(workload: Workload, clock: Clock) -> None:
    """Translate with `generate`, sorted by length, longest first."""
    torch.set_num_threads(workload.threads)
    model = build_model(workload).eval().to(DTYPES[workload.precision])
    sentences = sorted(workload.ids("test", "src")[: workload.num_sentences], key=len, reverse=True)
    limits = {"min_new_tokens": workload.output_tokens, "max_new_tokens": workload.output_tokens, "do_sample": False}
    while True:
        tokens = 0
        for start in range(0, len(sentences), workload.batch_sentences):
            batch = sentences[start : start + workload.batch_sentences]
            src = _pad([[*ids, EOS] for ids in batch], PAD).to(workload.device)
            mask = (src != PAD).long()
            with torch.inference_mode():
                outputs = model.generate(input_ids=src, attention_mask=mask, num_beams=workload.beam_size, **limits)
            tokens += outputs.shape[0] * (outputs.shape[1] - 1)  # without the start token
        clock.end_round(tokens)


def _autocast(workload: Workload) -> torch.autocast | nullcontext[None]:
    return (
        nullcontext() if workload.precision == "fp32" else torch.autocast(workload.device, DTYPES[workload.precision])
    )


Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class _Batches(IterableDataset[Batch]):
    """The batches of a worker process, in an order of its own."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        return _batches(self._workload, worker.id if worker else 0)


def _prefetched(workload: Workload) -> Iterator[Batch]:
    """Yield batches; for a GPU, two processes prepare them in pinned memory."""
    if not workload.on_gpu:
        return _batches(workload)
    return iter(DataLoader(_Batches(workload), batch_size=None, num_workers=2, prefetch_factor=8, pin_memory=True))


def _batches(workload: Workload, seed: int = 0) -> Iterator[Batch]:
    """Yield source, decoder input and labels of at most `batch_tokens` target tokens, epoch after epoch."""
    src, tgt = workload.ids("train", "src"), workload.ids("train", "tgt")
    order = sorted(range(len(src)), key=lambda i: (len(tgt[i]), len(src[i])))
    is_random = workload.options.get("batches", "sorted") == "random"
    groups = _groups(order, tgt, workload.batch_tokens)
    for epoch in count():
        generator = random.Random(1000 * seed + epoch)
        if is_random:
            generator.shuffle(order)
            groups = _groups(order, tgt, workload.batch_tokens)
        generator.shuffle(groups)
        for group in groups:
            yield (
                _pad([[*src[i], EOS] for i in group], PAD),
                _pad([[BOS, *tgt[i]] for i in group], PAD),
                _pad([[*tgt[i], EOS] for i in group], -100),
            )


def _groups(order: Sequence[int], tgt: Sequence[Sequence[int]], batch_tokens: int) -> list[list[int]]:
    """Split pairs, in order, into groups of at most `batch_tokens` target tokens."""
    groups: list[list[int]] = [[]]
    tokens = 0
    for i in order:
        if groups[-1] and tokens + len(tgt[i]) + 1 > batch_tokens:
            groups.append([])
            tokens = 0
        groups[-1].append(i)
        tokens += len(tgt[i]) + 1
    return groups


def _pad(sentences: Sequence[Sequence[int]], value: int) -> torch.Tensor:
    rows = [torch.tensor(sentence) for sentence in sentences]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)
