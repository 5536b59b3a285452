"""Parity of exports; see `tools/parity`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from nmt.cli.arguments import languages, read_pairs
from nmt.decode.translator import Translator
from nmt.errors import UserError
from nmt.evaluate.metrics import Scorer, make_scorer
from nmt.export.bundle import ExportOptions, export_model
from nmt.export.engine import CTranslate2Translator
from nmt.export.generation import forbidden_tokens, to_generation_config
from nmt.export.packages import load_package
from nmt.export.parity import load_huggingface
from nmt.recipe import DecodeRecipe
from nmt.storage.model_metadata import read_model_metadata
from nmt.storage.run_folder import find_model
from nmt.text.clean import normalize
from nmt.text.tokenizer import Tokenizers

Translate = Callable[[Sequence[str]], list[str]]

# Lines whose scores are compared.
SCORED_LINES = 200


def main() -> int:
    """Print one row per program and search; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="tools/parity", description="Compare translations of a model and its exports."
    )
    parser.add_argument("model", type=Path, help="model directory")
    parser.add_argument("src", type=Path, help="text to translate, one sentence per line")
    parser.add_argument("ref", type=Path, help="reference translations")
    parser.add_argument("--beam-size", type=int, default=5, help="beam size, in addition to greedy search (5)")
    parser.add_argument("--length-alpha", type=float, default=1.0, help="exponent of the length penalty n^alpha (1)")
    parser.add_argument("--lines", type=int, default=1000, help="lines of the text to translate (1000)")
    parser.add_argument("--hf-lines", type=int, default=200, help="lines for transformers, which is slow (200)")
    options = parser.parse_args()
    for name in ("beam_size", "lines", "hf_lines"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, got {getattr(options, name)}")
    if not 0 <= options.length_alpha <= 10:
        parser.error(f"--length-alpha must be between 0 and 10, got {options.length_alpha}")
    try:
        src, ref = read_pairs(options.src, options.ref)
        tgt_lang = languages(options.model)[1]
        src, ref = src[: options.lines], ref[: options.lines]
        row(f"{'search':<10}{'program':<24}{'lines':>6}{'equal':>9}{'BLEU':>9}{'seconds':>9}")
        for beam_size in (1, options.beam_size):
            decode = DecodeRecipe(beam_size=beam_size, length_penalty="power", length_alpha=options.length_alpha)
            decode = decode.all_given()  # the other programs do not use the model's defaults
            compare(options.model, src, ref, decode, options.hf_lines, tgt_lang)
    except UserError as error:
        sys.stderr.write(f"parity: {error}\n")
        return 1
    return 0


def compare(model: Path, src: list[str], ref: list[str], decode: DecodeRecipe, hf_lines: int, tgt_lang: str) -> None:
    """Print the rows of one search. tgt_lang: selects the tokenizer of BLEU"""
    ours = Translator.load(model, "cpu", "fp32", decode)
    shown = partial(show, scorer=make_scorer("bleu", tgt_lang=tgt_lang, lowercase=ours.lowercases))
    reference = shown("nmt fp32", decode, ours.translate, src, ref, None)
    scored = ours.translate_n_best(src[:SCORED_LINES])
    differences: list[str] = []
    for precision in ("fp32", "int8"):
        engine = CTranslate2Translator.load(model, "cpu", precision, decode)
        shown(f"ctranslate2 {precision}", decode, engine.translate, src, ref, reference)
        pairs = zip(scored, engine.translate_n_best(src[:SCORED_LINES]), strict=True)
        equal = [abs(a.score - b.score) for [a], [b] in pairs if a.pieces == b.pieces]
        differences.append(f"{precision} {max(equal):.2g}" if equal else f"{precision} has none")
    row(f"{'':<10}largest score difference of equal translations, first {len(scored)} lines: {', '.join(differences)}")
    with tempfile.TemporaryDirectory() as folder:
        notes = export_model(model, Path(folder) / "export", ExportOptions("huggingface", sample=src[:hf_lines]))
        row(f"{'':<10}huggingface: {notes[-1]}")
        translate = huggingface_translator(Path(folder) / "export", decode, model)
        shown("huggingface", decode, translate, src[:hf_lines], ref[:hf_lines], reference)


def row(text: str) -> None:
    """Print a line and flush."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def huggingface_translator(directory: Path, decode: DecodeRecipe, source: Path) -> Translate:
    """Return a function that translates with transformers and `decode`, 32 lines at a time. source: the nmt model"""
    model, tokenizer = load_huggingface(directory)
    own = find_model(source)
    metadata = replace(read_model_metadata(own), decode=decode)
    forbidden = forbidden_tokens(Tokenizers.load(own), metadata)
    config, _ = to_generation_config(decode, model.config.max_position_embeddings, metadata.max_tokens, forbidden)
    model.generation_config = load_package("transformers").GenerationConfig(**config)  # without the model's own options
    form = metadata.unicode_form

    def translate(lines: Sequence[str]) -> list[str]:
        found: list[str] = []
        for start in range(0, len(lines), 32):
            texts = [normalize(line, form) for line in lines[start : start + 32]]
            batch = tokenizer(texts, padding=True, return_tensors="pt")
            with torch.inference_mode():
                ids = model.generate(**batch)
            found += tokenizer.batch_decode(ids, skip_special_tokens=True)
        return found

    return translate


def show(
    name: str,
    decode: DecodeRecipe,
    translate: Translate,
    src: list[str],
    ref: list[str],
    reference: list[str] | None,
    *,
    scorer: Scorer,
) -> list[str]:
    """Translate, print a row, and return the translations. scorer: computes BLEU"""
    started = time.perf_counter()
    found = translate(src)
    seconds = time.perf_counter() - started
    equal = 100 * sum(a == b for a, b in zip(found, reference or found, strict=False)) / len(found)
    bleu = scorer.score(found, [ref]).value
    row(f"beam {decode.beam_size:<5}{name:<24}{len(src):>6}{equal:>8.1f}%{bleu:>9.2f}{seconds:>9.1f}")
    return found


if __name__ == "__main__":
    sys.exit(main())
