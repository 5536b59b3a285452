"""`nmt shortlist`: which target pieces may translate each source piece, for a faster search."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nmt.alignment.lexical import PASSES
from nmt.cli.arguments import require_output
from nmt.data.prepare import load_prepared
from nmt.data.store import PairStore
from nmt.decode.shortlist import coverage, make_shortlist
from nmt.logs import progress, say


def shortlist(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory; of `nmt prepare` at least.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="File to write.")],
    best: Annotated[int, typer.Option(min=1, help="Most probable target pieces kept for each source piece.")] = 100,
    frequent: Annotated[int, typer.Option(min=1, help="Most frequent target pieces, kept for every sentence.")] = 100,
    pairs: Annotated[
        int, typer.Option(min=1, help="Learn from at most so many training pairs, spread evenly over the corpus.")
    ] = 100_000,
) -> None:
    """List which target pieces may translate each source piece, for `nmt translate --shortlist FILE`.

    The list is estimated from the training pairs of the run, and fits all models with its tokenizers. At the end it is
    said how many candidates a sentence of the development text has, and how many of its references' pieces are among
    them.
    """
    directory = run / "data" if (run / "data").is_dir() else run
    require_output("-o", out, [directory], replaces=b"nmt-shortlist-")
    prepared = load_prepared(directory)
    store = PairStore(directory, "train")
    reverse_target = prepared.report["recipe"]["data"].get("reverse_target", False)
    with progress("aligning", PASSES * min(len(store), pairs), "pairs") as bar:
        made = make_shortlist(
            store,
            prepared.tokenizers,
            best=best,
            frequent=frequent,
            most_pairs=pairs,
            reverse_target=reverse_target,
            done=bar.advance,
        )
    made.save(out, prepared.tokenizers)
    size, covered = coverage(made, PairStore(directory, "valid"))
    say(
        f"development text: a sentence has {size:,.0f} candidates of {made.tgt_vocab_size:,} target pieces on average; "
        f"{covered:.1%} of the references' pieces are among them"
    )
    typer.echo(out)
