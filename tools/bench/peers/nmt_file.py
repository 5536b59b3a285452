"""Translate files with nmt in one process, for comparisons of loaded systems.

Settings: model, beam_size, device, engine (torch or ctranslate2), precision, threads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import torch

from nmt import Translator
from nmt.decode.text_translator import TextTranslator
from nmt.export.engine import CTranslate2Translator
from nmt.recipe import DecodeRecipe, SearchPrecision
from nmt.text.lines import read_lines


def load(options: dict[str, str]) -> Callable[[Path, Path], None]:
    """Return a function that translates a file."""
    if options["engine"] not in ("torch", "ctranslate2"):
        raise SystemExit(f"engine must be torch or ctranslate2, got {options['engine']!r}; correct it")
    torch.set_num_threads(int(options["threads"]))
    decode = DecodeRecipe(beam_size=int(options["beam_size"]), length_penalty="power", length_alpha=1.0)
    load_translator: Callable[..., TextTranslator] = Translator.load
    if options["engine"] == "ctranslate2":
        load_translator = partial(CTranslate2Translator.load, translators=int(options["threads"]), scores=False)
    precision = cast(SearchPrecision, options["precision"])
    translator = load_translator(options["model"], device=options["device"], precision=precision, decode=decode)

    def translate(source: Path, target: Path) -> None:
        outputs = translator.translate(list(read_lines(source)))
        target.write_text("".join(f"{text}\n" for text in outputs), encoding="utf-8")

    return translate
