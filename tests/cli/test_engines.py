"""How `nmt translate` chooses the engine: never one that fails where the other works."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from nmt.decode.shortlist import Shortlist
from nmt.devices.precision import choose_precision
from nmt.engines import TranslatorRequest, choose_engine
from nmt.export import ctranslate2 as conversion
from nmt.export.engine import CTranslate2Translator
from nmt.processes.distributed import choose_device
from nmt.recipe import DecodeRecipe
from nmt.text.tokenizer import Tokenizers
from tests.calling import Nmt, one_line
from tests.extras import import_ctranslate2

import_ctranslate2()

FAST = "engine: CTranslate2, int8, the fastest on a CPU"
SLOW = f"engine: torch, {choose_precision('auto', choose_device('cpu'))}, because "

# By search option: a value that is not the default, with the options that it needs, and the expected message.
CHOICES: dict[str, tuple[list[str], str]] = {
    "beam_size": (["beam_size=5"], FAST),
    "length_penalty": (["length_penalty=none"], FAST),
    "length_alpha": (["length_alpha=0.0"], FAST),
    "stop": (["stop=exact"], SLOW + "CTranslate2 does not support decode.stop 'exact'"),
    "patience": (["stop=patience", "patience=0.5"], FAST),
    "beam_groups": (["beam_groups=2"], SLOW + "CTranslate2 does not support beam groups"),
    "diversity_penalty": (
        ["beam_groups=2", "diversity_penalty=0.1"],
        SLOW + "CTranslate2 does not support beam groups",
    ),
    "max_extra_tokens": (["max_extra_tokens=0"], FAST),
    "max_length_ratio": (["max_length_ratio=2.0"], FAST),
    "max_tokens": (["max_tokens=1"], FAST),
    "min_tokens": (["min_tokens=3"], FAST),
    "min_length_ratio": (["min_length_ratio=0.5"], FAST),
    "no_repeat_ngram": (["no_repeat_ngram=1"], FAST),
    "forbid": (["forbid=['dog', 'the']"], FAST),
    "require": (["require=['dog']"], SLOW + "CTranslate2 does not support required phrases"),
    "bias": (["bias.dog=1"], SLOW + "CTranslate2 does not support word bias"),
    "n_best": (["n_best=2"], FAST),
    "tag": (["tag=<web>"], FAST),
    "mbr_metric": (["mbr_metric=chrf", "n_best=2"], FAST),
    "sampling": (["sampling=true"], SLOW + "CTranslate2 does not support sampling"),
    "sampling_seed": (["sampling=true", "sampling_seed=2"], SLOW + "CTranslate2 does not support sampling"),
    "temperature": (["sampling=true", "temperature=0.5"], SLOW + "CTranslate2 does not support sampling"),
    "top_k": (["sampling=true", "top_k=2"], SLOW + "CTranslate2 does not support sampling"),
    "top_p": (["sampling=true", "top_p=0.5"], SLOW + "CTranslate2 does not support sampling"),
    "min_p": (["sampling=true", "min_p=0.5"], SLOW + "CTranslate2 does not support sampling"),
    "alignments": (["alignments=true"], SLOW + "CTranslate2 does not support alignments"),
    "alignment_layer": (["alignments=true", "alignment_layer=0"], SLOW + "CTranslate2 does not support alignments"),
    "alignment_heads": (["alignments=true", "alignment_heads=[0]"], SLOW + "CTranslate2 does not support alignments"),
    "alignment_at": (["alignments=true", "alignment_at=input"], SLOW + "CTranslate2 does not support alignments"),
    "shortlist": (["shortlist=LIST"], SLOW + "CTranslate2 does not support shortlist"),
    "batch_tokens": (["batch_tokens=20"], FAST),
    "split_sentences": (["split_sentences=true"], FAST),
    "long_lines": (["long_lines=truncate"], FAST),
}


@pytest.fixture
def model(model: Path, tmp_path: Path) -> Path:
    """A copy of the model without its CTranslate2 conversion."""
    return shutil.copytree(model, tmp_path / "model", ignore=shutil.ignore_patterns("*ctranslate2*"))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "in").write_text("The dog sees a cat.\n\nA dog.\n")
    return tmp_path / "in"


@pytest.fixture
def translate(model: Path, text: Path, nmt: Nmt) -> Nmt:
    return lambda *options: nmt("translate", model, text, "--device", "cpu", *options)


@pytest.fixture
def shortlist(model: Path, tmp_path: Path) -> Path:
    tokenizers = Tokenizers.load(model)
    size = tokenizers.tgt.vocab_size
    everything = Shortlist(size, np.arange(size), np.zeros(tokenizers.src.vocab_size + 1, int), np.zeros(0, int))
    everything.save(tmp_path / "list", tokenizers)
    return tmp_path / "list"


@pytest.mark.slow
def test_engine_auto_supports_every_decode_option(translate: Nmt, shortlist: Path) -> None:
    need_other_models = {"ensemble_mean", "fusion", "fusion_weight", "glossary_mode", "trees"}
    assert CHOICES.keys() | need_other_models == DecodeRecipe.model_fields.keys()
    for name, (settings, expected) in CHOICES.items():
        given = [one.replace("LIST", f"'{shortlist}'") for one in settings]
        status, out, err = translate(*(word for one in given for word in ("--set", one)))
        assert status == 0, (name, err)
        assert len(out.splitlines()) >= 3, name
        assert expected in err.splitlines()[-1], name
        forced = translate("--engine", "ctranslate2", *(word for one in given for word in ("--set", one)))
        assert forced[0] == (0 if expected == FAST else 2), name


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (("--length-penalty", "none", "--length-alpha", 0.3), "--length-alpha"),
        (("--set", "diversity_penalty=0.9"), "diversity_penalty"),
        (("--set", "decode.sampling_seed=3"), "sampling_seed"),
        (("--set", "ensemble_mean=log"), "ensemble_mean"),
    ],
)
def test_decode_option_without_effect_is_an_error(translate: Nmt, options: tuple[object, ...], name: str) -> None:
    status, out, err = translate(*options)
    assert (status, out) == (2, "")
    assert f"{name} has no effect without " in one_line(err)


@pytest.mark.slow
def test_engine_auto_considers_other_options(translate: Nmt, model: Path, text: Path) -> None:
    for options, expected in (
        (("--ensemble", model), SLOW + "CTranslate2 does not support ensemble"),
        (("--ensemble", model, "--set", "ensemble_mean=log"), SLOW + "CTranslate2 does not support ensemble"),
        (("--precision", "bf16"), "engine: torch, bf16, because bf16 was requested"),
        (
            ("--precision", "fp32", "--with-alignments"),
            "engine: torch, fp32, because CTranslate2 does not support alignments",
        ),
        (("--required", text), SLOW + "CTranslate2 does not support required phrases"),
        (("--prefixes", text), FAST),
        (("--n-best", 2, "--beam-size", 4, "--set", "stop=patience", "--set", "patience=0.5"), FAST),
    ):
        status, _, err = translate(*options)
        assert (status, expected in err.splitlines()[-1]) == (0, True), err


def test_precision_auto_is_resolved_for_torch(model: Path) -> None:
    """A partial output records the precision, so it is not resumed where `auto` selects another one."""
    for engine in ("torch", "auto"):
        request = TranslatorRequest([model], DecodeRecipe(stop="exact"), "cpu", processes=0, scores=False)
        chosen = choose_engine(engine, "auto", request, required=False)
        assert (chosen.engine, chosen.precision) == ("torch", choose_precision("auto", choose_device("cpu")))


def engine_message(err: str) -> str:
    """Return the part of the last line about the engine."""
    return err.splitlines()[-1].partition("; ")[2]


@pytest.fixture
def two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the clock so that a translation takes two seconds."""
    ticks = iter([10.0, 12.0])
    for module in ("cli.translate", "streams.job"):
        monkeypatch.setattr(f"nmt.{module}.monotonic", lambda: next(ticks))


