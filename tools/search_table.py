"""Quality and time of search methods; see `tools/search-table`."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from nmt import DecodeRecipe, Translator, UserError
from nmt.cli.arguments import languages, read_pairs
from nmt.evaluate.metrics import make_scorer
from nmt.inference.quantized import supports_int8
from nmt.logs import progress
from nmt.processes.distributed import choose_device
from nmt.recipe import SearchPrecision
from nmt.storage.run_folder import find_model
from nmt.text.languages import SHORT_CODES
from nmt.text.tokenizer import Tokenizers

EPILOG = """\
Each round translates the text once with every search method, so changes in machine speed affect all of them. Columns:
sacreBLEU's BLEU and chrF2, output length relative to the reference, median seconds (all in parentheses), and the median
time relative to `beam 5` in the same round. The oracle selects the translation with the highest sentence BLEU among
the ten best of beam 10, an upper bound for reranking. Scores ignore case if translations are always lowercase.
"""

REFERENCE = "beam 5"


@dataclass(frozen=True)
class Search:
    """A row of the table. options: of section `decode`."""

    name: str
    models: tuple[Path, ...]
    options: dict[str, Any]
    precision: SearchPrecision = "fp32"
    oracle: bool = False


@dataclass
class Row:
    """Results of a search and the seconds of each round."""

    search: Search
    texts: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def searches(model: Path, other: Path | None, device: str) -> list[Search]:
    """Searches of the table; length penalty n^1 unless the name says otherwise."""
    samples = {"sampling": True, "n_best": 32}
    ten_best = {"beam_size": 10, "n_best": 10}
    alone = (model,)
    rows = [
        Search("beam 1 (greedy)", alone, {"beam_size": 1}),
        Search("beam 4", alone, {"beam_size": 4}),
        Search(REFERENCE, alone, {}),
        Search("beam 10", alone, {"beam_size": 10}),
        Search("beam 5, patience 2", alone, {"stop": "patience", "patience": 2.0}),
        Search("beam 5, exact stop", alone, {"stop": "exact"}),
        Search("beam 5, not normalized", alone, {"length_penalty": "none"}),
        Search("beam 5, n^0.6", alone, {"length_alpha": 0.6}),
        Search("beam 5, ((5+n)/6)^0.6", alone, {"length_penalty": "gnmt", "length_alpha": 0.6}),
        Search("beam 5, ((5+n)/6)^1", alone, {"length_penalty": "gnmt"}),
        Search("beam 10, oracle of 10", alone, ten_best, oracle=True),
        Search("beam 10, MBR of 10, chrF", alone, ten_best | {"mbr_metric": "chrf"}),
        Search("beam 10, MBR of 10, BLEU", alone, ten_best | {"mbr_metric": "bleu"}),
        Search("one sample", alone, {"sampling": True}),
        Search("one sample of the top 10", alone, {"sampling": True, "top_k": 10}),
        Search("one sample of the top 0.9", alone, {"sampling": True, "top_p": 0.9}),
        Search("one sample at temperature 0.5", alone, {"sampling": True, "temperature": 0.5}),
        Search("32 samples, MBR, chrF", alone, samples | {"mbr_metric": "chrf"}),
        Search("32 samples, MBR, BLEU", alone, samples | {"mbr_metric": "bleu"}),
        Search("beam 1 (greedy), bf16", alone, {"beam_size": 1}, "bf16"),
        Search("beam 5, bf16", alone, {}, "bf16"),
    ]
    if supports_int8(choose_device(device)):
        rows.append(Search("beam 5, int8", alone, {}, "int8"))
    if other is not None:
        rows += [
            Search("beam 5, the other model", (other,), {}),
            Search("beam 5, both, mean", (model, other), {"ensemble_mean": "linear"}),
            Search("beam 5, both, geometric mean", (model, other), {"ensemble_mean": "log"}),
        ]
    return rows


def select(rows: Sequence[Search], only: Sequence[str]) -> list[Search]:
    """Return the reference and the searches with one of the texts in their name; raises UserError for other texts."""
    for text in only:
        if not any(text in row.name for row in rows):
            names = "; ".join(row.name for row in rows)
            raise UserError(f"--only {text!r} matches no row; rows: {names}")
    return [row for row in rows if row.name == REFERENCE or any(text in row.name for text in only)]


def load(search: Search, device: str) -> Callable[[Sequence[str]], list[list[str]]]:
    """Return a function that translates lines: the best translation of each, or all of them for the oracle."""
    options = {"beam_size": 5, "length_penalty": "power", "length_alpha": 1.0} | search.options
    decode = DecodeRecipe.model_validate(options).all_given()  # independent of the model's defaults
    first, *others = search.models
    translator = Translator.load(first, device, search.precision, decode, others)
    if search.oracle:
        return lambda lines: [[one.text for one in best] for best in translator.translate_n_best(lines)]
    return lambda lines: [[text] for text in translator.translate(lines)]


def closest(texts: Sequence[str], reference: str, tgt_lang: str, lowercase: bool) -> str:
    """Translation with the highest sentence BLEU."""
    bleu = BLEU(effective_order=True, lowercase=lowercase, trg_lang=SHORT_CODES.get(tgt_lang, tgt_lang))
    return max(texts, key=lambda text: bleu.sentence_score(text, [reference]).score)


def measure(
    rows: Sequence[Row], device: str, src: list[str], ref: list[str], repetitions: int, tgt_lang: str, lowercase: bool
) -> None:
    """Measure all rows; loading and a first batch are not timed."""
    with progress("searching", repetitions * len(rows), "passes") as bar:
        for _ in range(repetitions):
            for row in rows:
                translate = load(row.search, device)
                translate(src[:32])
                started = time.perf_counter()
                translations = translate(src)
                row.seconds.append(time.perf_counter() - started)
                row.texts = [closest(*pair, tgt_lang, lowercase) for pair in zip(translations, ref, strict=True)]
                bar.advance(1)


def table(rows: Sequence[Row], ref: list[str], tgt_lang: str, lowercase: bool) -> Iterator[str]:
    """Lines of the Markdown table and the signatures. tgt_lang: selects the tokenizer of BLEU"""
    unit = next(row for row in rows if row.search.name == REFERENCE).seconds
    bleu = BLEU(lowercase=lowercase, trg_lang=SHORT_CODES.get(tgt_lang, tgt_lang))
    chrf = CHRF(lowercase=lowercase)
    yield "| search | BLEU | chrF2 | length | seconds | relative to beam 5 |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        score = bleu.corpus_score(row.texts, [ref])
        relative = statistics.median(mine / other for mine, other in zip(row.seconds, unit, strict=True))
        seconds = f"{statistics.median(row.seconds):.1f} ({', '.join(f'{one:.1f}' for one in row.seconds)})"
        quality = f"{score.score:.2f} | {chrf.corpus_score(row.texts, [ref]).score:.2f} | {score.ratio:.3f}"
        yield f"| {row.search.name} | {quality} | {seconds} | {relative:.2f} |"
    yield ""
    yield f"BLEU {bleu.get_signature()}"
    yield f"chrF2 {chrf.get_signature()}"


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(
        prog="tools/search-table",
        description="Compare quality and time of search methods.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, help="a model directory, a checkpoint or a run")
    parser.add_argument("src", type=Path, help="source sentences, one per line")
    parser.add_argument("ref", type=Path, help="their reference translations")
    parser.add_argument("--ensemble", type=Path, metavar="MODEL", help="a second model with the same tokenizers")
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="only beam 5 and rows with one of these in the name")
    parser.add_argument("--lines", type=int, metavar="N", help="use only the first N lines")
    parser.add_argument("--repetitions", type=int, default=3, metavar="N", help="rounds (default: 3)")
    parser.add_argument("--device", default="cpu", help="auto, cpu (default), cuda or cuda:N")
    options = parser.parse_args()
    if options.repetitions < 1 or (options.lines is not None and options.lines < 1):
        parser.error("--repetitions and --lines must be at least 1")
    try:
        tgt_lang, lowercase = languages(options.model)[1], Tokenizers.load(find_model(options.model)).tgt.lowercases()
        make_scorer("bleu", tgt_lang=tgt_lang)  # raises UserError if the tokenizer of the language is not installed
        rows = [
            Row(search)
            for search in select(searches(options.model, options.ensemble, options.device), options.only or [""])
        ]
        src, ref = read_pairs(options.src, options.ref)
        src, ref = src[: options.lines], ref[: options.lines]
        measure(rows, options.device, src, ref, options.repetitions, tgt_lang, lowercase)
    except UserError as error:
        sys.stderr.write(f"search-table: {error}\n")
        return 1
    device = choose_device(options.device)
    where = f"{torch.get_num_threads()} threads" if device.type == "cpu" else torch.cuda.get_device_name(device)
    sys.stdout.write(f"{len(src)} lines, fp32 unless stated otherwise, {where}, torch {torch.__version__}\n\n")
    sys.stdout.writelines(f"{line}\n" for line in table(rows, ref, tgt_lang, lowercase))
    return 0


if __name__ == "__main__":
    sys.exit(main())
