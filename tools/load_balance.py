"""Load balance of a recipe on several processes; see `tools/load-balance`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from nmt.bench.corpora import WMT14, open_corpus, write_random_corpus
from nmt.data.store import PairStore
from nmt.errors import UserError
from nmt.processes.distributed import World
from nmt.recipe import Recipe, load_recipe
from nmt.train.batching import Workload, micro_batch_multiple, plan_of_epoch, update_statistics
from nmt.train.data import TrainingData

PROCESSES = (1, 2, 4, 8, 16, 64)
# With this many updates, the results are stable to three digits.
UPDATES = 70

EPILOG = """\
Columns:
  micro-batches  mean per update, over all processes
  tokens         fraction of computed positions that are tokens; the rest is padding
  busiest        positions of the busiest process relative to the mean over processes
  useful         useful fraction of the work: tokens / busiest

Sentence lengths are those of the recipe's prepared corpus or of --lengths RUN, otherwise random with the distribution
of WMT14 English-German. Shapes are those of a GPU: with train.compile, one process pads micro-batches to one shape.
train.micro_batch_tokens must be a number, because the GPU memory is unknown.

exit status: 0 success, 2 invalid recipe or command line
"""


def workload(recipe: Recipe, text: TrainingData, processes: int) -> Workload:
    """Workload of a number of processes with one GPU each."""
    train, world = recipe.train, World(0, processes, torch.device("cpu"))
    assert train.micro_batch_tokens != "auto"
    multiple, statistics = micro_batch_multiple(recipe, world), update_statistics(recipe, text)
    plan = plan_of_epoch(recipe, text, statistics, multiple)
    if train.shapes == "fixed" or (train.shapes == "auto" and train.compile and processes == 1):
        plan = replace(plan, shape=statistics.shape(train.micro_batch_tokens, multiple))
    return Workload.from_plan(plan, processes)


def table(recipe: Recipe, text: TrainingData, numbers: Sequence[int]) -> Iterator[str]:
    """Lines of a Markdown table with one row per number of processes."""
    yield "| processes | micro-batches | tokens | busiest | useful |"
    yield "|---|---|---|---|---|"
    for number in numbers:
        work = workload(recipe, text, number)
        fractions = f"{work.useful:.1%} | {work.slowest:.4f} | {work.efficiency:.1%}"
        yield f"| {number} | {work.micro_batches:.2f} | {fractions} |"


def lengths_of(recipe: Recipe, given: Path | None, scratch: Path) -> tuple[PairStore, str]:
    """Return a token store with the sentence lengths, and their description."""
    if given is not None or (recipe.data_directory / "prepare.json").exists():
        directory = given or recipe.data_directory
        return open_corpus(directory)[0], f"the corpus in {directory}"
    sizes = recipe.tokenizer.vocab_size, recipe.tokenizer.vocab_size
    tgt_tokens = UPDATES * recipe.train.batch_tokens
    longest = recipe.data.max_tokens
    has_source = not recipe.is_language_model
    store = write_random_corpus(
        scratch, WMT14, tgt_tokens=tgt_tokens, longest=longest, vocab_sizes=sizes, seed=1, has_source=has_source
    )
    return store, "random lengths with the distribution of WMT14"


def main(arguments: Sequence[str]) -> int:
    """Print the table; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="tools/load-balance",
        description="Show the load balance of a recipe on several processes.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", type=Path, help="a recipe, such as recipes/wmt14-en-de-big.toml")
    parser.add_argument("processes", type=int, nargs="*", default=PROCESSES, help="default: %(default)s")
    parser.add_argument("--lengths", type=Path, metavar="RUN", help="use the prepared corpus of this run")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override an option")
    options = parser.parse_args(arguments)
    try:
        if min(options.processes) < 1:
            raise UserError(f"PROCESSES must be at least 1, got {min(options.processes)}")
        recipe = load_recipe(options.recipe, options.set)
        if recipe.train.micro_batch_tokens == "auto":
            raise UserError(
                "train.micro_batch_tokens is 'auto'; it must be a number here; add e.g. "
                "--set train.micro_batch_tokens=4_096"
            )
        with tempfile.TemporaryDirectory() as scratch:
            store, source = lengths_of(recipe, options.lengths, Path(scratch))
            sys.stdout.write(
                f"{options.recipe}: updates of {recipe.train.batch_tokens:,} target tokens, micro-batches of at most "
                f"{recipe.train.micro_batch_tokens:,}; {source}\n\n"
            )
            for line in table(recipe, TrainingData(store, store), options.processes):
                sys.stdout.write(line + "\n")
    except UserError as error:
        sys.stderr.write(f"load-balance: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