@pytest.mark.parametrize(("engine", "name"), [("torch", "torch"), ("ctranslate2", "CTranslate2")])
@pytest.mark.usefixtures("two_seconds")
def test_the_last_line_has_model_device_engine_and_speed(translate: Nmt, model: Path, engine: str, name: str) -> None:
    status, _, err = translate("--engine", engine, "--precision", "fp32")
    assert status == 0, err
    assert re.fullmatch(
        r"translated 3 lines in 2\.0 s \(1\.5 lines/s, [\d,]+ tokens/s\) with "
        rf"{re.escape(str(model))} on cpu; engine: {name}, fp32",
        err.splitlines()[-1],
    )


@pytest.mark.usefixtures("two_seconds")
def test_speed_counts_tokens_of_the_best_translations(translate: Nmt, tmp_path: Path) -> None:
    err = translate("--n-best", 2, "-o", tmp_path / "out.jsonl")[2]
    objects = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    tokens = sum(len(one["tokens"]) for one in objects)
    assert tokens > 0
    assert err.splitlines()[-1].startswith(
        f"translated 3 lines in 2.0 s (1.5 lines/s, {tokens / 2:,.0f} tokens/s) with "
    )


def test_threads_are_set_for_each_engine(translate: Nmt, monkeypatch: pytest.MonkeyPatch) -> None:
    torch_threads, load = Mock(), Mock(wraps=CTranslate2Translator.load)
    monkeypatch.setattr("torch.set_num_threads", torch_threads)
    monkeypatch.setattr(CTranslate2Translator, "load", load)
    assert translate("--threads", 3, "--engine", "torch")[0] == 0
    torch_threads.assert_called_once_with(3)
    assert translate("--threads", 3, "--engine", "ctranslate2")[0] == 0
    assert load.call_args.kwargs["translators"] == 3


