"""Errors, help, completion and imports of the program."""

import errno
import json
import math
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import pytest

from nmt import pipeline
from nmt.cli.metric_options import print_results
from nmt.cli.program import COMMANDS
from tests.calling import Nmt, one_line

OPENMP_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "quickstart.toml"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "run/metrics.jsonl"), "the disk is full while writing run/"),
        (OSError(errno.EFBIG, "File too large", "f"), "f exceeds the maximum file size; raise the limit (ulimit -f"),
        (OSError(errno.EMFILE, "Too many open files", "f"), "Too many open files (f); raise the limit on open"),
        (OSError(errno.EIO, "Input/output error"), "Input/output error; check the path"),
    ],
)
def test_os_errors_are_one_line(nmt: Nmt, monkeypatch: pytest.MonkeyPatch, error: OSError, expected: str) -> None:
    def refuse(recipe: object) -> None:
        raise error

    monkeypatch.setattr(pipeline, "prepare", refuse)
    status, out, err = nmt("prepare", str(RECIPE))
    assert (status, out) == (1, "")
    assert one_line(err).startswith(expected)


def test_a_deleted_current_directory_is_one_line(nmt: Nmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setattr(pipeline, "prepare", lambda recipe: Path.cwd())
    status, out, err = nmt("prepare", str(RECIPE))
    assert (status, out) == (1, "")
    assert one_line(err).startswith("the current directory no longer exists; ")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["translate", "--beem-size", "3"], "--beam-size"),
        (["translate"], "Missing argument 'model'; see 'nmt translate --help'"),
        (["translate", "model", "--beam-size", "x"], "'--beam-size': it must be a valid integer"),
        (["rerank", "model", "src", "nbest"], "give either --weights or --tune"),
        (["plott"], "'plot'"),
        (["translate", "-q", "model"], "-q is an option of nmt itself; put it before the command, as in nmt -q trans"),
        (["translate", "model", "--glossary", "a.tsv", "--glossary", "b.tsv"], "--glossary is given twice"),
        (["translate", "model", "--beam-size", "2", "-b", "3"], "--beam-size is given twice; expected at most once"),
        (["plot", "curves", "run", "-o", "a.png", "-o", "b.png"], "is given twice"),
        (["bench", "train", "--x"], "see 'nmt bench train --help'"),
        (["translate", "x", "--beam-size", "0"], "'--beam-size': it must be greater than or equal to 1; see 'nmt"),
        (["export", "x", "--to", "onnx", "-o", "y"], "'--to': 'onnx' is not one of 'ctranslate2', 'huggingface'; see"),
    ],
)
def test_usage_errors_are_one_line(nmt: Nmt, arguments: list[str], expected: str) -> None:
    status, out, err = nmt(*arguments)
    assert (status, out) == (2, "")
    assert expected in one_line(err)


