"""`nmt replay`: the pairs of one update of a run and their losses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.metric_options import print_results
from nmt.data.pair_text import StoredPair, decode_pairs, locate_pairs
from nmt.data.prepare import Prepared
from nmt.diagnostics.replay import Replay, ReplaySource, start_replay
from nmt.errors import CommandError, UserError
from nmt.evaluate.replay_tables import replay_document, replay_tables
from nmt.logs import say, warn
from nmt.processes.distributed import start_world
from nmt.recipe import Recipe
from nmt.storage.run_folder import checkpoint_step

_NUM_LISTED = 20


def replay(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    step: Annotated[int, typer.Option(min=1, help="The update to replay, from 1.")],
    top: Annotated[
        int | None,
        typer.Option(min=0, help="List N pairs with the highest loss, 0 for all; default: 20, all with --json."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Continue to the next checkpoint, and compare the state with it.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N (default: that of the run).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Repeat one update of a run and list its training pairs by loss, with file and line.

    Shows what training read when the loss spiked or a gradient was not finite. In a trained model, pairs with a high
    loss are often wrong: misaligned, in another language, or truncated.

    Resumes from the checkpoint before the update and repeats all updates in between, in a temporary directory; the run
    is not changed. The loss of a pair is its nll per target token in nats before the update, without dropout.

    On a CPU, the replay of a run of one process is exact with the same number of threads: the SHA-256 of the state
    equals that of the run. --verify checks this, with exit status 1 if they differ. Lines are found by searching the
    corpora for the pairs.
    """
    source = ReplaySource.find(run_dir, step)
    if verify and source.following is None:
        problem = f"{run_dir} has no checkpoint at or after update {step:,}; --verify needs one"
        raise CommandError(f"{problem}; leave out --verify")
    if device is not None:
        train = source.recipe.train.model_copy(update={"device": device})
        source = replace(source, recipe=source.recipe.model_copy(update={"train": train}))
    with start_world(source.recipe.train.device, "rerun the command") as world:
        if world.size > 1:
            raise CommandError(f"nmt replay uses one process, got {world.size}; run it without torchrun")
        num_listed = (0 if as_json else _NUM_LISTED) if top is None else top
        with start_replay(source, world) as replayer:
            found = replayer.replay()
            ends_at_checkpoint = source.following is not None and checkpoint_step(source.following) == step
            verification = replayer.verify() if verify or ends_at_checkpoint else None
            pairs = _read_pairs(replayer.prepared, source.recipe, found, num_listed)
    document = replay_document(source, found, verification, pairs)
    print_results(document, replay_tables(document), "json" if as_json else "text")
    if verify and document["verified"] is False:
        raise typer.Exit(1)


def _read_pairs(prepared: Prepared, recipe: Recipe, found: Replay, top: int) -> list[StoredPair]:
    """Return the text of the first pairs, and their locations if the corpora are readable."""
    pairs = decode_pairs(prepared, recipe, found.pairs[: top or None])
    say("searching the corpora for the pairs")
    try:
        return locate_pairs(prepared, recipe, pairs)
    except UserError as error:
        warn(f"the locations of the pairs are unknown: {error}")
        return pairs
