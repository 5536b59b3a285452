"""`nmt score`: log-probabilities of given translations."""

from __future__ import annotations

import math
from typing import Annotated

import torch
import typer

from nmt.cli.arguments import Device, ModelArgument, SrcArgument, TgtArgument, Threads, read_pairs, require_one_reader
from nmt.decode.scoring import Scorer
from nmt.logs import progress, say

SCORING_WINDOW = 64  # pairs per call of the scorer


def score(
    model: ModelArgument,
    src: SrcArgument,
    tgt: TgtArgument,
    per_token: Annotated[bool, typer.Option("--per-token", help="Add a tab and the tokens as TOKEN:LOG_PROB.")] = False,
    tag: Annotated[str | None, typer.Option(help="Tag of the sources, as for nmt translate.")] = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Print the log-probability (natural logarithm) of each translation, one per line.

    stderr gets the perplexity of all translations, including EOS tokens.
    """
    require_one_reader([src, tgt])
    sources, targets = read_pairs(src, tgt)
    if threads is not None:
        torch.set_num_threads(threads)
    scorer = Scorer.load(model, device, tag)
    log_prob, tokens = 0.0, 0
    with progress("scoring", len(sources), "pairs") as bar:
        for start in range(0, len(sources), SCORING_WINDOW):
            window = slice(start, start + SCORING_WINDOW)
            for pair in scorer.score(sources[window], targets[window], first_line=start + 1):
                log_prob, tokens = log_prob + pair.log_prob, tokens + len(pair.token_log_probs)
                details = zip(pair.pieces, pair.token_log_probs, strict=True)
                columns = " ".join(f"{piece}:{value:.4f}" for piece, value in details)
                typer.echo(f"{pair.log_prob:.4f}" + (f"\t{columns}" if per_token else ""))
                bar.advance(1)
    perplexity = math.exp(min(-log_prob / tokens, 700.0))
    say(f"{len(sources):,} pairs, {tokens:,} tokens: log-probability {log_prob:.2f}, perplexity {perplexity:.4f}")