def test_ranks_other_than_0_leave_a_usage_error_to_rank_0(nmt: Nmt, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun ends all processes as soon as one fails, which must not happen before rank 0 prints the error."""

    def end(seconds: float) -> None:
        assert seconds > 1
        raise SystemExit(143)

    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr("nmt.cli.program.time.sleep", end)
    assert nmt("train", "--x") == (143, "", "")
    monkeypatch.setattr("nmt.cli.program.time.sleep", lambda seconds: None)
    status, out, err = nmt("train", "--x")
    assert (status, out) == (2, "")
    assert one_line(err).startswith("No such option: --x")


@pytest.mark.slow
def test_only_rank_0_of_torchrun_prints_results(
    nmt: Nmt, tmp_path: Path, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = (
        ("compare", "--ref", texts / "ref", texts / "good", texts / "fair", "--trials", 10, "--resamples", 0),
        ("evaluate", "--ref", texts / "ref", texts / "good", "--metrics", "chrf", "--json"),
        ("plan", RECIPE, f"run_dir={tmp_path / 'run'}", "--seconds", 0),
    )
    for command in commands:
        outputs = []
        for rank in ("0", "1"):
            monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
            monkeypatch.setenv("RANK", rank)
            status, out, err = nmt(*command)
            assert status == 0, err
            outputs.append(out)
        assert outputs[0] and not outputs[1]


@pytest.mark.parametrize("name", ["score", "align", "rerank", "export", "classify", "average", "info", "serve"])
def test_single_process_commands_are_refused_under_torchrun(
    nmt: Nmt, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    status, out, err = nmt(name, "a", "b", "c")
    assert (status, out) == (2, "")
    assert one_line(err) == f"nmt {name} uses one process, got 2; run it without torchrun"


@pytest.mark.parametrize(("arguments", "expected"), [(["--help"], 0), (["translate", "-h"], 0), ([], 2), (["plot"], 2)])
def test_help_is_printed_on_stdout(nmt: Nmt, arguments: list[str], expected: int) -> None:
    status, out, err = nmt(*arguments)
    assert (status, err) == (expected, "")
    assert "Usage: nmt" in out


@pytest.mark.slow
@pytest.mark.parametrize("option", ["-q", "--quiet"])
def test_quiet_leaves_errors_and_warnings_alone(option: str, nmt: Nmt, model: Path, texts: Path) -> None:
    translate = ("translate", model, texts / "src", "--engine", "torch", "--device", "cpu")
    status, out, err = nmt(*translate)
    assert status == 0 and "lines/s" in err
    split, lost = warnings = [line for line in err.splitlines() if line.startswith("warning: ")]
    assert split.endswith(" were translated in parts; if sentences are missing, use --split-sentences")
    assert lost.endswith(" lack; use --keep markup,urls,emails,placeholders")
    assert nmt(option, *translate) == (0, out, "".join(f"{warning}\n" for warning in warnings))
    assert "--quiet and --verbose are mutually exclusive" in one_line(nmt("-q", "-v", "guide")[2])
    status, _, err = nmt(option, "translate", "nowhere")
    assert (status, one_line(err).startswith("nowhere does not exist")) == (1, True)


def test_verbose_adds_times_and_tracebacks(nmt: Nmt, model: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("A dog.\n")
    (tmp_path / "out").write_text("Ein Hund.\n")
    _, _, err = nmt("-v", "score", model, tmp_path / "in", tmp_path / "out", "--device", "cpu")
    assert re.match(r"\d\d:\d\d:\d\d 1 pair, ", err)
    _, _, err = nmt("-v", "score", "nowhere", tmp_path / "in", tmp_path / "out")
    assert err.startswith("Traceback ") and err.splitlines()[-1].startswith("nmt: nowhere does not exist")


def test_json_results_have_null_for_values_that_json_cannot_represent(capsys: pytest.CaptureFixture[str]) -> None:
    print_results({"nll": [math.nan, math.inf, 1.5]}, (), "json")
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {"nll": [None, None, 1.5]}


def test_the_versions_of_nmt_and_torch_are_printed(nmt: Nmt) -> None:
    status, out, _ = nmt("--version")
    assert status == 0
    assert out == f"nmt {metadata.version('nmt')} (torch {metadata.version('torch')})\n"


def test_a_closed_standard_output_is_an_error() -> None:
    command = ["sh", "-c", '"$0" -m nmt guide >&-', sys.executable]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert one_line(done.stderr).startswith("standard output is closed; it must be open; ")


@pytest.mark.slow
@pytest.mark.parametrize("pager", ["grep -o Activate", "", "missing-pager"])
def test_a_page_of_the_guide_is_shown_in_the_pager_of_a_terminal(pager: str) -> None:
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "nmt", "guide", "install"],
        stdin=terminal,
        stdout=terminal,
        env={**os.environ, "PAGER": pager, "TERM": "xterm"},
    )
    os.close(terminal)
    output = b""
    with suppress(OSError):  # the end of the output
        while block := os.read(controller, 4096):
            output += block
    os.close(controller)
    assert process.wait() == 0
    assert b"Activate" in output
    assert (output == b"Activate\r\n") == pager.startswith("grep")


@pytest.mark.parametrize("module", ["nmt.cli.program", "pydantic"])
def test_an_interrupt_during_imports_is_one_line(module: str) -> None:
    program = f"""
import builtins, os, signal, sys
original = builtins.__import__
def interrupted(name, *arguments):
    if name == {module!r}:
        os.kill(os.getpid(), signal.SIGINT)
        raise SystemError("as extension modules do")
    return original(name, *arguments)
signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may run in a background job, which ignores it
builtins.__import__ = interrupted
sys.argv[1:] = ["translate", "m"]
from nmt.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "nmt: interrupted\n")


