"""Dependence of translations on their batch; see `tools/batch-invariance`."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from nmt import Translation, Translator, UserError
from nmt.logs import progress
from nmt.processes.distributed import choose_device
from nmt.storage.model_metadata import read_model_metadata
from nmt.storage.run_folder import find_model
from nmt.text.lines import read_lines, require_lines

SIZES = (1, 2, 7, 32, 128)
TOLERANCE = 1e-5
SHOWN = 5

EPILOG = """\
Batches contain consecutive lines, in order or shuffled, regardless of their lengths. Compared with batches of one
sentence:
  strings     lines with a different best translation
  score       largest difference of scores of equal translations
  token       largest difference of log-probabilities of equal tokens
Rounding depends on matmul shapes, so scores may differ by a few units in the last place of float32. Translations can
only differ if the scores of two hypotheses are closer than that; up to five such lines are shown with both scores.

exit status: 0 all strings are equal and no score differs by more than 1e-5, 1 otherwise, 2 invalid command line
"""


@dataclass(frozen=True)
class Row:
    """Differences of one batch size and order from batches of one sentence."""

    size: int
    order: str
    strings: int
    score: float
    token: float

    @property
    def passed(self) -> bool:
        """Whether translations and scores are equal within the tolerance."""
        return not self.strings and self.score <= TOLERANCE

    def __str__(self) -> str:
        return f"| {self.size} | {self.order} | {self.strings} | {self.score:.1e} | {self.token:.1e} |"


def translate_in_batches(
    translator: Translator, lines: Sequence[str], size: int, order: Sequence[int]
) -> list[Translation]:
    """Translate `lines` in batches of consecutive indices in `order`; returns translations in the order of `lines`."""
    found: dict[int, Translation] = {}
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        for i, translations in zip(chosen, translator.translate_n_best([lines[i] for i in chosen]), strict=True):
            found[i] = translations[0]
    return [found[i] for i in range(len(lines))]


def compare(size: int, order: str, found: Sequence[Translation], alone: Sequence[Translation]) -> Row:
    """Compare with batches of one sentence; scores only for equal translations."""
    equal = [(a, b) for a, b in zip(found, alone, strict=True) if a.pieces == b.pieces]
    tokens = ((x, y) for a, b in equal for x, y in zip(a.token_log_probs, b.token_log_probs, strict=True))
    return Row(
        size,
        order,
        sum(a.text != b.text for a, b in zip(found, alone, strict=True)),
        max((abs(a.score - b.score) for a, b in equal), default=0.0),
        max((abs(x - y) for x, y in tokens), default=0.0),
    )


def differences(lines: Sequence[str], found: Sequence[Translation], alone: Sequence[Translation]) -> Iterator[str]:
    """Describe each line with a different translation."""
    for number, (line, a, b) in enumerate(zip(lines, found, alone, strict=True), start=1):
        if a.text != b.text:
            yield f"line {number}: {line}\n  alone    {b.score:.7f} {b.text}\n  together {a.score:.7f} {a.text}"


def measure(translator: Translator, lines: Sequence[str], seed: int) -> tuple[list[Row], list[str]]:
    """Measure all batch sizes and orders; returns rows and differing lines."""
    in_order = list(range(len(lines)))
    shuffled = random.Random(seed).sample(in_order, len(in_order))
    rows: list[Row] = []
    found_differences: list[str] = []
    passes = [(size, *order) for size in SIZES for order in (("in order", in_order), ("shuffled", shuffled))]
    alone: list[Translation] = []
    with progress("translating", len(passes), "passes") as bar:
        for size, name, order in passes:
            found = translate_in_batches(translator, lines, size, order)
            alone = alone or found
            rows.append(compare(size, name, found, alone))
            found_differences += differences(lines, found, alone)
            bar.advance(1)
    return rows, found_differences


def main() -> int:
    """Print the table; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="tools/batch-invariance",
        description="Measure how much translations depend on batching.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, help="a model directory, a checkpoint or a run")
    parser.add_argument("src", type=Path, help="source sentences, one per line")
    parser.add_argument("--lines", type=int, metavar="N", help="use only the first N lines")
    parser.add_argument("--seed", type=int, default=1, help="random seed for shuffling (default: 1)")
    parser.add_argument("--device", default="cpu", help="auto, cpu (default), cuda or cuda:N")
    options = parser.parse_args()
    if options.lines is not None and options.lines < 1:
        parser.error(f"--lines must be at least 1, got {options.lines}")
    try:
        lines = list(read_lines(options.src))[: options.lines]
        require_lines(options.src, len(lines))
        decode = read_model_metadata(find_model(options.model)).decode
        one_batch = decode.model_copy(update={"n_best": 1, "batch_tokens": 10**9})
        translator = Translator.load(options.model, options.device, "fp32", one_batch)
        rows, found = measure(translator, lines, options.seed)
    except UserError as error:
        sys.stderr.write(f"batch-invariance: {error}\n")
        return 1
    device = choose_device(options.device)
    where = f"{torch.get_num_threads()} threads" if device.type == "cpu" else torch.cuda.get_device_name(device)
    table = ["| batch | order | strings | score | token |", "|---|---|---|---|---|", *map(str, rows)]
    shown = [f"\n{text}" for text in list(dict.fromkeys(found))[:SHOWN]]
    head = f"{len(lines)} lines, beam {decode.beam_size}, fp32, {where}, torch {torch.__version__}\n"
    sys.stdout.write("".join(f"{line}\n" for line in [head, *table, *shown]))
    return 0 if all(row.passed for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
