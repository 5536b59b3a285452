"""A replayed update as JSON and as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nmt.data.corpus import pair_location
from nmt.data.pair_text import StoredPair
from nmt.data.store import Side
from nmt.diagnostics.replay import Replay, ReplaySource, Verification, logged_metrics
from nmt.evaluate.tables import Table
from nmt.recipe import Recipe


def replay_document(
    source: ReplaySource, found: Replay, verification: Verification | None, pairs: Sequence[StoredPair]
) -> dict[str, Any]:
    """Return a replay as JSON values. pairs: the text of the first `found.pairs`"""
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


def _location(pair: StoredPair, recipe: Recipe, side: Side) -> str | None:
    if pair.number is None:
        return None
    return pair_location(recipe.data.train[pair.corpus], recipe.data.root, pair.number, side)


def replay_tables(found: Mapping[str, Any]) -> list[Table]:
    """Return the update and its pairs as tables. found: from `replay_document`"""
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


def _verified(found: Mapping[str, Any]) -> str:
    if found["verified"] is None:
        return "no; --verify continues to the next checkpoint and compares the state"
    equal = "equals" if found["verified"] else "DIFFERS FROM"
    return f"the state after update {found['verified_at']:,} {equal} the checkpoint of the run"
