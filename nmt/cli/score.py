"""`nmt score`: log-probabilities of given translations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from nmt.cli.arguments import Device, ModelArgument, Threads, check_inputs, read_pairs
from nmt.decode.scoring import Likelihood, TextScorer
from nmt.logs import counted, progress, say
from nmt.storage.model_metadata import read_model_metadata, warn_of_missing_tag
from nmt.storage.run_folder import find_model
from nmt.text.context import is_blank_pair
from nmt.text.format_warnings import warn_of_empty
from nmt.text.lines import input_name

SCORING_WINDOW = 64  # pairs per call of the scorer


def score(
    model: ModelArgument,
    src: Annotated[Path, typer.Argument(help="Source sentences, or text for a language model; - is standard input.")],
    tgt: Annotated[Path | None, typer.Argument(help="Their translations; not for a language model.")] = None,
    per_token: Annotated[bool, typer.Option("--per-token", help="Add a tab and the tokens as TOKEN:LOG_PROB.")] = False,
    tag: Annotated[str | None, typer.Option(help="Tag of the sources, as for nmt translate.")] = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Print the log-probability (natural logarithm) of each translation, or of each text for a language model.

    Text is tokenized again: if the search chose other tokens, their log-probability differs. Computes in fp32.
    Prints the perplexity per token and the bits per byte of all lines to stderr. Both count EOS tokens; bytes are those
    of the normalized text without line breaks. Only bits per byte are comparable between tokenizers, if their
    normalization is the same.
    """
    check_inputs([src, tgt])
    sources, targets = read_pairs(src, tgt)
    metadata = read_model_metadata(find_model(model))
    if (tgt is None) != metadata.is_language_model:
        wrong = "a translation model, which scores SRC and TGT" if tgt is None else "a language model, which scores SRC"
        raise typer.BadParameter(f"{model} is {wrong}; {'add TGT' if tgt is None else 'leave out TGT'}")
    if tgt is not None:
        for path, lines, others in ((src, sources, targets), (tgt, targets, sources)):
            warn_of_empty(input_name(path), lines, [others], "their log-probabilities count; check both files")
    if threads is not None:
        torch.set_num_threads(threads)
    warn_of_missing_tag(model, metadata, metadata.decode.tag if tag is None else tag)
    scorer = TextScorer.load(model, device, tag)
    names = (input_name(src), input_name(tgt or src))
    pairs = list(zip(sources, targets, strict=True))
    context = scorer.documents(sources, targets)
    total = Likelihood()
    with progress("scoring", len(sources), "pairs") as bar:
        for start in range(0, len(sources), SCORING_WINDOW):
            window = slice(start, start + SCORING_WINDOW)
            window_context = None if context is None else context[window]
            scores = scorer.score(sources[window], targets[window], start + 1, names=names, context=window_context)
            for pair, texts in zip(scores, pairs[window], strict=True):
                if context is None or not is_blank_pair(texts):  # which only ends a document
                    total.add(pair, pair.num_bytes)
                tokens = zip(pair.pieces, pair.token_log_probs, strict=True)
                column = "\t" + " ".join(f"{piece}:{value:z.4f}" for piece, value in tokens)
                typer.echo(f"{pair.log_prob:z.4f}{column if per_token else ''}")
                bar.advance(1)
    scored = counted(len(sources), "text" if tgt is None else "pair")
    num_empty = sum(map(is_blank_pair, pairs))
    if num_empty:
        effect = "whose EOS counts" if context is None else "which only end documents"
        scored += f" ({num_empty:,} empty, {effect})"
    say(
        f"{scored}, {total.tokens:,} tokens: log-probability {total.log_prob:z.2f}, perplexity {total.perplexity:.4f}, "
        f"{total.bits_per_byte:.4f} bits per byte"
    )
