"""Hugging Face transformers: MarianMTModel, in a plain training loop and in `generate`.

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

from bench.work import Work
from bench.worker import Clock

PAD, BOS, EOS = 0, 2, 3
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def build_model(work: Work) -> MarianMTModel:
    """The model of the work, with fresh weights."""
    shape = work.shape
    torch.manual_seed(1)
    config = MarianConfig(  # type: ignore[call-arg]  # `attn_implementation` is none of its fields
        vocab_size=work.vocab_size,
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
        attn_implementation=work.option("attn", "sdpa"),
    )
    model: MarianMTModel = MarianMTModel(config).to(work.device)  # type: ignore[arg-type]  # wrapped without its types
    return model


def train(work: Work, clock: Clock) -> None:
    """Adam, fused, on batches of neighbours by length, as `group_by_length` makes them."""
    torch.set_num_threads(work.threads)
    model = build_model(work).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
    forward = torch.compile(model, dynamic=True) if work.option("compile", "false") == "true" else model
    batches = _batches(work)
    while True:
        tokens = 0
        for _ in range(work.updates):
            src, decoder_input, labels = (side.to(work.device, non_blocking=True) for side in next(batches))
            optimizer.zero_grad(set_to_none=True)
            with _autocast(work):
                logits = forward(input_ids=src, attention_mask=src != PAD, decoder_input_ids=decoder_input).logits
                loss = F.cross_entropy(
                    logits.flatten(0, 1), labels.flatten(), ignore_index=-100, label_smoothing=work.label_smoothing
                )
            loss.backward()
            optimizer.step()
            tokens += int((labels != -100).sum())
        clock.lap(tokens)


def decode(work: Work, clock: Clock) -> None:
    """`generate` on batches of neighbours by length, longest first."""
    torch.set_num_threads(work.threads)
    model = build_model(work).eval().to(DTYPES[work.precision])
    sentences = sorted(work.ids("test", "src")[: work.num_sentences], key=len, reverse=True)
    limits = {"min_new_tokens": work.output_tokens, "max_new_tokens": work.output_tokens, "do_sample": False}
    while True:
        tokens = 0
        for start in range(0, len(sentences), work.batch_sentences):
            batch = sentences[start : start + work.batch_sentences]
            src = _pad([[*ids, EOS] for ids in batch], PAD).to(work.device)
            mask = (src != PAD).long()
            with torch.inference_mode():
                found = model.generate(input_ids=src, attention_mask=mask, num_beams=work.beam_size, **limits)
            tokens += found.shape[0] * (found.shape[1] - 1)  # the first is the one that it starts with
        clock.lap(tokens)


def _autocast(work: Work) -> torch.autocast | nullcontext[None]:
    return nullcontext() if work.precision == "fp32" else torch.autocast(work.device, DTYPES[work.precision])


def _batches(work: Work) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Source, decoder input and labels, epoch after epoch, of at most `batch_tokens` target tokens."""
    src, tgt = work.ids("train", "src"), work.ids("train", "tgt")
    order = sorted(range(len(src)), key=lambda i: (len(tgt[i]), len(src[i])))
    groups: list[list[int]] = [[]]
    tokens = 0
    for i in order:
        if groups[-1] and tokens + len(tgt[i]) + 1 > work.batch_tokens:
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
