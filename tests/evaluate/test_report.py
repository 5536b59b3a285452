"""The report says what it was told: read back as JSON, and as Markdown by a Markdown parser."""

import dataclasses
import json
import math
import platform
import re
import subprocess
from pathlib import Path

import pytest
import torch
from markdown_it import MarkdownIt

from nmt.data.prepare import prepare
from nmt.evaluate import report
from nmt.evaluate.metrics import GroupScore, Score
from nmt.evaluate.report import (
    DataFacts,
    MachineFacts,
    RunFacts,
    Sample,
    ScoredTestSet,
    TrainingFacts,
    choose_samples,
    describe_machine,
    describe_software,
    find_git_commit,
    format_json,
    format_markdown,
    summarize,
    write_report,
)
from nmt.recipe import parse_recipe

BLEU = Score("bleu", 31.4159, "BLEU|nrefs:1|tok:13a", "60.0/40.0/30.0/20.0 (BP = 1.000)")
TER = Score("ter", 48.5, "TER|nrefs:1|tok:tercom")
FACTS = RunFacts(
    name="toy_run",
    summary="en to de, a toy",
    seed=17,
    data=DataFacts(
        80_000, 79_123, {"duplicate": 700, "never": 0, "too | long": 177}, 1_014, 987_654, 876_543, 1_000, 1_001
    ),
    parameters=2_612_345,
    training=TrainingFacts(1_200, 12.34, 3_725.0, 7_450_000, 2, "cpu", "bf16", 1.25, 1_100, 5),
    tests=(
        ScoredTestSet(
            "heldout",
            2_000,
            40.0,
            (BLEU, TER),
            (GroupScore("relative clause", 150, 62.5, (BLEU, TER)), GroupScore("word order", 90, 99.9, (BLEU, TER))),
            (Sample("A *b* <i>c</i> | d", "E [f](g)", "_h_ `i` # j\n\nk"), Sample("s2", "r2", "")),
        ),
        ScoredTestSet("nested", 500, 0.0, (BLEU,)),
    ),
    machine=MachineFacts("A processor", 16, ("H200", "H200", "L4")),
    versions={"python": "3.11.7", "torch": "2.13.0"},
    git_commit="0123abc",
)


def rendered_cells(markdown: str) -> list[list[str]]:
    """Rows of all tables, as a Markdown parser that knows tables reads them."""
    html = MarkdownIt("commonmark").enable("table").render(markdown)
    rows = re.findall(r"<tr>(.*?)</tr>", html, re.DOTALL)
    return [
        [re.sub(r"<.*?>", "", cell) for cell in re.findall(r"<t[dh]>(.*?)</t[dh]>", row, re.DOTALL)] for row in rows
    ]


def with_training(**changes: object) -> RunFacts:
    return dataclasses.replace(FACTS, training=dataclasses.replace(FACTS.training, **changes))


def test_json_holds_every_fact_and_what_follows() -> None:
    tree = json.loads(format_json(FACTS))
    assert tree["training"].pop("tokens_per_second") == pytest.approx(7_450_000 / 3_725)
    assert tree["training"].pop("valid_perplexity") == pytest.approx(math.exp(1.25))
    assert tree == json.loads(json.dumps(dataclasses.asdict(FACTS)))


def test_json_has_no_number_that_json_does_not_know() -> None:
    tree = json.loads(format_json(with_training(valid_loss=math.nan)))
    assert tree["training"]["valid_loss"] is None
    assert tree["training"]["valid_perplexity"] is None


def test_tables_of_the_markdown_report() -> None:
    rows = rendered_cells(format_markdown(FACTS))
    expected = [
        ["bleu", "31.42", "BLEU|nrefs:1|tok:13a"],
        ["ter (lower is better)", "48.50", "TER|nrefs:1|tok:tercom"],
        ["phenomenon", "sentences", "exactly right", "bleu", "ter (lower is better)"],
        ["relative clause", "150", "62.5 %", "31.42", "48.50"],
        ["word order", "90", "99.9 %", "31.42", "48.50"],
        ["bleu", "31.42", "BLEU|nrefs:1|tok:13a"],
        ["parameters", "2,612,345"],
        ["updates", "1,200 (12.3 epochs)"],
        ["time", "1 h 02 min"],
        ["speed", "2,000 target tokens a second"],
        ["computed in", "bf16 on cpu, 2 processes"],
        ["best validation", "loss 1.2500, perplexity 3.49 at update 1,100"],
        ["averaged checkpoints", "5"],
        ["seed", "17"],
        ["training pairs", "79,123 of 80,000"],
        ["dropped: duplicate", "700"],
        ["dropped: too | long", "177"],
        ["training tokens", "987,654 source, 876,543 target"],
        ["development pairs", "1,014"],
        ["vocabulary", "1,000 source, 1,001 target pieces"],
        ["processor", "A processor, 16 cores"],
        ["GPUs", "2 x H200, 1 x L4"],
        ["python", "3.11.7"],
        ["torch", "2.13.0"],
        ["git commit", "0123abc"],
    ]
    assert [row for row in rows if row in expected] == expected
    assert {len(row) for row in rows} == {2, 3, 5}
    assert not any("never" in row[0] for row in rows)  # a reason that dropped nothing is not worth a line


