"""Translations of edited files with and without a translation memory; see `tools/memory-check`."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nmt import Translator, UserError
from nmt.decode.memory import MemoryTranslator, TranslationMemory
from nmt.decode.task import TranslatorInput
from nmt.decode.text_translator import TextTranslator
from nmt.export.engine import CTranslate2Translator
from nmt.logs import progress
from nmt.recipe import SearchPrecision
from nmt.text.lines import read_lines, require_lines

PRECISIONS: dict[str, SearchPrecision] = {"torch": "fp32", "ctranslate2": "int8"}

EPILOG = """\
The first file has the first lines of SRC. Each further file is the previous one after one to five edits: a line is
inserted, deleted, or moved, or a word is changed. Each file is translated without a memory, and with one that has the
translations of all earlier files, as `nmt translate` does. Columns:
  reused   fraction of lines found in the memory
  texts    files with a different translation
  scores   files with a different score of a translation

exit status: 0 all texts are equal, 1 otherwise, 2 invalid command line
"""


@dataclass
class Row:
    """Numbers of files and lines of one engine."""

    engine: str
    files: int = 0
    lines: int = 0
    reused: int = 0
    texts: int = 0
    scores: int = 0

    def __str__(self) -> str:
        fraction = self.reused / self.lines
        return f"| {self.engine} | {self.files:,} | {self.lines:,} | {fraction:.1%} | {self.texts} | {self.scores} |"


def edit(rng: random.Random, lines: Sequence[str], others: Sequence[str], size: int) -> list[str]:
    """Return the lines after one to five edits. others: lines to insert; size: mean number of lines after many edits"""
    edited = list(lines)
    for _ in range(rng.randint(1, 5)):
        position = rng.randrange(len(edited))
        match rng.choice(("resize", "move", "change")):
            case "resize" if rng.random() * 2 * size < len(edited) - 1:
                del edited[position]
            case "resize":
                edited.insert(position, rng.choice(others))
            case "move":
                line = edited.pop(position)
                edited.insert(rng.randint(0, len(edited)), line)
            case _:
                words, new = edited[position].split() or [""], rng.choice(others).split() or [""]
                words[rng.randrange(len(words))] = rng.choice(new)
                edited[position] = " ".join(words)
    return edited


def compare(engine: str, translator: TextTranslator, files: Sequence[Sequence[str]], memory: Path) -> Row:
    """Translate the files with and without a memory."""
    row, remembering = Row(engine), MemoryTranslator(translator, TranslationMemory(memory), {})
    with progress(f"translating with {engine}", len(files), "files") as bar:
        for lines in files:
            inputs = [TranslatorInput(line) for line in lines]
            pairs = list(zip(remembering.start_translation(inputs)(), translator.translate_inputs(inputs), strict=True))
            row.files += 1
            row.lines += len(lines)
            row.texts += any([one.text for one in a] != [one.text for one in b] for a, b in pairs)
            row.scores += any([one.score for one in a] != [one.score for one in b] for a, b in pairs)
            bar.advance(1)
    row.reused = remembering.lines_reused
    return row


def load(engine: str, model: Path) -> TextTranslator:
    """Load a translator like `nmt translate`."""
    if engine == "torch":
        return Translator.load(model, "cpu", PRECISIONS[engine])
    return CTranslate2Translator.load(model, "cpu", PRECISIONS[engine], translators=1)


def main(arguments: Sequence[str]) -> int:
    """Print the table; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="tools/memory-check",
        description="Check on edited files that a translation memory changes no translation.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, help="a model directory, a checkpoint or a run")
    parser.add_argument("src", type=Path, help="source sentences, one per line")
    parser.add_argument("--files", type=int, default=1_000, metavar="N", help="edited files (default: %(default)s)")
    parser.add_argument("--lines", type=int, default=30, metavar="N", help="lines of the first file (default: 30)")
    parser.add_argument("--seed", type=int, default=1, help="random seed for edits (default: 1)")
    parser.add_argument("--engine", choices=list(PRECISIONS), help="torch (fp32) or ctranslate2 (int8); default: both")
    options = parser.parse_args(arguments)
    if options.lines < 1 or options.files < 0:
        parser.error(f"--lines must be at least 1 and --files at least 0, got {options.lines} and {options.files}")
    rng, rows = random.Random(options.seed), []
    try:
        others = list(read_lines(options.src))
        require_lines(options.src, len(others))
        files = [others[: options.lines]]
        for _ in range(options.files):
            files.append(edit(rng, files[-1], others, options.lines))
        for engine in [options.engine] if options.engine else PRECISIONS:
            with tempfile.TemporaryDirectory() as folder:
                translator = load(engine, options.model)
                rows.append(compare(f"{engine} {PRECISIONS[engine]}", translator, files, Path(folder) / "memory.db"))
    except UserError as error:
        sys.stderr.write(f"memory-check: {error}\n")
        return 1
    sys.stdout.write("| engine | files | lines | reused | texts | scores |\n|---|---|---|---|---|---|\n")
    sys.stdout.writelines(f"{row}\n" for row in rows)
    return 1 if any(row.texts for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
