"""Translate a file with transformers' `generate`, sorted by length: `transformers_file.py IN OUT KEY=VALUE...`.

Settings: model (an export of `nmt export --to huggingface`), beam_size, device, threads, batch_sentences,
precision.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer


def load(options: dict[str, str]) -> Callable[[Path, Path], None]:
    """Return a function that translates a file."""
    torch.set_num_threads(int(options["threads"]))
    precision = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[options["precision"]]
    model = AutoModelForSeq2SeqLM.from_pretrained(options["model"], dtype=precision).eval().to(options["device"])
    tokenizer = AutoTokenizer.from_pretrained(options["model"])
    size, beam_size = int(options["batch_sentences"]), int(options["beam_size"])

    def translate(source: Path, target: Path) -> None:
        lines = source.read_bytes().decode().removesuffix("\n").split("\n")  # a line may contain "\r"
        order, outputs = sorted(range(len(lines)), key=lambda index: -len(lines[index])), [""] * len(lines)
        for start in range(0, len(order), size):
            chosen = order[start : start + size]
            batch = tokenizer([lines[index] for index in chosen], return_tensors="pt", padding=True).to(model.device)
            with torch.inference_mode():
                ids = model.generate(**batch, num_beams=beam_size, max_new_tokens=256)
            for index, text in zip(chosen, tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True):
                outputs[index] = text
        target.write_text("".join(f"{text}\n" for text in outputs), encoding="utf-8")

    return translate


def main(source: str, target: str, *settings: str) -> None:
    """Translate a file."""
    load(dict(setting.split("=", 1) for setting in settings))(Path(source), Path(target))


if __name__ == "__main__":
    main(*sys.argv[1:])
