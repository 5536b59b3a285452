"""Output options: inputs are not overwritten, and pipes and links are preserved."""

import os
import shutil
import threading
from pathlib import Path

import pytest

from nmt.errors import UserError
from nmt.plots.figure import PLOT_MARK
from nmt.streams.output_checks import require_output
from tests.calling import Nmt, one_line


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def folder(model: Path, tmp_path: Path) -> Path:
    """A model, a source, a reference, an n-best list, and the metrics of a run."""
    shutil.copytree(model, tmp_path / "model")
    (tmp_path / "src").write_text("a cat\n")
    (tmp_path / "ref").write_text("a dog\n")
    (tmp_path / "nbest").write_text("1\t-1.0\ta dog\n1\t-2.0\ta cat\n")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "train/loss": 2.0}\n{"step": 2, "train/loss": 1.0}\n')
    return tmp_path


def commands(folder: Path) -> dict[str, tuple[object, ...]]:
    """Commands that write a file, without the name of the file."""
    model, src, ref, nbest = (folder / name for name in ("model", "src", "ref", "nbest"))
    decode = ("bench", "decode", model, "--input", src, "--repetitions", 1, "--device", "cpu")
    return {
        "translate": ("translate", model, src, "-o"),
        "rerank": ("rerank", model, src, nbest, "--tune", ref, "--save-weights"),
        "bench": (*decode, "--output-tokens", 1, "--json"),
        "curves": ("plot", "curves", folder, "-o"),
        "alignment": ("plot", "alignment", model, src, ref, "-o"),
    }


@pytest.mark.parametrize(
    ("command", "inputs"),
    [
        ("translate", ["src", "model/model.toml", "model/model.safetensors"]),
        ("rerank", ["src", "ref", "nbest", "model/model.safetensors"]),
        ("bench", ["src", "model/model.toml"]),
        ("curves", ["metrics.jsonl"]),
        ("alignment", ["src", "ref"]),
    ],
)
def test_output_that_is_an_input_is_an_error(folder: Path, nmt: Nmt, command: str, inputs: list[str]) -> None:
    before = contents(folder)
    for name in inputs:
        link = folder / "link.png"
        link.symlink_to(folder / name)
        for out in (folder / name, link):
            status, _, err = nmt(*commands(folder)[command], out)
            assert status == 1
            assert "is the input" in one_line(err)
        link.unlink()
        assert contents(folder) == before


def test_output_in_the_model_of_fusion_is_an_error(folder: Path, nmt: Nmt) -> None:
    shutil.copytree(folder / "model", folder / "lm")
    before = contents(folder)
    out = folder / "lm" / "model.toml"
    status, _, err = nmt("translate", folder / "model", folder / "src", "--fusion", folder / "lm", "-o", out)
    assert (status, f"-o {out} is the input" in one_line(err)) == (1, True)
    assert contents(folder) == before


@pytest.mark.parametrize("name", ["out.vtt", "out.md", "out.xml", "out.tmx.gz"])
def test_the_error_for_an_unsupported_output_format_names_its_option(folder: Path, nmt: Nmt, name: str) -> None:
    status, _, err = nmt("translate", folder / "model", folder / "src", "-o", folder / name)
    assert status == 2
    assert "output is not supported; choose another name, or a format with --output-format" in one_line(err)


