"""Trains the quickstart model and compares its translations across devices, precisions, batch and beam sizes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.worker import end_with_parent

from gpu_check.outcome import Results
from gpu_check.quickstart import quickstart_recipe, trained_model
from gpu_check.settings import NO_GPU, Settings
from nmt.data.test_sets import test_sets
from nmt.decode.translator import Translator
from nmt.errors import UserError
from nmt.evaluate.metrics import score_corpus
from nmt.recipe import Recipe, SearchPrecision

# The quickstart model reaches about 95.
_MIN_BLEU = 85.0


@dataclass(frozen=True)
class Variant:
    """Settings of a translation."""

    device: str
    precision: SearchPrecision
    beam: int = 4
    batch_tokens: int | None = None

    def __str__(self) -> str:
        batch = "" if self.batch_tokens is None else f", batches of {self.batch_tokens} tokens"
        return f"{self.device} {self.precision}, beam {self.beam}{batch}"


@dataclass(frozen=True)
class Translations:
    """Translations of the test set, their time and score."""

    lines: list[str]
    seconds: float
    bleu: float
    signature: str


@dataclass(frozen=True)
class Comparison:
    """Two variants, the fraction of strings in which they must agree, and the largest difference in BLEU."""

    one: Variant
    other: Variant
    strings: float
    bleu: float


REFERENCE = Variant("cpu", "fp32")


def comparisons(settings: Settings) -> list[Comparison]:
    """Comparisons for the device."""
    device = settings.device
    fp32 = Variant(device, "fp32")
    pairs = [
        Comparison(Variant(device, "fp32", beam), Variant("cpu", "fp32", beam), 0.99, 0.1)
        for beam in settings.pick((4, 1, 8), (4, 1))
    ]
    pairs.append(Comparison(Variant(device, "bf16"), fp32, 0.90, 0.5))
    if settings.on_gpu:
        pairs.append(Comparison(Variant(device, "fp16"), fp32, 0.98, 0.2))
    pairs.append(Comparison(Variant("cpu", "int8"), REFERENCE, 0.80, 1.0))
    for tokens in settings.pick((256, 16_384), (32,)):
        pairs.append(Comparison(Variant(device, "fp32", 4, tokens), fp32, 0.995, 0.1))
        pairs.append(Comparison(Variant(device, "bf16", 4, tokens), Variant(device, "bf16"), 0.95, 0.3))
    return pairs


def run(settings: Settings, results: Results, _part: str) -> None:
    """Train, translate, compare."""
    recipe = quickstart_recipe(settings, [f"train.device={settings.device}"])
    started = time.monotonic()
    model = trained_model(recipe)
    results.note(f"Training (possibly resumed): {time.monotonic() - started:.0f} s on {settings.device}.\n")
    test = test_sets(recipe)["heldout"]
    found: dict[Variant, Translations | str] = {}
    for pair in comparisons(settings):
        for variant in (pair.one, pair.other):
            if variant not in found:
                found[variant] = _translate(model, variant, recipe, test.src, test.ref)
    _show(results, found)
    reference = found[REFERENCE]
    assert isinstance(reference, Translations), "fp32 works on every device"
    if not settings.small:
        name = f"BLEU of the model trained on {settings.device}"
        results.check(name, f"at least {_MIN_BLEU:g}", f"{reference.bleu:.1f}", reference.bleu >= _MIN_BLEU)
    for pair in comparisons(settings):
        _check(results, pair, found)
    _check_command(settings, results, model, test.src, found)


def _translate(
    model: Path, variant: Variant, recipe: Recipe, src: Sequence[str], ref: Sequence[str]
) -> Translations | str:
    """Translate with a variant; returns an error message if the device does not support it."""
    changes: dict[str, object] = {"beam_size": variant.beam}
    if variant.batch_tokens is not None:
        changes["batch_tokens"] = variant.batch_tokens
    decode = recipe.decode.model_copy(update=changes)
    try:
        translator = Translator.load(model, variant.device, variant.precision, decode)
    except UserError as error:
        return str(error)
    translator.translate(src[:4])
    started = time.perf_counter()
    lines = translator.translate(src)
    seconds = time.perf_counter() - started
    (score,) = score_corpus(lines, [ref], ["bleu"], tgt_lang=recipe.tgt_lang)
    return Translations(lines, seconds, score.value, score.signature)


def _check(results: Results, pair: Comparison, found: dict[Variant, Translations | str]) -> None:
    row = (f"{pair.one} and {pair.other}", f"{pair.strings:.1%} of strings, BLEU within {pair.bleu:g}")
    one, other = found[pair.one], found[pair.other]
    if pair.one == pair.other:
        results.not_measured(*row, NO_GPU)
    elif isinstance(one, str) or isinstance(other, str):
        results.not_measured(*row, one if isinstance(one, str) else str(other))
    else:
        equal = equal_fraction(one.lines, other.lines)
        distance = abs(one.bleu - other.bleu)
        passed = equal >= pair.strings and distance <= pair.bleu
        results.check(*row, f"{equal:.1%}, BLEU {one.bleu:.2f} and {other.bleu:.2f}", passed)


def equal_fraction(lines: Sequence[str], others: Sequence[str]) -> float:
    """Fraction of equal lines."""
    return sum(one == other for one, other in zip(lines, others, strict=True)) / len(lines)


def _check_command(
    settings: Settings, results: Results, model: Path, src: Sequence[str], found: dict[Variant, Translations | str]
) -> None:
    """Check that `nmt translate` writes the same translations as the translator."""
    expected = found[Variant(settings.device, "fp32")]
    assert isinstance(expected, Translations), "fp32 works on every device"
    folder = settings.folder("work")
    source, out = folder / "source.txt", folder / "translation.txt"
    source.write_text("".join(f"{line}\n" for line in src), encoding="utf-8")
    command = [sys.executable, "-m", "nmt", "translate", str(model), str(source), "-o", str(out), "--restart"]
    command += ["--engine", "torch", "--device", settings.device, "--precision", "fp32"]
    started = time.perf_counter()
    subprocess.run(command, check=True, preexec_fn=end_with_parent)
    seconds = time.perf_counter() - started
    lines = out.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    equal = equal_fraction(lines, expected.lines)
    results.check("nmt translate and the Python translator", "100% of lines", f"{equal:.1%}", equal == 1.0)
    results.note(f"`nmt translate` of {len(src)} lines on {settings.device}: {seconds:.1f} s in total.")


def _show(results: Results, found: dict[Variant, Translations | str]) -> None:
    rows: list[list[object]] = []
    for variant, translated in found.items():
        if isinstance(translated, Translations):
            rows.append([variant, f"{translated.bleu:.2f}", f"{translated.seconds:.2f}", translated.signature])
        else:
            rows.append([variant, "-", "-", translated])
    results.table("Translations of the held-out test set", ["search", "BLEU", "seconds", "signature"], rows)