def fail_on_a_full_disk(*_: Any) -> dict[str, bytes]:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def fail_with_an_error(*_: Any) -> dict[str, bytes]:
    raise RuntimeError("the model is\nwrong")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "reason"), [(fail_on_a_full_disk, "No space left on device"), (fail_with_an_error, "the model is wrong")]
)
def test_engine_auto_falls_back_to_torch_after_a_failed_conversion(
    translate: Nmt,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Callable[..., dict[str, bytes]],
    reason: str,
) -> None:
    monkeypatch.setattr(conversion, "convert", error)
    expected = translate("--engine", "torch")[1]
    status, out, err = translate()
    assert (status, out) == (0, expected)
    assert engine_message(err) == f"{SLOW}converting {model} for CTranslate2 failed: {reason}"
    status, out, err = translate("--engine", "ctranslate2")
    assert (status, out) == (1, "")
    assert f"for CTranslate2 failed: {reason}; the conversion needs a writable" in err.splitlines()[-1]


def test_engine_auto_falls_back_to_torch(translate: Nmt, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(conversion, "unsupported_architecture", lambda *_: ["model.window is 4"])
        status, _, err = translate()
    assert (status, engine_message(err)) == (0, f"{SLOW}CTranslate2 cannot represent this model: model.window is 4")

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("unsupported CPU")

    monkeypatch.setattr("ctranslate2.Translator", fail)
    status, _, err = translate()
    assert (status, engine_message(err)) == (0, f"{SLOW}CTranslate2 failed: unsupported CPU")


def test_engine_auto_uses_torch_for_a_read_only_model(
    translate: Nmt, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmt.engines.can_cache", lambda *_: False)
    status, _, err = translate()
    assert (status, engine_message(err)) == (
        0,
        f"{SLOW}{model} is not writable, so the converted model cannot be stored",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "unneeded"),
    [("auto", {"torch", "numpy", "sacrebleu", "pyarrow"}), ("torch", {"sacrebleu", "pyarrow", "nmt.grammar"})],
)
def test_no_unneeded_package_is_imported(engine: str, unneeded: set[str], model: Path, text: Path) -> None:
    CTranslate2Translator.load(model, "cpu")  # stores the conversion
    program = (
        "import sys; from nmt import cli; sys.argv[0] = 'nmt'\n"
        "try: cli.main()\n"
        f"finally: print(*({unneeded} & sys.modules.keys()) or ['none'])"
    )
    options = ["--engine", engine, "--device", "cpu", "-o", str(text.with_name("out"))]
    command: list[str | Path] = [sys.executable, "-c", program, "translate", model, text, *options]
    assert subprocess.check_output(command, text=True) == "none\n"
    assert text.with_name("out").read_text().count("\n") == 3
