"""Cached conversions of models for CTranslate2."""

import errno
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread
from typing import Any
from unittest.mock import Mock

import pytest

from nmt.errors import UserError
from nmt.export import cache
from nmt.export import ctranslate2 as conversion
from nmt.export.engine import CTranslate2Translator
from nmt.storage.model_metadata import read_model_metadata
from nmt.storage.sealed import CorruptError
from tests.export.conftest import MakeModel
from tests.extras import import_ctranslate2
from tests.forked import PROCESSES

import_ctranslate2()


def conversions(model: Path) -> dict[Path, int]:
    return {path: (path / "model.bin").stat().st_mtime_ns for path in model.glob("ctranslate2-*")}


def convert_once(model: Path) -> Path:
    with cache.open_conversion(model, "float32") as converted:
        return converted.directory


@pytest.mark.slow
def test_a_conversion_is_cached_until_the_model_changes(make_model: MakeModel, lines: list[str]) -> None:
    model, other = make_model(seed=2), make_model(seed=3)
    decode = read_model_metadata(model).decode
    first = CTranslate2Translator.load(model, "cpu", "fp32", decode).translate(lines)
    [(path, mtime)] = conversions(model).items()
    assert CTranslate2Translator.load(model, "cpu", "fp32").translate(lines) == first
    assert conversions(model) == {path: mtime}
    overwrite_weights(model, other)
    changed = CTranslate2Translator.load(model, "cpu", "fp32").translate(lines)
    assert changed == CTranslate2Translator.load(other, "cpu", "fp32").translate(lines) != first
    assert len(conversions(model)) == 1
    assert path not in conversions(model)


@pytest.mark.slow
def test_the_path_of_a_conversion_need_not_be_valid_utf8(make_model: MakeModel, lines: list[str]) -> None:
    model = make_model(seed=2)
    first = CTranslate2Translator.load(model, "cpu", "fp32").translate(lines)
    renamed = model.rename(model.with_name(os.fsdecode(b"m\xff")))
    assert CTranslate2Translator.load(renamed, "cpu", "fp32").translate(lines) == first


def overwrite_weights(model: Path, other: Path) -> None:
    for name in ("model.safetensors", "manifest.json"):
        (model / name).write_bytes((other / name).read_bytes())


