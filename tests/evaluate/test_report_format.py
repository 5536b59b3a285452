"""The page about a run says what it was told: read back as JSON, and as Markdown by a Markdown parser."""

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from nmt.evaluate.metrics import GroupScore, Score
from nmt.evaluate.report import DataSummary, Machine, RunReport, Sample, ScoredTestSet, TrainingSummary
from nmt.evaluate.report_format import format_json, format_markdown, write_report
from nmt.train.state import Change

BLEU = Score("bleu", 31.4159, "BLEU|nrefs:1|tok:13a", "60.0/40.0/30.0/20.0 (BP = 1.000)")
TER = Score("ter", 48.5, "TER|nrefs:1|tok:tercom")
FACTS = RunReport(
    name="toy_run",
    summary="en to de, a toy",
    seed=17,
    data=DataSummary(
        80_000, 79_123, {"duplicate": 700, "never": 0, "too | long": 177}, 1_014, 987_654, 876_543, 1_000, 1_001
    ),
    parameters=2_612_345,
    training=TrainingSummary(1_200, 12.34, 3_725.0, 7_450_000, 2, "cpu", "bf16", 1.25, 1_100, 5),
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
    machine=Machine("A processor", 16, ("H200", "H200", "L4")),
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


def with_training(**changes: Any) -> RunReport:
    return dataclasses.replace(FACTS, training=dataclasses.replace(FACTS.training, **changes))


def test_json_holds_every_fact_and_what_follows() -> None:
    tree = json.loads(format_json(FACTS))
    assert tree["training"].pop("tokens_per_second") == pytest.approx(7_450_000 / 3_725)
    assert tree["training"].pop("valid_perplexity") == pytest.approx(math.exp(1.25))
    assert tree == json.loads(json.dumps(dataclasses.asdict(FACTS)))


def test_json_has_no_number_that_json_does_not_know() -> None:
    tree = json.loads(format_json(with_training(valid_nll=math.nan)))
    assert tree["training"]["valid_nll"] is None
    assert tree["training"]["valid_perplexity"] is None


def test_tables_of_the_markdown_report() -> None:
    rows = rendered_cells(format_markdown(FACTS))
    expected = [
        ["bleu", "31.42", "BLEU|nrefs:1|tok:13a"],
        ["ter (lower is better)", "48.50", "TER|nrefs:1|tok:tercom"],
        ["label", "sentences", "exactly right", "bleu", "ter (lower is better)"],
        ["relative clause", "150", "62.5 %", "31.42", "48.50"],
        ["word order", "90", "99.9 %", "31.42", "48.50"],
        ["bleu", "31.42", "BLEU|nrefs:1|tok:13a"],
        ["parameters", "2,612,345"],
        ["updates", "1,200 (12.3 epochs)"],
        ["time", "1 h 02 min"],
        ["speed", "2,000 target tokens a second"],
        ["computed in", "bf16 on cpu, 2 processes"],
        ["best validation", "nll 1.2500, perplexity 3.49 at update 1,100"],
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


def test_how_much_of_the_processes_work_counts_is_told() -> None:
    cells = rendered_cells(format_markdown(with_training(micro_batches=8.0, work_share=0.9912)))
    assert ["micro-batches of an update", "8; 99.1% of the work of the 2 processes counts"] in cells
    assert ["micro-batches of an update", "unknown"] in rendered_cells(format_markdown(with_training()))


def test_updates_that_were_skipped_are_told() -> None:
    cells = rendered_cells(format_markdown(with_training(skipped=3)))
    assert ["updates", "1,200 (12.3 epochs); 3 of them skipped, having no finite gradient"] in cells


def test_options_that_changed_are_listed() -> None:
    changes = (
        Change(1_000, "train.clip_norm", 0.0, 1.0),
        Change(1_100, "data.valid", [{"src": "a_*"}], [{"src": "|"}]),
    )
    facts = dataclasses.replace(FACTS, changes=changes)
    cells = rendered_cells(format_markdown(facts))
    assert ["1,000", "train.clip_norm", "0.0", "1.0"] in cells
    assert ["1,100", "data.valid", "[{'src': 'a_*'}]", "[{'src': '|'}]"] in cells
    assert json.loads(format_json(facts))["changes"][0] == dataclasses.asdict(changes[0])
    assert "option changed" not in format_markdown(FACTS)


def test_what_was_never_measured_is_said_so() -> None:
    markdown = format_markdown(with_training(valid_nll=None, valid_step=None, seconds=0.0, world_size=1))
    assert "| best validation | never measured |" in markdown
    assert "| computed in | bf16 on cpu |" in markdown
    assert "| speed | 0 target tokens a second |" in markdown
    assert "| git commit | unknown |" in format_markdown(dataclasses.replace(FACTS, git_commit=None))


def test_a_diverged_run_still_gets_its_report() -> None:
    for loss in (math.inf, math.nan, 1e6):
        facts = with_training(valid_nll=loss)
        assert f"nll {loss:.4f}" in format_markdown(facts)
        json.loads(format_json(facts))


def test_write_report(tmp_path: Path) -> None:
    markdown, data = write_report(FACTS, tmp_path)
    assert (markdown, data) == (tmp_path / "report.md", tmp_path / "report.json")
    assert markdown.read_text(encoding="utf-8") == format_markdown(FACTS)
    assert json.loads(data.read_text(encoding="utf-8"))["name"] == "toy_run"


def test_intervals_and_papers_figures_are_explained() -> None:
    scores = (
        dataclasses.replace(BLEU, mean=31.30, interval=0.987),
        Score("bleu-compound-split", 32.5, "BLEU|nrefs:1|compounds:split"),
    )
    markdown = format_markdown(dataclasses.replace(FACTS, tests=(ScoredTestSet("news", 3, 1.0, scores),)))
    assert "| bleu | 31.42 ± 0.99 |" in markdown
    assert "its centre, their mean score, is at most 0.12 away" in markdown
    assert "bleu-compound-split: as older papers count, and not comparable with bleu" in markdown
    assert "95 %" not in format_markdown(FACTS)


def test_the_picture_of_the_curves_or_why_there_is_none() -> None:
    assert "![Curves of the training run](curves.png)" in format_markdown(
        dataclasses.replace(FACTS, curves="curves.png")
    )
    markdown = format_markdown(dataclasses.replace(FACTS, notes=("The curves are left out: no matplotlib",)))
    assert "\nThe curves are left out: no matplotlib.\n" in markdown
    assert "![" not in markdown


def test_the_recipe_and_the_samples_close_the_page() -> None:
    markdown = format_markdown(dataclasses.replace(FACTS, recipe='name = "toy_run"\n[model]\nd_model = 7\n'))
    assert '```toml\nname = "toy_run"\n[model]\nd_model = 7\n```\n' in markdown
    places = [
        markdown.index(f"## {heading}") for heading in ("Test set", "Training", "Data", "Recipe", "Machine", "Samples")
    ]
    assert places == sorted(places)
    assert "## Recipe" not in format_markdown(FACTS)
    assert markdown.count("## Samples of") == 1  # the other test set has none
