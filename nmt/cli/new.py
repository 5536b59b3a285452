"""`nmt new`: write a recipe for a parallel corpus, with a model size that fits it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.arguments import write_new
from nmt.logs import say
from nmt.recipe import CommandError, UserError, parse_recipe
from nmt.recipe.toml import toml_value
from nmt.text.lines import read_lines

# Minimum pairs of each size; IWSLT14 has 160,000 and WMT14 4.5 million.
SMALL_PAIRS, BASE_PAIRS = 100_000, 1_000_000
_CHARACTERS_PER_TOKEN = 4  # roughly, in European languages with the vocabularies below

_HEAD = """\
# {src_lang} to {tgt_lang}, made by `nmt new` for {pairs:,} pairs. All options: `nmt config {file}`.
name = {name}
src_lang = {src}
tgt_lang = {tgt}

[data]
train = [{train}]
valid = [{valid}]

# Test sets that `nmt run` translates and scores at the end:
# [data.test]
# news = {{ kind = "text", src = "news.{src_lang}", tgt = "news.{tgt_lang}" }}

"""

_TINY = """\
[tokenizer]
vocab_size = {vocab_size}  # a larger vocabulary would have many rare tokens in a small corpus

[model]  # tiny, for fewer than 100,000 pairs, as in recipe multi30k-en-de
num_encoder_layers = 4
num_decoder_layers = 2  # depth helps more in the encoder (Kasai et al. 2021)
d_model = 256
d_ff = 512
num_heads = 4
dropout = 0.3  # a small corpus is easily overfitted
norm_order = "pre"  # stable at a high learning rate

[train]
max_steps = {max_steps}  # about 34 epochs, but at least 1,000 updates
batch_tokens = 2_048  # small batches, many updates
micro_batch_tokens = 2_048
schedule = "cosine"  # decays to 0
learning_rate = 2e-3
warmup_steps = {warmup_steps}
clip_norm = 1.0  # for the high learning rate
validate_every = 300
save_every = 150
"""

_SMALL = """\
[tokenizer]
vocab_size = 10_000  # fairseq's setting for IWSLT14

[model]  # small, for 100,000 to 1,000,000 pairs: fairseq's setting for IWSLT14, as in recipe iwslt14-de-en
d_model = 512
d_ff = 1_024
num_heads = 4
dropout = 0.3

[train]
max_steps = 60_000
batch_tokens = 4_096
micro_batch_tokens = 4_096
optimizer = "adamw"
weight_decay = 1e-4
schedule = "inverse-sqrt"
learning_rate = 5e-4
warmup_steps = 4_000
validate_every = 1_000  # at every checkpoint
save_every = 1_000
"""

_BASE = """\
[tokenizer]
vocab_size = 32_000  # similar to the paper

[model]  # base, for 1,000,000 pairs or more: the paper's base model, as in recipe wmt14-en-de-base
d_model = 512
d_ff = 2_048
num_heads = 8
dropout = 0.1

[train]
max_steps = 100_000  # as in the paper
batch_tokens = 25_000  # as in the paper
micro_batch_tokens = "auto"  # the largest that fits in memory
warmup_steps = 4_000
validate_every = 1_250  # at every checkpoint
save_every = 1_250
"""


def new(
    src_lang: Annotated[str, typer.Argument(metavar="SRC", help="Source language, such as en.")],
    tgt_lang: Annotated[str, typer.Argument(metavar="TGT", help="Target language, such as de.")],
    src: Annotated[Path | None, typer.Option(help="Training text: source sentences, one per line.")] = None,
    tgt: Annotated[Path | None, typer.Option(help="Training text: their translations, line by line.")] = None,
    tsv: Annotated[Path | None, typer.Option(help="Alternative: a tab-separated file of both.")] = None,
    valid_src: Annotated[Path | None, typer.Option(help="Validation text, disjoint from the training text.")] = None,
    valid_tgt: Annotated[Path | None, typer.Option(help="Its translations.")] = None,
    valid_tsv: Annotated[Path | None, typer.Option(help="Alternative: a tab-separated file of both.")] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="New file (default: SRC-TGT.toml).")] = None,
) -> None:
    """Write a recipe for your text: a tiny or small model, or the paper's base model, by the number of pairs.

    nmt new en de --src train.en --tgt train.de --valid-src valid.en --valid-tgt valid.de -o mine.toml
    """
    path = out or Path(f"{src_lang}-{tgt_lang}.toml")
    train, valid = _Text.given("", src, tgt, tsv), _Text.given("valid-", valid_src, valid_tgt, valid_tsv)
    pairs, tokens = train.count()
    valid.count()
    size, body = _size(pairs, tokens)
    head = _HEAD.format(
        src_lang=src_lang,
        tgt_lang=tgt_lang,
        pairs=pairs,
        file=path,
        name=toml_value(path.stem),
        src=toml_value(src_lang),
        tgt=toml_value(tgt_lang),
        train=train.corpus(),
        valid=valid.corpus(),
    )
    parse_recipe(head + body, where=str(path))
    write_new(path, head + body)
    say(f"{pairs:,} pairs: {size} model; next: nmt run {path}")
    typer.echo(path)


def _size(pairs: int, tokens: int) -> tuple[str, str]:
    """Return the name and the options of the model size for a corpus; tokens: on the target side."""
    if pairs >= BASE_PAIRS:
        return "base", _BASE
    if pairs >= SMALL_PAIRS:
        return "small", _SMALL
    steps = max(1_000, 34 * tokens // 2_048)
    vocab_size = min(6_000, max(400, tokens // 50))  # SentencePiece rejects sizes too large for the text
    return "tiny", _TINY.format(max_steps=steps, warmup_steps=min(600, steps // 10), vocab_size=vocab_size)


@dataclass(frozen=True)
class _Text:
    """Parallel text: two files of lines, or one of two columns."""

    files: tuple[Path, ...]

    @classmethod
    def given(cls, prefix: str, src: Path | None, tgt: Path | None, tsv: Path | None) -> _Text:
        """Make the text that the options name; raises CommandError unless it is `src` and `tgt`, or `tsv`."""
        if src is not None and tgt is not None and tsv is None:
            return cls((src, tgt))
        if tsv is not None and src is None and tgt is None:
            return cls((tsv,))
        raise CommandError(f"nmt new needs --{prefix}src and --{prefix}tgt, or --{prefix}tsv; give one or the other")

    def corpus(self) -> str:
        """Return the corpus as inline TOML."""
        keys = ("src", "tgt") if len(self.files) == 2 else ("path",)
        kind = {"kind": "text" if len(self.files) == 2 else "tsv"}
        return toml_value(kind | dict(zip(keys, map(str, self.files), strict=True)))

    def count(self) -> tuple[int, int]:
        """Count pairs and estimate target tokens; raises UserError if empty or of unequal length."""
        counts = []
        for path in self.files:
            lines = characters = 0
            for line in read_lines(path):
                lines, characters = lines + 1, characters + len(line)
            counts.append((lines, characters))
        (pairs, _), (others, characters) = counts[0], counts[-1]
        if pairs != others:
            raise UserError(
                f"{self.files[0]} has {pairs:,} lines and {self.files[1]} has {others:,}; they must match line by "
                "line; check both"
            )
        if not pairs:
            raise UserError(f"{self.files[0]} is empty; it must have one sentence per line; check the file")
        return pairs, characters // (_CHARACTERS_PER_TOKEN * (3 - len(self.files)))
