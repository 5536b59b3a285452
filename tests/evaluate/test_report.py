"""Contents of run reports."""

import platform
import subprocess
from pathlib import Path

import pytest
import torch

from nmt.data.prepare import prepare
from nmt.evaluate import report
from nmt.evaluate.report import (
    DataSummary,
    Sample,
    ScoredTestSet,
    choose_samples,
    describe_machine,
    describe_software,
    find_git_commit,
    summarize,
    with_direction,
)
from nmt.recipe import parse_recipe


def test_the_data_summary_has_the_counts_of_the_prepared_corpus(tmp_path: Path) -> None:
    sources = [f"sentence number {number} is about {number * 7}" for number in range(200)]
    (tmp_path / "en").write_text("\n".join([*sources, sources[0]]) + "\n")
    (tmp_path / "de").write_text("\n".join([*sources, sources[0]]).replace("is about", "handelt von") + "\n")
    corpora = '{kind = "text", src = "en", tgt = "de"}'
    recipe = parse_recipe(
        f'name = "x"\nsrc_lang = "en"\ntgt_lang = "de"\ndata = {{train = [{corpora}], valid = [{corpora}]}}',
        [f"data.root={tmp_path}", f"run_dir={tmp_path / 'run'}", "tokenizer.vocab_size=320", "data.workers=1"],
    )
    prepared = prepare(recipe)
    summary = DataSummary.from_prepare_report(prepared.report)
    assert (summary.train_read, summary.train_pairs, summary.valid_read, summary.valid_pairs) == (201, 200, 201, 201)
    assert sum(summary.dropped.values()) == 1
    assert summary.src_vocab_size == summary.tgt_vocab_size == prepared.tokenizers.src.vocab_size
    assert summary.src_tokens == sum(map(len, prepared.tokenizers.src.encode_batch(sources)))


@pytest.mark.parametrize(
    ("size", "number", "chosen"),
    [(100, 4, [0, 25, 50, 75]), (3, 10, [0, 1, 2]), (7, 3, [0, 2, 4]), (5, 0, []), (0, 10, [])],
)
def test_samples_are_evenly_spaced(size: int, number: int, chosen: list[int]) -> None:
    lines = {side: [f"{side}{index}" for index in range(size)] for side in "srt"}
    samples = choose_samples(lines["s"], lines["r"], lines["t"], number)
    assert samples == tuple(Sample(f"s{i}", f"r{i}", f"t{i}") for i in chosen)


def test_the_summary_of_a_recipe_names_its_choices() -> None:
    corpora = 'data = {train = [{kind = "toy"}], valid = [{kind = "toy"}]}'
    text = f'name = "x"\nsrc_lang = "en"\ntgt_lang = "de"\n{corpora}'
    summary = summarize(parse_recipe(text, ["model.d_ff=1234", "train.max_steps=4321", "decode.beam_size=7"]))
    for choice in ("en to de", "6+6 layers", "d_ff 1234", "4,321 updates", "beam 7", "gnmt 0.6"):
        assert choice in summary
    assert summarize(parse_recipe(text, ["decode.length_penalty=none"])).endswith("length penalty none")
    for n_best in (1, 4):
        sampling = ["decode.sampling=true", f"decode.n_best={n_best}"]
        assert summarize(parse_recipe(text, sampling)).endswith("target tokens; one sample per sentence")
    mbr = ["decode.sampling=true", "decode.n_best=4", "decode.mbr_metric=chrf"]
    assert summarize(parse_recipe(text, mbr)).endswith("target tokens; 4 samples per sentence, MBR with chrf")


def test_the_tag_of_a_test_set_is_its_own_or_that_of_translations() -> None:
    corpora = 'data = {train = [{kind = "toy", tag = "<a>"}, {kind = "toy", tag = "<b>"}], valid = [{kind = "toy"}]}'
    tests = "data.test={own={kind='toy', split='test', tag='<a>'}, other={kind='toy', split='test'}}"
    text = f'name = "x"\nsrc_lang = "en"\ntgt_lang = "de"\n{corpora}'
    recipe = parse_recipe(text, [tests, "decode.tag=<b>"])
    tagged = [with_direction(ScoredTestSet(name, 1, 0.0, ()), recipe).tag for name in ("own", "other")]
    assert tagged == ["<a>", "<b>"]


def test_machine_has_a_processor_and_all_gpus() -> None:
    machine = describe_machine()
    assert machine.cpu
    assert machine.cores >= 1
    assert len(machine.gpus) == torch.cuda.device_count()


def test_software_has_the_versions_of_python_and_packages() -> None:
    versions = describe_software()
    assert versions["python"] == platform.python_version()
    assert versions["torch"] == torch.__version__
    assert {"nmt", "sentencepiece", "sacrebleu"} <= set(versions)


def git(directory: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", *identity, *arguments], cwd=directory, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_git_commit_is_that_of_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = tmp_path / "report.py"
    monkeypatch.setattr(report, "__file__", str(code))
    assert find_git_commit() is None  # no repository
    git(tmp_path, "init")
    (tmp_path / "other").write_text("x")
    git(tmp_path, "add", "other")
    git(tmp_path, "commit", "-m", "other")
    code.write_text("x")
    assert find_git_commit() is None  # an unrelated repository
    git(tmp_path, "add", "report.py")
    git(tmp_path, "commit", "-m", "code")
    assert find_git_commit() == git(tmp_path, "rev-parse", "HEAD")
    code.write_text("y")
    assert find_git_commit() == git(tmp_path, "rev-parse", "HEAD") + "-dirty"
    git(tmp_path, "commit", "-a", "-m", "changed")
    (tmp_path / "other").write_text("y")
    assert find_git_commit() == git(tmp_path, "rev-parse", "HEAD") + "-dirty"
    assert find_git_commit(ignored=["other"]) == git(tmp_path, "rev-parse", "HEAD")