def test_an_interrupt_is_one_line(nmt: Nmt, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(recipe: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "prepare", interrupt)
    status, out, err = nmt("prepare", str(RECIPE))
    assert (status, out, err) == (130, "", "nmt: interrupted\n")


def test_an_output_that_cannot_be_encoded_is_one_line(nmt: Nmt, monkeypatch: pytest.MonkeyPatch) -> None:
    def report(recipe: object) -> None:
        "BLEU 95 ± 1".encode("ascii")

    monkeypatch.setattr(pipeline, "prepare", report)
    status, _, err = nmt("prepare", str(RECIPE))
    assert (status, one_line(err)) == (1, "cannot write '±' in ascii; set PYTHONUTF8=1, then rerun")
    monkeypatch.setattr(pipeline, "prepare", lambda recipe: os.fsdecode(b"m\xff").encode())
    assert one_line(nmt("prepare", str(RECIPE))[2]) == r"cannot write '\udcff' in utf-8; rename the file or folder"


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, nmt: Nmt) -> None:
    status, out, err = nmt(name, "--help")
    assert (status, err) == (0, "")
    assert f"Usage: nmt {name}" in out
    assert len(out.splitlines()) > 8


def test_the_help_of_a_sweep_names_all_its_keys(nmt: Nmt) -> None:
    """rich would interpret words in square brackets as markup and omit them."""
    words = " ".join(nmt("repeat", "--help")[1].split())
    assert "recipe, seeds, overrides and variants." in words


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("guide", "install"), ("config", "quickstart")])
def test_the_documentation_does_not_need_docstrings(arguments: tuple[str, ...], nmt: Nmt) -> None:
    done = subprocess.run([sys.executable, "-OO", "-m", "nmt", *arguments], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, nmt(*arguments)[1]), done.stderr


@pytest.mark.parametrize(
    ("name", "defaults"),
    [("translate", ["0", "text"]), ("evaluate", ["1000"]), ("rerank", ["bleu", "10", "1"]), ("average", ["5"])],
)
def test_defaults_in_help_texts_are_shown(
    name: str, defaults: list[str], nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In square brackets, rich would interpret them as markup and omit them."""
    monkeypatch.setenv("COLUMNS", "300")
    out = nmt(name, "--help")[1]
    assert all(f"(default: {default})." in out for default in defaults)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("nmt tra", ["train", "translate", "train-classifier"]),
        ("nmt translate --beam", ["--beam-size"]),
        ("nmt translate --engine ", ["auto", "torch", "ctranslate2"]),
        ("nmt tranlate ru", ["run"]),
        ("nmt run quick", ["quickstart"]),
        ("nmt guide tr", ["training", "translating"]),
    ],
)
def test_shell_completion_does_not_import_torch(words: str, expected: list[str]) -> None:
    program = (
        "import atexit, sys; from nmt import cli\natexit.register(lambda: print('torch' in sys.modules))\ncli.main()"
    )
    index = str(len(words.split(" ")) - 1)
    variables = {"_NMT_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": index}
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | variables, capture_output=True, text=True, check=False
    )
    assert (done.stdout.splitlines(), done.stderr) == ([*expected, "False"], "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["trane"], ["train", "--help"], ["config", "quickstart"], ["train", "no.toml"]],
)
def test_help_and_usage_errors_import_no_large_package(arguments: list[str]) -> None:
    program = (
        "import sys; from nmt import cli; sys.argv[0] = 'nmt'\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'pyarrow', 'sacrebleu', 'matplotlib', 'transformers'} & sys.modules.keys()\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="torch uses GCC's OpenMP only on Linux")
def test_waiting_threads_sleep_soon() -> None:
    # main() exits before it imports torch, which reads and prints the variables.
    program = """
import atexit, sys
import nmt.cli
atexit.register(lambda: __import__("torch"))
sys.argv[1:] = ["--version"]
nmt.cli.main()
"""
    environment = os.environ | {"OMP_DISPLAY_ENV": "verbose"}
    for name in OPENMP_VARIABLES:
        environment.pop(name, None)
    shown = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True).stderr
    assert re.findall(r"GOMP_SPINCOUNT = '(\d+)'", shown) == ["1000"], shown


@pytest.mark.parametrize("given", [{"GOMP_SPINCOUNT": "70"}, {"OMP_WAIT_POLICY": "passive"}], ids=str)
def test_openmp_variables_of_the_user_are_kept(
    given: dict[str, str], nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in OPENMP_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert nmt("--version")[0] == 0
    assert {name: os.environ[name] for name in OPENMP_VARIABLES if name in os.environ} == given
