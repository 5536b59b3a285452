"""See `tools/keep-check --help`."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast

from keep_check.contents import KINDS, violation
from keep_check.marked_lines import marked_line
from keep_check.noisy_translator import NoisyTranslator
from keep_check.scores import mark_lines, score_table, scorer_of, translate_variants
from nmt import UserError
from nmt.cli.arguments import read_pairs
from nmt.decode.task import TranslatorInput
from nmt.decode.text_translator import TextTranslator
from nmt.keep.items import ItemGrammar
from nmt.keep.translator import Fallbacks, PreservingTranslator
from nmt.logs import progress

NOISE_LEVELS = (0.0, 0.02, 0.1, 0.3, 1.0)
WINDOW = 100
SHOWN = 5
HEADER = """\
| engine | noise | lines | translated again | split | copied | violations |
|---|---|---|---|---|---|---|
"""

EPILOG = """\
Random XML lines with nested elements, numbers, URLs, addresses, placeholders and entities are translated by fake
translators that move, drop, repeat and corrupt words, and add items. `noise` is the probability of a change to a word.
Engine `torch` outputs word alignments and accepts required phrases, some of which it omits; `ctranslate2` does neither.
In each output, an XML parser must find the elements of the line with their attributes, and nmt's own patterns must find
its items, each as often as in the line, and no others. The percentages are the fractions of lines that were translated
again with required phrases or without digits, split at their items, and copied without translation.

With MODEL, SRC and REF, a model translates SRC unchanged, and with markup in two thirds of its lines. Tags are removed
before scoring. ±: half width of the 95% bootstrap interval.

exit status: 0 no violation, 1 violations or an unusable file, 2 invalid command line
"""


class Row(NamedTuple):
    """Lines of one engine and noise, their fallbacks, and descriptions of violations."""

    engine: str
    noise: float
    lines: int
    fallbacks: Fallbacks
    violations: list[str]

    def __str__(self) -> str:
        counts = (self.fallbacks.searched, self.fallbacks.split, self.fallbacks.copied)
        fractions = " | ".join(f"{count / max(1, self.lines):.1%}" for count in counts)
        return f"| {self.engine} | {self.noise:g} | {self.lines:,} | {fractions} | {len(self.violations)} |"


def check(engine: str, noise: float, lines: Sequence[str]) -> Row:
    """Translate windows of lines and compare each with its translation."""
    noisy = NoisyTranslator(noise, can_require=engine == "torch", aligns=engine == "torch")
    keeping = PreservingTranslator(cast(TextTranslator, noisy), KINDS, ("en", "de"))
    grammar, violations = ItemGrammar(KINDS, "en", "de"), []
    for start in range(0, len(lines), WINDOW):
        window = lines[start : start + WINDOW]
        found = keeping.start_translation([TranslatorInput(line) for line in window])()
        for line, (best, *_) in zip(window, found, strict=True):
            if problem := violation(grammar, line, best.text):
                violations.append(f"{problem}\n  line   {line}\n  output {best.text}")
    return Row(engine, noise, len(lines), keeping.fallbacks, violations)


def check_all(count: int, seed: int) -> list[Row]:
    """Distribute `count` random lines evenly over engines and noise levels, and check them."""
    rng = random.Random(seed)
    cases = [(engine, noise) for engine in ("torch", "ctranslate2") for noise in NOISE_LEVELS]
    rows = []
    with progress("checking", len(cases), "translators") as bar:
        for case, (engine, noise) in enumerate(cases):
            own = count * (case + 1) // len(cases) - count * case // len(cases)
            rows.append(check(engine, noise, [marked_line(rng) for _ in range(own)]))
            bar.advance(1)
    return rows


def main(arguments: Sequence[str]) -> int:
    """Print the tables; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="tools/keep-check",
        description="Check that `nmt translate --keep` keeps all markup and items.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", type=Path, nargs="*", metavar="MODEL SRC REF", help="a model, and text to score")
    parser.add_argument("--lines", type=int, default=100_000, metavar="N", help="random lines (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="random seed of lines and markup (default: 1)")
    options = parser.parse_args(arguments)
    if len(options.files) not in (0, 3):
        parser.error(f"expected MODEL, SRC and REF, got {len(options.files)} arguments; give all three or none")
    if options.lines < 0:
        parser.error(f"--lines must be at least 0, got {options.lines}")
    rows = check_all(options.lines, options.seed) if options.lines else []
    violations = [problem for row in rows for problem in row.violations]
    sys.stdout.write(HEADER)
    sys.stdout.writelines(f"{row}\n" for row in rows)
    sys.stdout.writelines(f"\n{problem}\n" for problem in violations[:SHOWN])
    try:
        kept = score(options.files, options.seed) if options.files else True
    except UserError as error:
        sys.stderr.write(f"keep-check: {error}\n")
        return 1
    return 1 if violations or not kept else 0


def score(files: Sequence[Path], seed: int) -> bool:
    """Print the scores of MODEL, SRC and REF; returns whether `--keep` kept everything."""
    model, src, ref = files
    lines, references = read_pairs(src, ref)
    marked = mark_lines(lines, seed)
    variants = translate_variants(model, lines, marked)
    with_markup = sum("<" in line for line in marked)
    sys.stdout.write(f"\n{len(lines)} lines, {with_markup} with markup, torch fp32\n\n")
    sys.stdout.writelines(f"{line}\n" for line in score_table(variants, references, scorer_of(model)))
    return not any(variant.violated for variant in variants if variant.fallbacks is not None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
