"""CTranslate2: its translator, with random weights of the workload's shape.

Options: compute_type (float32, int8, bfloat16, float16, int8_float32, ...), by default that of the precision;
inter_threads (parallel translators); environment variables CT2_FORCE_CPU_ISA and CT2_USE_MKL.
"""

from __future__ import annotations

import tempfile

import ctranslate2
import numpy as np
from ctranslate2.specs import common_spec, transformer_spec

from bench.worker import Clock
from bench.workload import Shape, Workload

COMPUTE_TYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
EOS = "</s>"


def decode(workload: Workload, clock: Clock) -> None:
    """Pass all sentences to `translate_batch`, which sorts and batches them."""
    translators = int(workload.options.get("inter_threads", "1"))
    sentences = [[*pieces, EOS] for pieces in workload.pieces("test", "src")[: workload.num_sentences]]
    with tempfile.TemporaryDirectory() as folder:
        write_model(workload, folder)
        translator = ctranslate2.Translator(
            folder,
            device=workload.device,
            compute_type=workload.options.get("compute_type", COMPUTE_TYPES[workload.precision]),
            inter_threads=translators,
            intra_threads=max(1, workload.threads // translators),
        )
    while True:
        results = translator.translate_batch(
            sentences,
            beam_size=workload.beam_size,
            max_batch_size=workload.batch_sentences,
            batch_type="examples",
            min_decoding_length=workload.output_tokens,
            max_decoding_length=workload.output_tokens,
        )
        clock.end_round(sum(len(result.hypotheses[0]) for result in results))


def write_model(workload: Workload, folder: str) -> None:
    """Write a post-norm model directory with random weights."""
    shape = workload.shape
    spec = transformer_spec.TransformerSpec.from_config(
        (shape.num_encoder_layers, shape.num_decoder_layers),
        shape.num_heads,
        pre_norm=False,
        activation=common_spec.Activation.RELU,
    )
    random = np.random.Generator(np.random.PCG64(1))
    embeddings = _matrix(random, workload.vocab_size, shape.d_model)
    spec.encoder.embeddings[0].weight = embeddings
    spec.decoder.embeddings.weight = embeddings
    spec.decoder.projection.weight = embeddings
    for layer in (*spec.encoder.layer, *spec.decoder.layer):
        _fill_attention(layer.self_attention, random, shape.d_model, [3, 1])
        if layer in spec.decoder.layer:
            _fill_attention(layer.attention, random, shape.d_model, [1, 2, 1])
        _fill_feed_forward(layer.ffn, random, shape)
    vocabulary = workload.lines("vocab.txt")
    spec.register_source_vocabulary(vocabulary)
    spec.register_target_vocabulary(vocabulary)
    spec.validate()
    spec.optimize()
    spec.save(folder)


def _fill_attention(attention: object, random: np.random.Generator, width: int, parts: list[int]) -> None:
    """Fill the projections; parts: number of d_model x d_model blocks fused in each."""
    for linear, part in zip(attention.linear, parts, strict=True):  # type: ignore[attr-defined]
        _fill_linear(linear, random, part * width, width)
    _fill_norm(attention.layer_norm, width)  # type: ignore[attr-defined]


def _fill_feed_forward(ffn: transformer_spec.FeedForwardSpec, random: np.random.Generator, shape: Shape) -> None:
    _fill_linear(ffn.linear_0, random, shape.d_ff, shape.d_model)
    _fill_linear(ffn.linear_1, random, shape.d_model, shape.d_ff)
    _fill_norm(ffn.layer_norm, shape.d_model)


def _fill_linear(linear: common_spec.LinearSpec, random: np.random.Generator, outer: int, inner: int) -> None:
    linear.weight = _matrix(random, outer, inner)
    linear.bias = np.zeros(outer, dtype=np.float32)


def _fill_norm(norm: common_spec.LayerNormSpec, width: int) -> None:
    norm.gamma, norm.beta = np.ones(width, dtype=np.float32), np.zeros(width, dtype=np.float32)


def _matrix(random: np.random.Generator, outer: int, inner: int) -> np.ndarray:
    matrix: np.ndarray = random.standard_normal((outer, inner)) * inner**-0.5
    return matrix.astype(np.float32)
