"""Hugging Face transformers: MarianMTModel in a plain training loop and with `generate`.

Options: attn (sdpa or eager); compile (true or false, training).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import count

import torch
from torch.nn import functional as F
from transformers import MarianConfig, MarianMTModel

from bench.worker import Clock
from bench.workload import Workload

PAD, BOS, EOS = 0, 2, 3
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def build_model(workload: Workload) -> MarianMTModel:
    """Model of the workload's shape, randomly initialized."""
    shape = workload.shape
    torch.manual_seed(1)
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
    """Train with fused Adam on batches of similar length, as with `group_by_length`."""
    torch.set_num_threads(workload.threads)
    model = build_model(workload).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
    forward = torch.compile(model, dynamic=True) if workload.options.get("compile", "false") == "true" else model
    batches = _batches(workload)
    while True:
        tokens = 0
        for _ in range(workload.updates):
            src, decoder_input, labels = (side.to(workload.device, non_blocking=True) for side in next(batches))
            optimizer.zero_grad(set_to_none=True)
            with _autocast(workload):
                logits = forward(input_ids=src, attention_mask=src != PAD, decoder_input_ids=decoder_input).logits
                loss = F.cross_entropy(
                    logits.flatten(0, 1), labels.flatten(), ignore_index=-100, label_smoothing=workload.label_smoothing
                )
            loss.backward()
            optimizer.step()
            tokens += int((labels != -100).sum())
        clock.end_round(tokens)


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


def _batches(workload: Workload) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield source, decoder input and labels of at most `batch_tokens` target tokens, epoch after epoch."""
    src, tgt = workload.ids("train", "src"), workload.ids("train", "tgt")
    order = sorted(range(len(src)), key=lambda i: (len(tgt[i]), len(src[i])))
    groups: list[list[int]] = [[]]
    tokens = 0
    for i in order:
        if groups[-1] and tokens + len(tgt[i]) + 1 > workload.batch_tokens:
            groups.append([])
            tokens = 0
        groups[-1].append(i)
        tokens += len(tgt[i]) + 1
    for epoch in count():
        random.Random(epoch).shuffle(groups)
        for group in groups:
            yield (
                _pad([[*src[i], EOS] for i in group], PAD),
                _pad([[BOS, *tgt[i]] for i in group], PAD),
                _pad([[*tgt[i], EOS] for i in group], -100),
            )


def _pad(sentences: Sequence[Sequence[int]], value: int) -> torch.Tensor:
    rows = [torch.tensor(sentence) for sentence in sentences]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)
