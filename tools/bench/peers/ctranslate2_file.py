"""Translate a file with CTranslate2 as its documentation shows: `ctranslate2_file.py IN OUT KEY=VALUE...`.

Settings: model (an export of `nmt export --to ctranslate2`), beam_size, device, compute_type, inter_threads,
intra_threads, batch_sentences.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import ctranslate2
import sentencepiece


def load(options: dict[str, str]) -> Callable[[Path, Path], None]:
    """Return a function that translates a file."""
    folder, beam_size = Path(options["model"]), int(options["beam_size"])
    translator = ctranslate2.Translator(
        str(folder),
        device=options["device"],
        compute_type=options["compute_type"],
        inter_threads=int(options["inter_threads"]),
        intra_threads=int(options["intra_threads"]),
    )
    joint = folder / "tokenizer.model"
    encoder, decoder = (
        sentencepiece.SentencePieceProcessor(
            model_file=str(joint if joint.exists() else folder / f"tokenizer.{side}.model")
        )
        for side in ("src", "tgt")
    )

    def translate(source: Path, target: Path) -> None:
        with source.open(encoding="utf-8", newline="\n") as lines, target.open("w", encoding="utf-8") as out:
            pieces = (encoder.encode(line.rstrip("\n"), out_type=str) for line in lines)
            results = translator.translate_iterable(
                pieces, max_batch_size=int(options["batch_sentences"]), beam_size=beam_size, length_penalty=1.0
            )
            for result in results:
                out.write(decoder.decode(result.hypotheses[0]) + "\n")

    return translate


def main(source: str, target: str, *settings: str) -> None:
    """Translate a file."""
    load(dict(setting.split("=", 1) for setting in settings))(Path(source), Path(target))


if __name__ == "__main__":
    main(*sys.argv[1:])
