"""`nmt replay`: the pairs of one update of a run and their losses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from nmt.cli.metric_options import print_results
from nmt.data.corpus import pair_location
from nmt.data.pair_text import StoredPair, decode_pairs, locate_pairs
from nmt.data.prepare import Prepared
from nmt.diagnostics.replay import Replay, ReplaySource, Verification, logged_metrics, start_replay
from nmt.errors import CommandError, UserError
from nmt.evaluate.tables import Table
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
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with all pairs.")] = False,
) -> None:
    """Repeat one update of a run and list its training pairs by loss, with file and line.

    Shows what training read when the loss spiked or a gradient was not finite. In a trained model, pairs with a high
    loss are often wrong: misaligned, in another language, or truncated.

    Resumes from the checkpoint before the update and repeats all updates in between, in a temporary directory; the run
    is not changed. The loss of a pair is its nll per target token in nats before the update, without dropout.

    On a CPU the replay is exact with the same number of threads: the SHA-256 of the state equals that of the run.
    --verify checks this, with exit status 1 if they differ. Lines are found by searching the corpora for the pairs.
    """
    source = ReplaySource.find(run_dir, step)
    if verify and source.following is None:
        raise CommandError(
            f"{run_dir} has no checkpoint at or after update {step:,}; --verify needs one; remove --verify"
        )
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
    document = _as_json(source, found, verification, pairs)
    print_results(document, _tables(document), "json" if as_json else "text")
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


def _as_json(
    source: ReplaySource, found: Replay, verification: Verification | None, pairs: list[StoredPair]
) -> dict[str, Any]:
    logged = logged_metrics(source.run, found.step)
    return {
        "run": str(source.run),
        "step": found.step,
        "checkpoint": str(source.checkpoint) if source.checkpoint is not None else None,
        "epoch": found.epoch + 1,
        "update_in_epoch": found.index + 1,
        "updates_in_epoch": found.updates_in_epoch,
        "num_pairs": len(found.pairs),
        "tgt_tokens": int(found.pair_tokens.sum()),
        "nll": found.nll,
        "learning_rate": found.learning_rate,
        "gradient_norm": found.gradient_norm,
        "logged_gradient_norm": logged.get("train/gradient_norm"),
        "skipped": found.skipped,
        "state_before": found.before,
        "state_after": found.after,
        "verified_at": verification.step if verification else None,
        "verified": verification.replayed == verification.saved if verification else None,
        "pairs": [
            {
                "nll": float(nll),
                "tgt_tokens": int(tokens),
                "pair": pair.pair,
                "corpus": pair.corpus,
                "tag": source.recipe.data.train[pair.corpus].tag,
                "number": pair.number,
                "src_location": _location(pair, source.recipe, "src"),
                "tgt_location": _location(pair, source.recipe, "tgt"),
                "src": pair.src,
                "tgt": pair.tgt,
            }
            for pair, nll, tokens in zip(pairs, found.pair_nll, found.pair_tokens, strict=False)
        ],
    }


def _location(pair: StoredPair, recipe: Recipe, side: Any) -> str | None:
    if pair.number is None:
        return None
    return pair_location(recipe.data.train[pair.corpus], recipe.data.root, pair.number, side)


def _tables(found: dict[str, Any]) -> list[Table]:
    logged = found["logged_gradient_norm"]
    norm = f"{found['gradient_norm']:.6g}"
    if logged is not None:
        norm += f" (the run logged {logged:.6g})"
    in_epoch = f"epoch {found['epoch']}, {found['update_in_epoch']:,} of {found['updates_in_epoch']:,}"
    skipped = "; skipped: the gradient is not finite" if found["skipped"] else ""
    rows = (
        ("update", f"{found['step']:,} ({in_epoch}){skipped}"),
        ("from", found["checkpoint"] or "the initial weights"),
        ("pairs", f"{found['num_pairs']:,}, {found['tgt_tokens']:,} target tokens"),
        ("nll", f"{found['nll']:.4f} per token, with dropout"),
        ("learning rate", f"{found['learning_rate']:.6g}"),
        ("gradient norm", norm),
        ("state before", found["state_before"]),
        ("state after", found["state_after"]),
        ("verified", _verified(found)),
    )
    pairs = found["pairs"]
    num_unlisted = found["num_pairs"] - len(pairs)
    listed = Table(
        title="Pairs by loss, highest first",
        columns="rrlpp",
        header=("nll", "tokens", "location", "source", "target"),
        rows=tuple(
            (
                f"{pair['nll']:.2f}",
                f"{pair['tgt_tokens']:,}",
                pair["src_location"] or f"data.train.{pair['corpus']}, stored pair {pair['pair']}",
                pair["src"],
                pair["tgt"],
            )
            for pair in pairs
        ),
        notes=(f"{num_unlisted:,} more with lower loss; --top 0 lists all",) if num_unlisted else (),
    )
    return [Table("", "ll", (), rows), listed]


def _verified(found: dict[str, Any]) -> str:
    if found["verified"] is None:
        return "no; --verify continues to the next checkpoint and compares the state"
    equal = "equals" if found["verified"] else "DIFFERS FROM"
    return f"the state after update {found['verified_at']:,} {equal} the checkpoint of the run"
