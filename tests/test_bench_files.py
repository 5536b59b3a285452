"""Comparison of complete translation commands."""

import subprocess
import sys
from pathlib import Path

import pytest

from nmt.bench.random_model import number_tokenizers, write_random_model
from nmt.export.packages import is_installed
from nmt.recipe import UserError, parse_recipe

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

from bench import ledger
from bench.file_comparison import FileWorkload, compare_files, compare_loaded, session_memory
from bench.serving import ServingWorkload, compare_servers

from tests.cli.nasty_lines import as_bytes, nasty_lines

RECIPE = """
name = "small"
src_lang = "en"
tgt_lang = "de"
[data]
train = [{ kind = "toy" }]
valid = [{ kind = "toy" }]
[model]
num_encoder_layers = 1
num_decoder_layers = 1
d_model = 16
d_ff = 16
num_heads = 2
"""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> FileWorkload:
    folder = tmp_path_factory.mktemp("files")
    write_random_model(folder / "model", parse_recipe(RECIPE), number_tokenizers(40))
    text = "w1 w2 w3\nw4\nw5 w6\n"
    (folder / "source").write_text(text)
    return FileWorkload(folder / "model", folder / "source", folder / "source", beam_size=2, warm_up=0)


@pytest.mark.slow
@pytest.mark.skipif(not is_installed("ctranslate2"), reason="ctranslate2 is not installed: pip install 'nmt[fast]'")
def test_two_commands_are_compared(work: FileWorkload, tmp_path: Path) -> None:
    result = compare_files(work, ("nmt", {"engine": "ctranslate2"}), ("ctranslate2", {"batch_sentences": "2"}), 2)
    for side in (result.ours, result.theirs):
        assert len(side.rates) == 2
        assert all(0.0 < rate < 100.0 for rate in side.rates)  # starting Python takes a while
        assert int(side.settings["memory"].removesuffix(" MB")) > 0
        assert 0.0 <= float(side.settings["BLEU"]) <= 100.0
        assert side.versions["BLEU"].startswith("nrefs:1|case:mixed")
    assert result.theirs.settings["batch_sentences"] == "2"
    workload = {"task": "file", "num_lines": 3, "beam_size": 2}
    ledger.add_entries([ledger.comparison_entry("file-int8", workload, result, "tools/bench/run file", "")], tmp_path)
    shown = (tmp_path / "RESULTS.md").read_text()
    assert "| system | settings | lines/s | rounds |" in shown
    assert "3 lines, beam 2." in shown


@pytest.mark.slow
@pytest.mark.skipif(not is_installed("ctranslate2"), reason="ctranslate2 is not installed: pip install 'nmt[fast]'")
def test_two_loaded_systems_are_compared(work: FileWorkload) -> None:
    result = compare_loaded(work, ("nmt", {"precision": "fp32"}), ("ctranslate2", {"inter_threads": "1"}), 2)
    for side in (result.ours, result.theirs):
        assert len(side.rates) == 2
        assert min(side.rates) > 0.0
        assert 0.0 <= float(side.settings["BLEU"]) <= 100.0
    assert result.ours.settings["engine"] == "torch"


def test_memory_includes_all_processes_of_a_command() -> None:
    """A process of 40 MB starts one of 30 MB; they share no memory."""
    child = "import sys; held = b'1' * (30 << 20); print('ready', flush=True); sys.stdin.read()"
    parent = f"import subprocess, sys; held = b'1' * (40 << 20); subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert 70 << 20 < session_memory(process.pid) < 110 << 20
        process.communicate()
    assert session_memory(process.pid) == 0


def test_a_failing_command_is_an_error(work: FileWorkload, tmp_path: Path) -> None:
    absent = FileWorkload(work.model, tmp_path / "absent", beam_size=2, warm_up=0)
    with pytest.raises(UserError, match=r"translate failed with exit status 1(?s:.*)cannot read"):
        compare_files(absent, ("nmt", {}), ("nmt", {}), 2)


@pytest.mark.parametrize(
    ("system", "settings", "message"),
    [("marian", {}, "'marian' does not support files"), ("nmt", {"threads": "2"}, "no setting 'threads'")],
)
def test_unknown_systems_and_settings_are_errors(
    work: FileWorkload, system: str, settings: dict[str, str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        compare_files(work, ("nmt", {}), (system, settings), 2)


@pytest.mark.slow
@pytest.mark.skipif(not is_installed("ctranslate2"), reason="ctranslate2 is not installed: pip install 'nmt[fast]'")
@pytest.mark.parametrize("theirs", ["one-call", "translate"])
def test_servers_answer_all_clients_with_the_translations_of_a_file(
    work: FileWorkload, tmp_path: Path, theirs: str
) -> None:
    source = work.source
    if theirs == "translate":  # the other server fails on lone surrogates
        source = tmp_path / "source"
        lines = [f"w{number} {line}" for number, line in enumerate(nasty_lines(90, num_longest=0))]
        source.write_bytes(as_bytes([*lines, "", "\ufffd", "w2\ufffdw1\ufffd", "w1 " * 30_000]))
    workload = ServingWorkload(work.model, source, ("en", "de"), clients=20, beam_size=2)
    comparison = compare_servers(workload, ("nmt", {}), (theirs, {}), rounds=2)
    for measurement in (comparison.ours, comparison.theirs):
        assert len(measurement.rates) == 2
    assert comparison.ours.settings["lost"] == comparison.theirs.settings.get("lost", "0") == "0"
    assert comparison.ours.settings["differing from nmt translate"] == "0"


def test_an_unknown_server_is_an_error(work: FileWorkload) -> None:
    workload = ServingWorkload(work.model, work.source, ("en", "de"))
    with pytest.raises(UserError, match="'other' does not support serving; it must be one of nmt, one-call, translate"):
        compare_servers(workload, ("nmt", {}), ("other", {}), rounds=2)
    with pytest.raises(UserError, match="nmt has no setting 'threads'; its settings are: none; omit it"):
        compare_servers(workload, ("nmt", {"threads": "2"}), ("translate", {}), rounds=2)
