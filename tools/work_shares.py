"""How busy a recipe keeps several processes; the work of `tools/work-shares`."""

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
from nmt.data.workload import Workload
from nmt.processes.distributed import World
from nmt.recipe import Recipe, UserError, load_recipe
from nmt.train.batching import micro_batch_multiple, plan_first_epoch, update_needs
from nmt.train.data import TrainingData

PROCESSES = (1, 2, 4, 8, 16, 64)
# Enough updates of random sentences for figures that no longer change in the third digit.
UPDATES = 70

EPILOG = """\
Columns:
  micro-batches  of an update, over all processes, on average
  tokens         share of the computed tokens that are learned from; the rest is padding
  busiest        tokens that the busiest process computes, divided by the mean over the processes
  counts         share of the processes' work that counts: tokens / busiest

Sentence lengths are those of the corpus that the recipe's run has prepared, or of --lengths RUN, otherwise random ones
distributed as those of WMT14 English-German. Shapes are those of a GPU: with train.compile, a single process pads
micro-batches to one shape. train.micro_batch_tokens must be a number, because without the GPU nobody knows what fits.

exit status: 0 printed, 2 the recipe or the command line is wrong
"""


def workload(recipe: Recipe, text: TrainingData, processes: int) -> Workload:
    """The workload of so many processes, each with a GPU."""
    train, world = recipe.train, World(0, processes, torch.device("cpu"))
    assert train.micro_batch_tokens != "auto", "what fits into memory must be known"
    multiple, needs = micro_batch_multiple(recipe, world), update_needs(recipe, text)
    plan = plan_first_epoch(recipe, text, needs, multiple)
    if train.shapes == "fixed" or (train.shapes == "auto" and train.compile and processes == 1):
        plan = replace(plan, shape=needs.shape(train.micro_batch_tokens, multiple))
    return Workload.from_plan(plan, processes)


def table(recipe: Recipe, text: TrainingData, numbers: Sequence[int]) -> Iterator[str]:
    """The workload of each number of processes as rows of Markdown."""
    yield "| processes | micro-batches | tokens | busiest | counts |"
    yield "|---|---|---|---|---|"
    for number in numbers:
        work = workload(recipe, text, number)
        shares = f"{work.useful:.1%} | {work.slowest:.4f} | {work.efficiency:.1%}"
        yield f"| {number} | {work.micro_batches:.2f} | {shares} |"


def lengths_of(recipe: Recipe, given: Path | None, scratch: Path) -> tuple[PairStore, str]:
    """A token store with the sentence lengths to use, and what they are."""
    if given is not None or (recipe.data_directory / "prepare.json").exists():
        directory = given or recipe.data_directory
        return open_corpus(directory).store, f"the corpus in {directory}"
    sizes = recipe.tokenizer.vocab_size, recipe.tokenizer.vocab_size
    tgt_tokens = UPDATES * recipe.train.batch_tokens
    longest = recipe.data.max_tokens
    store = write_random_corpus(scratch, WMT14, tgt_tokens=tgt_tokens, longest=longest, vocab_sizes=sizes, seed=1)
    return store, "lengths distributed as those of WMT14"


def main(arguments: Sequence[str]) -> int:
    """Print the table; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="tools/work-shares",
        description="How busy a recipe keeps several processes, by the program's own plan of updates.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", type=Path, help="a recipe, such as recipes/wmt14-en-de-big.toml")
    parser.add_argument("processes", type=int, nargs="*", default=PROCESSES, help="default: %(default)s")
    parser.add_argument("--lengths", type=Path, metavar="RUN", help="a run directory whose prepared corpus to use")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="replace an option")
    options = parser.parse_args(arguments)
    try:
        if min(options.processes) < 1:
            raise UserError(f"PROCESSES must be at least 1, got {min(options.processes)}")
        recipe = load_recipe(options.recipe, options.set)
        if recipe.train.micro_batch_tokens == "auto":
            raise UserError(
                "train.micro_batch_tokens is 'auto'; it must be a number here; add --set train."
                "micro_batch_tokens=4_096 or the like"
            )
        with tempfile.TemporaryDirectory() as scratch:
            store, what = lengths_of(recipe, options.lengths, Path(scratch))
            sys.stdout.write(
                f"{options.recipe}: updates of {recipe.train.batch_tokens:,} target tokens, micro-batches of at most "
                f"{recipe.train.micro_batch_tokens:,}; {what}\n\n"
            )
            for line in table(recipe, TrainingData(store, store), options.processes):
                sys.stdout.write(line + "\n")
    except UserError as error:
        sys.stderr.write(f"work-shares: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
