"""Commands that compute on a GPU print what they print on a CPU."""

import random
import re
from pathlib import Path

import pytest
import torch

from tests.calling import Nmt
from tests.cli.nasty_lines import sentence

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

NUMBER = re.compile(r"-?\d+\.\d+")


TORCH = ("translate", "src", "--engine", "torch", "--precision", "fp32")


@pytest.mark.parametrize(
    "arguments",
    [
        (*TORCH, "--n-best", "2"),
        (*TORCH, "--beam-size", "1", "--with-scores"),
        (*TORCH, "--tag", "<web>", "--with-alignments", "--output-format", "jsonl"),
        (*TORCH, "--ensemble", "model", "--set", "no_repeat_ngram=2"),
        (*TORCH, "--set", "sampling=true", "--set", "top_p=0.9", "--seed", "3"),
        (*TORCH, "--beam-size", "4", "--set", "beam_groups=2", "--set", "forbid=['tree']", "--set", "bias={cat=2}"),
        (*TORCH, "--beam-size", "4", "--n-best", "4", "--set", "mbr_metric=chrf"),
        (*TORCH, "--required", "phrases", "--prefixes", "prefixes"),
        ("score", "src", "ref"),
        ("score", "src", "ref", "--per-token"),
        ("align", "src", "ref"),
        ("heads", "src", "ref"),
        ("rerank", "src", "nbest", "--tune", "ref"),
    ],
)
def test_results_equal_those_on_a_cpu(
    gpu: torch.device, model: Path, tmp_path: Path, nmt: Nmt, arguments: tuple[str, ...]
) -> None:
    rng = random.Random(1)
    lines = [sentence(rng) for _ in range(20)]
    (tmp_path / "src").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (tmp_path / "ref").write_text("".join(f"{sentence(rng)}\n" for _ in lines), encoding="utf-8")
    nbest = [f"{number}\t-{rank}.5\t{sentence(rng)}\n" for number in range(1, 21) for rank in (1, 2)]
    (tmp_path / "nbest").write_text("".join(nbest), encoding="utf-8")
    (tmp_path / "phrases").write_text("cat\n" + "\n" * (len(lines) - 1))
    (tmp_path / "prefixes").write_text("\n" * (len(lines) - 1) + "Then\n")
    command, *rest = arguments
    files = {path.name: path for path in tmp_path.iterdir()} | {"model": model}
    paths = [files.get(argument, argument) for argument in rest]
    results = []
    for device in ("cpu", str(gpu)):
        status, out, err = nmt(command, model, *paths, "--device", device)
        assert status == 0, err
        results.append(out)
    expected, found = results
    assert NUMBER.sub("#", found) == NUMBER.sub("#", expected)
    values, others = ([float(number) for number in NUMBER.findall(text)] for text in results)
    assert others == pytest.approx(values, rel=1e-3, abs=2e-3)
