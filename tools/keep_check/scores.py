"""Translation quality with and without markup."""

from __future__ import annotations

import html
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from keep_check.contents import KINDS, read_content, violation
from nmt import Translator
from nmt.decode.task import TranslatorInput
from nmt.evaluate.metrics import Scorer, make_scorer
from nmt.keep.items import ItemGrammar
from nmt.keep.translator import Fallbacks, PreservingTranslator
from nmt.storage.model_metadata import read_model_metadata
from nmt.storage.run_folder import find_model
from nmt.text.tokenizer import Tokenizers

_FRACTION_WITH_MARKUP = 0.65
_NAMES = ("b", "i", "a", "span", "g")
_TAG = re.compile("<[^<>]*>")


@dataclass(frozen=True)
class Variant:
    """Translations of one variant of the source text, with tags removed.

    fallbacks: None without `--keep`
    violated:  lines whose markup or items differ from those of the source
    """

    name: str
    texts: list[str]
    fallbacks: Fallbacks | None
    violated: int


def insert_markup(rng: random.Random, line: str) -> str:
    """Return XML content: the line with one to three elements, which are nested or disjoint."""
    words = [html.escape(word, quote=False) for word in line.split()]
    for number in range(1, rng.randint(1, 3) + 1):
        depths = _depths(words)
        start = rng.randrange(len(words))
        ends = [start]
        for end in range(start + 1, len(words)):
            if min(depths[start + 1 : end + 1]) < depths[start]:
                break  # the element around the first word ends before this one
            ends.append(end)
        end = rng.choice([one for one in ends if depths[one + 1] == depths[start]] or [-1])
        if end >= 0:
            name = rng.choice(_NAMES)
            words[start] = f'<{name} id="{number}">{words[start]}'
            words[end] += f"</{name}>"
    return " ".join(words)


def _depths(words: Sequence[str]) -> list[int]:
    """Return the number of open elements before each word, and after the last."""
    depths = [0]
    for word in words:
        depths.append(depths[-1] + len(re.findall("<[a-z]", word)) - word.count("</"))
    return depths


def mark_lines(lines: Sequence[str], seed: int) -> list[str]:
    """Return the lines as XML content, about two thirds of them with markup."""
    rng, marked = random.Random(seed), []
    for line in lines:
        has_markup = bool(line.split()) and rng.random() < _FRACTION_WITH_MARKUP
        marked.append(insert_markup(rng, line) if has_markup else html.escape(line, quote=False))
    return marked


def translate_variants(model: Path, lines: Sequence[str], marked: Sequence[str]) -> list[Variant]:
    """Translate plain text, and marked text with and without `--keep`, with torch in fp32."""
    metadata = read_model_metadata(find_model(model))
    pair = metadata.src_lang, metadata.tgt_lang
    decode = metadata.decode.model_copy(update={"n_best": 1})
    aligned = Translator.load(model, "cpu", "fp32", decode.model_copy(update={"alignments": True}))
    keeping = PreservingTranslator(aligned, KINDS, pair)
    inputs = [TranslatorInput(line) for line in marked]
    kept = [found[0].text for found in keeping.start_translation(inputs)()]
    plain_translator = Translator.load(model, "cpu", "fp32", decode)
    return [
        Variant("plain text", plain_translator.translate(lines), None, 0),
        _variant("with markup, --keep", marked, kept, pair, keeping.fallbacks),
        _variant("with markup, without --keep", marked, plain_translator.translate(marked), pair, None),
    ]


def _variant(
    name: str, marked: Sequence[str], found: Sequence[str], pair: tuple[str, str], fallbacks: Fallbacks | None
) -> Variant:
    grammar = ItemGrammar(KINDS, *pair)
    violated = sum(bool(violation(grammar, *lines)) for lines in zip(marked, found, strict=True))
    return Variant(name, list(map(without_markup, found)), fallbacks, violated)


def without_markup(line: str) -> str:
    """Return the text of XML content; for lines that are not well-formed, everything outside tags."""
    try:
        text = read_content(line).text
    except ElementTree.ParseError:
        text = html.unescape(_TAG.sub("", line))
    return " ".join(text.split())


def scorer_of(model: Path) -> Scorer:
    """Return sacreBLEU's BLEU, ignoring case if translations are always lowercase."""
    directory = find_model(model)
    lowercase = Tokenizers.load(directory).tgt.lowercases()
    return make_scorer("bleu", tgt_lang=read_model_metadata(directory).tgt_lang, lowercase=lowercase)


def score_table(variants: Sequence[Variant], references: Sequence[str], scorer: Scorer) -> list[str]:
    """Return the lines of a Markdown table, and the signature."""
    table = ["| text | BLEU | lines with wrong markup or items | fallbacks |", "|---|---|---|---|"]
    signature = ""
    for variant in variants:
        score = scorer.score(variant.texts, [list(references)], resamples=1000)
        signature = score.signature
        fallbacks = "" if variant.fallbacks is None else variant.fallbacks.describe()
        bleu = f"{score.value:.2f} ± {score.interval:.2f}"
        table.append(f"| {variant.name} | {bleu} | {variant.violated} | {fallbacks} |")
    return [*table, "", signature]