def test_data_facts_come_from_the_report_of_preparation(tmp_path: Path) -> None:
    sources = [f"sentence number {number} is about {number * 7}" for number in range(200)]
    (tmp_path / "en").write_text("\n".join([*sources, sources[0]]) + "\n")
    (tmp_path / "de").write_text("\n".join([*sources, sources[0]]).replace("is about", "handelt von") + "\n")
    corpora = '{kind = "text", src = "en", tgt = "de"}'
    recipe = parse_recipe(
        f'name = "x"\nsrc_lang = "en"\ntgt_lang = "de"\ndata = {{train = [{corpora}], valid = [{corpora}]}}',
        [f"data.root={tmp_path}", f"run_dir={tmp_path / 'run'}", "tokenizer.vocab_size=320", "data.workers=1"],
    )
    prepared = prepare(recipe)
    facts = DataFacts.from_prepare_report(prepared.report)
    assert (facts.train_read, facts.train_pairs, facts.valid_pairs) == (201, 200, 201)
    assert sum(facts.dropped.values()) == 1
    assert facts.src_vocab_size == facts.tgt_vocab_size == prepared.tokenizers.src.vocab_size
    assert facts.src_tokens == sum(map(len, prepared.tokenizers.src.encode_batch(sources)))


def test_headings_and_details() -> None:
    markdown = format_markdown(FACTS)
    assert markdown.startswith("# toy_run\n\nen to de, a toy.\n")
    assert "## Test set heldout: 2,000 sentences, 50.0 a second\n" in markdown
    assert "## Test set nested: 500 sentences\n" in markdown  # no time, no rate
    assert "\nbleu: 60.0/40.0/30.0/20.0 (BP = 1.000)\n" in markdown


def test_sentences_are_shown_as_they_stand() -> None:
    html = MarkdownIt("commonmark").enable("table").render(format_markdown(FACTS))
    for shown in (
        "source: A *b* &lt;i&gt;c&lt;/i&gt; | d",
        "reference: E [f](g)",
        "translation: _h_ `i` # j k",
        "source: s2",
    ):
        assert shown in html


def test_what_was_never_measured_is_said_so() -> None:
    markdown = format_markdown(with_training(valid_loss=None, valid_loss_step=None, seconds=0.0, world_size=1))
    assert "| best validation | never measured |" in markdown
    assert "| computed in | bf16 on cpu |" in markdown
    assert "| speed | 0 target tokens a second |" in markdown
    assert "| git commit | unknown |" in format_markdown(dataclasses.replace(FACTS, git_commit=None))


def test_a_diverged_run_still_gets_its_report() -> None:
    for loss in (math.inf, math.nan, 1e6):
        facts = with_training(valid_loss=loss)
        assert f"loss {loss:.4f}" in format_markdown(facts)
        json.loads(format_json(facts))


def test_write_report(tmp_path: Path) -> None:
    markdown, data = write_report(FACTS, tmp_path)
    assert (markdown, data) == (tmp_path / "report.md", tmp_path / "report.json")
    assert markdown.read_text(encoding="utf-8") == format_markdown(FACTS)
    assert json.loads(data.read_text(encoding="utf-8"))["name"] == "toy_run"


@pytest.mark.parametrize(
    ("size", "number", "chosen"),
    [(100, 4, [0, 25, 50, 75]), (3, 10, [0, 1, 2]), (7, 3, [0, 2, 4]), (5, 0, []), (0, 10, [])],
)
def test_samples_are_spread_evenly(size: int, number: int, chosen: list[int]) -> None:
    lines = {side: [f"{side}{index}" for index in range(size)] for side in "srt"}
    samples = choose_samples(lines["s"], lines["r"], lines["t"], number)
    assert samples == tuple(Sample(f"s{i}", f"r{i}", f"t{i}") for i in chosen)


def test_summary_names_the_choices_that_matter() -> None:
    corpora = 'data = {train = [{kind = "embedded"}], valid = [{kind = "embedded"}]}'
    text = f'name = "x"\nsrc_lang = "en"\ntgt_lang = "de"\n{corpora}'
    summary = summarize(parse_recipe(text, ["model.d_ff=1234", "train.max_steps=4321", "decode.beam_size=7"]))
    for choice in ("en to de", "6+6 layers", "d_ff 1234", "4,321 updates", "beam 7", "gnmt 0.6"):
        assert choice in summary


def test_the_machine_describes_itself() -> None:
    machine = describe_machine()
    assert machine.cpu
    assert machine.cores >= 1
    assert len(machine.gpus) == torch.cuda.device_count()


def test_the_software_describes_itself() -> None:
    versions = describe_software()
    assert versions["python"] == platform.python_version()
    assert versions["torch"] == torch.__version__
    assert {"nmt", "sentencepiece", "sacrebleu"} <= set(versions)


def git(directory: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", *identity, *arguments], cwd=directory, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_the_git_commit_is_that_of_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = tmp_path / "report.py"
    monkeypatch.setattr(report, "__file__", str(code))
    assert find_git_commit() is None  # no repository at all
    git(tmp_path, "init")
    (tmp_path / "other").write_text("x")
    git(tmp_path, "add", "other")
    git(tmp_path, "commit", "-m", "other")
    code.write_text("x")
    assert find_git_commit() is None  # somebody else's repository
    git(tmp_path, "add", "report.py")
    git(tmp_path, "commit", "-m", "code")
    assert find_git_commit() == git(tmp_path, "rev-parse", "HEAD")
    code.write_text("y")
    assert find_git_commit() == git(tmp_path, "rev-parse", "HEAD") + "-dirty"