@pytest.mark.parametrize("command", ["rerank", "bench", "curves", "alignment"])
def test_invalid_output_is_reported_before_any_work(
    folder: Path, nmt: Nmt, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("nmt.cli.plot.load_aligner")
    monkeypatch.delattr("nmt.cli.rerank._load_models")
    monkeypatch.delattr("nmt.cli.bench.prepare_decoding")
    monkeypatch.delattr("nmt.cli.plot.draw_curves")
    (folder / "other.png").mkdir()
    (folder / "dangling.png").symlink_to(folder / "none" / "x.png")
    before = contents(folder)
    for out, expected in (
        (folder / "other.png", "it is a directory"),
        (folder / "none" / "x.png", "none is not a directory"),
        (folder / "dangling.png", "none is not a directory"),
        ("-", "it must be a file"),
    ):
        status, _, err = nmt(*commands(folder)[command], out)
        assert status == 1
        assert expected in one_line(err)
    assert contents(folder) == before


@pytest.mark.parametrize("command", ["translate", "rerank", "bench", "curves", "alignment"])
def test_output_to_a_link_that_loops_is_an_error(folder: Path, nmt: Nmt, command: str) -> None:
    link = folder / "loop.png"
    link.symlink_to(link.name)
    status, _, err = nmt(*commands(folder)[command], link)
    assert (status, f"cannot write {link}: its symbolic link loops; it must lead to" in one_line(err)) == (1, True)
    assert link.is_symlink() and not list(folder.glob("*part*"))


@pytest.mark.slow
@pytest.mark.parametrize("command", ["rerank", "bench", "curves", "alignment"])
def test_pipes_and_links_are_written_in_place(folder: Path, nmt: Nmt, command: str) -> None:
    ending = ".png" if command in ("curves", "alignment") else ""
    pipe, link, target = (folder / f"{name}{ending}" for name in ("pipe", "link", "target"))
    os.mkfifo(pipe)
    link.symlink_to(target)
    if ending:
        target.write_bytes(b"before, " + PLOT_MARK)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()), daemon=True)
    reader.start()
    status, _, err = nmt(*commands(folder)[command], pipe)
    assert status == 0, err
    reader.join(60)
    assert pipe.is_fifo()
    assert nmt(*commands(folder)[command], link)[0] == 0
    assert link.is_symlink()
    assert target.read_bytes()[:5] == received[0][:5] != b"befor"
    assert not list(folder.glob(".*part*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "ending"),
    [
        ("rerank", ""),
        ("bench", ""),
        *(("curves", ending) for ending in (".png", ".svg", ".pdf")),
        ("alignment", ".pdf"),
    ],
)
def test_only_a_file_of_the_same_kind_is_replaced(folder: Path, nmt: Nmt, command: str, ending: str) -> None:
    text, empty = folder / f"text{ending}", folder / f"empty{ending}"
    text.write_text("a sentence\n" * 100 + "[weights]\n")
    empty.write_text("")
    before = contents(folder)
    status, _, err = nmt(*commands(folder)[command], text)
    assert status == 1
    assert f"{text.name} was not written by this command" in one_line(err)
    assert contents(folder) == before
    for _ in range(2):
        status, _, err = nmt(*commands(folder)[command], empty)
        assert status == 0, err
    assert empty.read_bytes()


@pytest.mark.parametrize("command", ["curves", "alignment"])
def test_plot_needs_an_extension(folder: Path, nmt: Nmt, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is reported before any work starts."""
    monkeypatch.delattr("nmt.cli.plot.draw_curves")
    monkeypatch.delattr("nmt.cli.plot.load_aligner")
    status, _, err = nmt(*commands(folder)[command], folder / "plot")
    assert status == 2
    assert "the name needs an extension such as .png" in one_line(err)
    assert not list(folder.glob("plot*"))


@pytest.mark.slow
def test_unusable_output_directory_is_an_error(folder: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is reported before any work starts. A dangling symbolic link is not replaced either."""
    monkeypatch.delattr("nmt.export.marian.read_marian")
    monkeypatch.delattr("nmt.pipeline.averaging._choose_checkpoints")
    monkeypatch.delattr("nmt.cli.align.load_aligner")
    (folder / "link").symlink_to(folder / "none")
    (folder / "empty").mkdir()
    model, src, ref = (folder / name for name in ("model", "src", "ref"))
    before = contents(folder)
    for out in ("link", "empty", "src", "model", "src/new", "link/new"):
        for arguments in (
            ("import", folder, "-o", folder / out),
            ("average", folder, "-o", folder / out),
            ("align", model, src, ref, "--save-model", folder / out),
            ("export", model, "--to", "ctranslate2", "-o", folder / out),
        ):
            status, _, err = nmt(*arguments)
            assert status == 1
            assert ("is not a directory" if out.endswith("/new") else "already exists") in one_line(err)
    assert contents(folder) == before and (folder / "link").is_symlink()


def test_existing_output_may_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    (tmp_path / "in").write_text("in")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "one").write_text("one")
    inputs = [None, tmp_path / "in", tmp_path / "models", tmp_path / "missing"]
    for name in ("old", "new", "missing"):
        require_output("-o", tmp_path / name, inputs)
    require_output("-o", None, inputs)
    require_output("-o", Path("/dev/null"), [*inputs, Path("/dev/null")])


def test_an_unwritable_directory_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.streams.output_checks.os.access", lambda *_: False)  # root can write anywhere
    with pytest.raises(UserError, match=f"cannot write {tmp_path}/new: {tmp_path} is not writable; change its perm"):
        require_output("-o", tmp_path / "new")
    require_output("-o", Path("/dev/null"))


def test_standard_output_that_is_an_input_is_an_error(folder: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch) -> None:
    model, src, ref, nbest = (folder / name for name in ("model", "src", "ref", "nbest"))
    recipe = folder / "recipe.toml"
    recipe.write_text("run_dir = 'x'\n")
    before = contents(folder)
    for command, appended in (
        (("align", model, src, ref), ref),
        (("score", model, src, ref), src),
        (("heads", model, src, ref), src),
        (("rerank", model, src, nbest, "--tune", ref), nbest),
        (("classify", model, src), src),
        (("evaluate", src, "--ref", ref), ref),
        (("compare", src, nbest, "--ref", ref), nbest),
        (("config", recipe), recipe),
    ):
        with appended.open("a") as file, monkeypatch.context() as patch:
            patch.setattr("sys.stdout", file)
            status, _, err = nmt(*command)
        assert (status, one_line(err)) == (
            1,
            f"standard output is the input {appended}; it must be another file; choose a new one",
        )
        assert contents(folder) == before


@pytest.mark.parametrize("command", ["rerank", "bench"])
def test_results_do_not_replace_standard_output(
    folder: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """As after `nmt rerank ... --save-weights FILE > FILE`."""
    out = folder / "out"
    with out.open("a") as file, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", file)
        status, _, err = nmt(*commands(folder)[command], out)
    assert status == 1
    assert f"{out} is standard output; it must be a file; name one" in one_line(err)


def test_output_with_the_name_of_a_directory_is_an_error(folder: Path, nmt: Nmt) -> None:
    before = contents(folder)
    others = [("translate", folder / "model", folder / "src", "--memory"), ("new", "en", "de", "-o")]
    for command in (*commands(folder).values(), *others):
        status, _, err = nmt(*command, f"{folder}/new/")
        assert status == 2
        assert f"{folder}/new/ names a directory; it must be a file; name one in it" in one_line(err)
    assert contents(folder) == before


def test_standard_output_as_a_new_directory_or_recipe_is_an_error(
    folder: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    before = contents(folder)
    for command, status, ending in (
        (("export", "model", "--to", "ctranslate2", "-o"), 1, "; name one\n"),
        (("align", "model", "src", "ref", "--choose", "src", "ref", "--save-model"), 1, "; name one\n"),
        (("recipes", "quickstart", "-o"), 1, "; name one\n"),
        (("repeat", "quickstart", "--prepare-only", "-o"), 2, "; name one\n"),
        (("translate", "model", "src", "--memory"), 2, "; see 'nmt translate --help'\n"),
    ):
        found, _, err = nmt(*command, "-")
        assert found == status
        assert err.endswith(ending)
    assert contents(folder) == before


@pytest.mark.parametrize("out", ["-o ./-", "-o././/-", "--out=./-"])
def test_a_file_named_like_the_standard_streams_is_a_file(
    folder: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    monkeypatch.chdir(folder)
    Path("src").rename("./-")
    named = nmt("translate", "model", "./-")
    assert named[0] == 0 and named[1]
    Path("./-").rename("src")
    status, shown, err = nmt("translate", "model", "src", *out.split())
    assert (status, shown) == (0, ""), err
    assert (folder / "-").read_text() == named[1]


@pytest.mark.parametrize("option", ["-o ~/new", "-o~/new", "--out=~/new", "--out ~/new"])
def test_a_tilde_is_the_home_directory(folder: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder / "model"))
    for command in (("translate", "model", "src"), ("recipes", "quickstart")):
        status, _, err = nmt(*command, *option.split())
        assert status == 0, err
        (folder / "model" / "new").unlink()
    assert not (folder / "~").exists()