def damage(conversion_directory: Path) -> None:
    content = bytearray((conversion_directory / "model.bin").read_bytes())
    content[len(content) // 2] ^= 64
    (conversion_directory / "model.bin").write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize("state", ["absent", "damaged", "outdated"])
def test_concurrent_processes_convert_once(make_model: MakeModel, tmp_path: Path, state: str) -> None:
    """No process sees a partly removed directory or loads a damaged conversion."""
    model = make_model(seed=6)
    if state != "absent":
        damage(convert_once(model))
    if state == "outdated":
        other = make_model(seed=12)
        overwrite_weights(model, other)
    barrier, results = PROCESSES.Barrier(4), PROCESSES.Queue()
    children = [PROCESSES.Process(target=_load_concurrently, args=(model, barrier, results)) for _ in range(4)]
    for child in children:
        child.start()
    outcomes = [results.get(timeout=240) for _ in children]
    for child in children:
        child.join(60)
    translations, conversion_counts = zip(*outcomes, strict=True)
    assert len(set(translations)) == 1
    assert sorted(conversion_counts) == [0, 0, 0, 1]
    assert len(list(model.glob("*ctranslate2-*"))) == 1


def _load_concurrently(model: Path, barrier: Any, results: Any) -> None:
    """Load a model at the same time as other processes; put its translation and number of conversions in `results`."""
    convert, calls = conversion.convert, list[Any]()

    def convert_slowly(*arguments: Any) -> dict[str, bytes]:
        calls.append(arguments)
        time.sleep(0.5)  # so all processes see the same initial state
        return convert(*arguments)

    conversion.convert = convert_slowly  # type: ignore[assignment]
    barrier.wait(200)
    try:
        [text] = CTranslate2Translator.load(model, "cpu", "fp32").translate(["The dog sleeps."])
    except UserError as error:
        text = f"failed: {error}"
    results.put((text, len(calls)))


@pytest.mark.slow
def test_an_open_conversion_is_not_removed(make_model: MakeModel) -> None:
    model, other = make_model(seed=13), make_model(seed=14)
    with cache.open_conversion(model, "float32") as first:
        pass
    with cache.open_conversion(model, "float32"):
        overwrite_weights(model, other)
        replacing = Thread(target=convert_once, args=(model,))
        replacing.start()
        replacing.join(2.0)
        assert (first.directory / "model.bin").exists()
    replacing.join(60)
    assert list(conversions(model)) == [convert_once(model)] != [first.directory]


@pytest.mark.parametrize(
    ("is_cached", "message"), [(True, "later calls reuse the result"), (False, "not cached, because ")]
)
def test_the_log_states_whether_a_conversion_is_cached(
    make_model: MakeModel,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_cached: bool,
    message: str,
) -> None:
    model = make_model(seed=16)
    monkeypatch.setattr("os.access", lambda path, _: is_cached or path != model)
    convert_once(model)
    assert bool(conversions(model)) == is_cached
    assert f"for CTranslate2; {message}" in capsys.readouterr().err


def test_a_read_only_folder_without_a_manifest_cannot_cache(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(seed=17)
    (model / "manifest.json").unlink()
    monkeypatch.setattr("os.access", lambda path, _: path != model)
    assert not cache.can_cache(model, "int8")


def test_only_stale_folders_are_removed(make_model: MakeModel) -> None:
    model = make_model(seed=7)
    directory = convert_once(model)
    outdated, other_version = model / "ctranslate2-2-0123456789abcdef-int8", model / "ctranslate2-99-0123456789abcdef"
    own = model / "ctranslate2-2-mine"
    young, old = model / f".{directory.name}.part-young", model / f".{directory.name}.part-old"
    for folder in (outdated, other_version, own, young, old):
        (folder / "inner").mkdir(parents=True)
    days_ago = time.time() - 3 * 86_400
    os.utime(old, (days_ago, days_ago))
    (directory / "model.bin").unlink()
    assert convert_once(model) == directory
    assert {path for path in model.iterdir() if path.is_dir()} == {directory, other_version, own, young}


def test_a_model_that_changes_during_conversion_is_an_error(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, the weights of one model could be cached under the hash of another."""
    model, other = make_model(seed=8), make_model(seed=9)
    convert = conversion.convert

    def replace_first(*arguments: Any) -> dict[str, bytes]:
        overwrite_weights(model, other)
        return convert(*arguments)

    monkeypatch.setattr(conversion, "convert", replace_first)
    with pytest.raises(UserError, match="changed during its conversion"):
        convert_once(model)
    assert not conversions(model)
    assert (convert_once(model) / "model.bin").exists()


def test_a_model_that_is_deleted_during_conversion_is_named(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(seed=17)
    convert = conversion.convert

    def delete_after(*arguments: Any) -> dict[str, bytes]:
        files = convert(*arguments)
        shutil.rmtree(model)
        return files

    monkeypatch.setattr(conversion, "convert", delete_after)
    with pytest.raises(UserError, match=r"model does not exist; expected a model directory"):
        convert_once(model)


@pytest.mark.parametrize("missing", ["flock", "open"])
def test_locks_are_optional(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    """Some file systems do not support locks, and some are read-only."""
    model = make_model(seed=15)
    if missing == "flock":
        monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(errno.ENOSYS, "no locks")))
    else:
        (model / cache._LOCK_FILE).mkdir()
    damage(convert_once(model))
    assert CTranslate2Translator.load(model, "cpu", "fp32").translate(["The dog sleeps."])


def test_a_damaged_conversion_is_replaced_and_a_damaged_model_is_an_error(make_model: MakeModel) -> None:
    model = make_model(seed=4)
    first = CTranslate2Translator.load(model, "cpu", "fp32").translate(["The dog sleeps."])
    [path] = conversions(model)
    damage(path)
    assert CTranslate2Translator.load(model, "cpu", "fp32").translate(["The dog sleeps."]) == first
    (model / "model.safetensors").write_bytes(b"")
    assert CTranslate2Translator.load(model, "cpu", "fp32").translate(["The dog sleeps."]) == first  # weights not read
    with pytest.raises(CorruptError, match=r"model\.safetensors"):
        CTranslate2Translator.load(model, "cpu", "int8")
    (model / "tokenizer.model").write_bytes(b"")
    with pytest.raises(CorruptError, match=r"tokenizer\.model"):
        CTranslate2Translator.load(model, "cpu", "fp32")


def test_each_precision_has_its_own_conversion(make_model: MakeModel, lines: list[str]) -> None:
    model = make_model(seed=10)
    exact = CTranslate2Translator.load(model, "cpu", "fp32").translate(lines)
    CTranslate2Translator.load(model, "cpu", "auto")
    assert CTranslate2Translator.load(model, "cpu", "fp32").translate(lines) == exact
    sizes = {path.name.rpartition("-")[2]: (path / "model.bin").stat().st_size for path in conversions(model)}
    assert sizes.keys() == {"float32", "int8"}
    assert sizes["int8"] < 0.5 * sizes["float32"]


@pytest.mark.slow
def test_a_cached_conversion_is_loaded_without_torch(make_model: MakeModel) -> None:
    model = make_model(seed=11)
    translations = CTranslate2Translator.load(model, "cpu").translate(["The dog."])  # converts
    program = (
        "import sys; from nmt.export.engine import CTranslate2Translator\n"
        f"print(ascii(CTranslate2Translator.load({str(model)!r}, 'cpu').translate(['The dog.'])))\n"
        "print({'torch', 'sacrebleu', 'pyarrow', 'numpy'} & sys.modules.keys() or 'none')"
    )
    printed = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert printed.splitlines() == [ascii(translations), "none"]
