"""How much a sentence's translation depends on the batch that it is in; the work of `tools/batch-invariance`."""

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
from nmt.storage.model_metadata import read_model_metadata
from nmt.storage.run_folder import find_model
from nmt.text.lines import read_lines

SIZES = (1, 2, 7, 32, 128)
TOLERANCE = 1e-5
SHOWN = 5

EPILOG = """\
Each batch holds so many neighbours of the file, whatever their lengths. What is compared with batches of one sentence:
  strings     lines whose best translation is another string
  score       largest difference between scores of the same string
  token       largest difference between log-probabilities of the same token
Rounding depends on the shape of a matrix product, so scores may differ by some units in the last place of float32. A
string can only change where two hypotheses are nearer to each other than that; each such line is shown with both
scores.

exit status: 0 all strings are equal and no score differs by more than 1e-5, else 1
"""


@dataclass(frozen=True)
class Row:
    """How the translations of one batch size and order differ from those of batches of one sentence."""

    size: int
    order: str
    strings: int
    score: float
    token: float

    @property
    def passed(self) -> bool:
        """Whether the batch did not matter."""
        return not self.strings and self.score <= TOLERANCE

    def __str__(self) -> str:
        return f"| {self.size} | {self.order} | {self.strings} | {self.score:.1e} | {self.token:.1e} |"


def translate_in_batches(
    translator: Translator, lines: Sequence[str], size: int, order: Sequence[int]
) -> list[Translation]:
    """The best translation of each line, in the order of `lines`; `order` is that in which they are batched."""
    found: dict[int, Translation] = {}
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        for i, translations in zip(chosen, translator.translate_n_best([lines[i] for i in chosen]), strict=True):
            found[i] = translations[0]
    return [found[i] for i in range(len(lines))]


def compare(size: int, order: str, found: Sequence[Translation], alone: Sequence[Translation]) -> Row:
    """One row of the table; scores are compared where the strings are equal."""
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
    """Each line whose translation is another one, with both."""
    for number, (line, a, b) in enumerate(zip(lines, found, alone, strict=True), start=1):
        if a.text != b.text:
            yield f"line {number}: {line}\n  alone    {b.score:.7f} {b.text}\n  together {a.score:.7f} {a.text}"


def measure(translator: Translator, lines: Sequence[str], seed: int) -> tuple[list[Row], list[str]]:
    """The table, and all the differences that were found."""
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
    """Measure, print the table, and say by the exit status whether all are equal."""
    parser = argparse.ArgumentParser(
        prog="tools/batch-invariance",
        description="Show how much a sentence's translation depends on what stands beside it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, help="a model directory, a checkpoint or a run")
    parser.add_argument("src", type=Path, help="sentences, one a line")
    parser.add_argument("--lines", type=int, metavar="N", help="only the first N")
    parser.add_argument("--seed", type=int, default=1, help="of the shuffling (default: 1)")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda or cuda:N")
    options = parser.parse_args()
    try:
        lines = list(read_lines(options.src))[: options.lines]
        decode = read_model_metadata(find_model(options.model)).decode
        one_batch = decode.model_copy(update={"n_best": 1, "batch_tokens": 10**9})
        translator = Translator.load(options.model, options.device, "fp32", one_batch)
        rows, found = measure(translator, lines, options.seed)
    except UserError as error:
        sys.stderr.write(f"batch-invariance: {error}\n")
        return 1
    threads = f"{torch.get_num_threads()} threads" if options.device == "cpu" else torch.cuda.get_device_name()
    table = ["| batch | order | strings | score | token |", "|---|---|---|---|---|", *map(str, rows)]
    shown = [f"\n{text}" for text in list(dict.fromkeys(found))[:SHOWN]]
    head = f"{len(lines)} lines, beam {decode.beam_size}, fp32, {threads}, torch {torch.__version__}\n"
    sys.stdout.write("".join(f"{line}\n" for line in [head, *table, *shown]))
    return 0 if all(row.passed for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
