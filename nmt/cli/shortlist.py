"""`nmt shortlist`: make a lexical shortlist, which restricts the target vocabulary for speed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nmt.alignment.lexical import PASSES
from nmt.cli.arguments import file_path
from nmt.data.prepare import load_prepared
from nmt.data.store import PairStore
from nmt.decode.shortlist import coverage, make_shortlist
from nmt.errors import UserError
from nmt.logs import progress, say
from nmt.recipe import NO_LANGUAGE
from nmt.storage.run_folder import find_prepared
from nmt.streams.output_checks import require_output


def shortlist(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory with prepared data.")],
    out: Annotated[Path, typer.Option("-o", "--out", parser=file_path, metavar="FILE", help="Output file.")],
    best: Annotated[int, typer.Option(min=1, help="Target tokens per source token, by probability.")] = 100,
    frequent: Annotated[int, typer.Option(min=1, help="Most frequent target tokens, allowed in every sentence.")] = 100,
    pairs: Annotated[int, typer.Option(min=1, help="Maximum training pairs, spread evenly over the corpus.")] = 100_000,
) -> None:
    """Make a shortlist: the most probable translations of each source token, for `nmt translate --shortlist FILE`.

    The shortlist is estimated from the training pairs of the run. All models with the tokenizers of the run can use it.
    Reports the size of the shortlist per validation sentence, and how many reference tokens it covers.
    """
    directory = find_prepared(run)
    require_output("-o", out, [directory], replaces=b"nmt-shortlist-")
    prepared = load_prepared(directory)
    prepared.verify()
    store = PairStore(directory, "train")
    recipe = prepared.report["recipe"]
    if recipe["src_lang"] == NO_LANGUAGE:  # even if it has tags
        raise UserError(
            f"{run} is the run of a language model; a shortlist needs source tokens; use the run of a translation model"
        )
    with progress("aligning", PASSES * min(len(store), pairs), "pairs") as bar:
        made = make_shortlist(
            store,
            prepared.tokenizers,
            best=best,
            frequent=frequent,
            max_pairs=pairs,
            reverse_target=recipe["data"].get("reverse_target", False),
            progress=bar.advance,
        )
    made.save(out, prepared.tokenizers, (recipe["src_lang"], recipe["tgt_lang"]))
    size, covered = coverage(made, PairStore(directory, "valid"))
    say(
        f"validation set: {size:,.0f} of {made.tgt_vocab_size:,} target tokens per sentence on average, which cover "
        f"{covered:.1%} of the reference tokens"
    )
    typer.echo(out)
