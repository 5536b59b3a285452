"""Run reports, read back as JSON and by a Markdown parser."""

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from nmt.diagnostics.leaks import LeakCount, LeakCounts
from nmt.evaluate.forecast import Forecast, SpeedForecast, TextForecast, WorkForecast
from nmt.evaluate.metrics import GroupScore, Score
from nmt.evaluate.report import DataSummary, Machine, RunReport, Sample, ScoredTestSet, TrainingSummary
from nmt.evaluate.report_format import format_json, format_markdown, write_report
from nmt.train.state import Change

BLEU = Score("bleu", 31.4159, "BLEU|nrefs:1|tok:13a", "60.0/40.0/30.0/20.0 (BP = 1.000)")
TER = Score("ter", 48.5, "TER|nrefs:1|tok:tercom")
REPORT = RunReport(
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
    """Cells of all table rows, read by a Markdown parser."""
    html = MarkdownIt("commonmark").enable("table").render(markdown)
    rows = re.findall(r"<tr>(.*?)</tr>", html, re.DOTALL)
    return [
        [re.sub(r"<.*?>", "", cell) for cell in re.findall(r"<t[dh]>(.*?)</t[dh]>", row, re.DOTALL)] for row in rows
    ]


def with_training(**changes: Any) -> RunReport:
    return dataclasses.replace(REPORT, training=dataclasses.replace(REPORT.training, **changes))


def test_json_has_all_fields_and_derived_values() -> None:
    tree = json.loads(format_json(REPORT))
    assert tree["training"].pop("tokens_per_second") == pytest.approx(7_450_000 / 3_725)
    assert tree["training"].pop("valid_perplexity") == pytest.approx(math.exp(1.25))
    assert tree == json.loads(json.dumps(dataclasses.asdict(REPORT)))


def test_json_has_null_for_non_finite_numbers() -> None:
    tree = json.loads(format_json(with_training(valid_nll=math.nan)))
    assert tree["training"]["valid_nll"] is None
    assert tree["training"]["valid_perplexity"] is None


def test_every_score_has_its_signature() -> None:
    labeled = dataclasses.replace(REPORT.tests[0], scores=(BLEU,))
    markdown = format_markdown(dataclasses.replace(REPORT, tests=(labeled,)))
    escaped = BLEU.signature.replace("|", "\\|")  # in a table
    assert markdown.count(f"`{escaped}`") == 1
    assert f"\n\nter: `{TER.signature}`\n\n" in markdown  # below the table of labels, the only one with TER
    assert "ter: `" not in format_markdown(REPORT)


def test_the_text_of_an_initial_model_was_not_searched() -> None:
    none = LeakCount(0, 0)
    searched = dataclasses.replace(REPORT.tests[1], leaks=LeakCounts(500, none, none, none, none))
    report = dataclasses.replace(REPORT, tests=(searched,), start_from="runs/large")
    remark = "The training text of the initial model, runs/large, was not searched."
    assert remark in format_markdown(report)
    assert "not searched" not in format_markdown(dataclasses.replace(report, start_from=None))


def test_the_report_of_an_ema_has_no_averaged_checkpoints() -> None:
    assert "| averaged checkpoints | none; the model is the EMA |" in format_markdown(with_training(averaged=0))


def test_the_report_of_an_average_has_its_nll() -> None:
    row = "| averaged checkpoints | 5; nll 1.2000, perplexity 3.32 |"
    assert row in format_markdown(with_training(averaged=5, average_nll=1.2))


def test_markdown_tables_have_the_values_of_the_report() -> None:
    rows = rendered_cells(format_markdown(REPORT))
    expected = [
        ["bleu", "31.42", "BLEU|nrefs:1|tok:13a"],
        ["ter (lower is better)", "48.50", "TER|nrefs:1|tok:tercom"],
        ["label", "sentences", "exact match", "bleu", "ter (lower is better)"],
        ["relative clause", "150", "62.5%", "31.42", "48.50"],
        ["word order", "90", "99.9%", "31.42", "48.50"],
        ["bleu", "31.42", "BLEU|nrefs:1|tok:13a"],
        ["parameters", "2,612,345"],
        ["updates", "1,200 (12.3 epochs)"],
        ["time", "1 h 02 min"],
        ["speed", "2,000 target tokens per second"],
        ["precision", "bf16 on cpu, 2 processes"],
        ["best validation", "nll 1.2500, perplexity 3.49 at update 1,100"],
        ["averaged checkpoints", "5"],
        ["seed", "17"],
        ["training pairs", "79,123 of 80,000"],
        ["dropped: duplicate", "700"],
        ["dropped: too | long", "177"],
        ["training tokens", "987,654 source, 876,543 target"],
        ["validation pairs", "1,014"],
        ["vocabulary", "1,000 source, 1,001 target tokens"],
        ["processor", "A processor, 16 cores"],
        ["GPUs", "2 x H200, 1 x L4"],
        ["python", "3.11.7"],
        ["torch", "2.13.0"],
        ["git commit", "0123abc"],
    ]
    assert [row for row in rows if row in expected] == expected
    assert {len(row) for row in rows} == {2, 3, 5}
    assert not any("never" in row[0] for row in rows)  # dropped no pair


def test_validation_pairs_that_do_not_fit_the_model() -> None:
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({}, "1,014"),
        ({"valid_leaks": 7}, "1,014, 7 of them with a match in the training text"),
        ({"valid_leaks": 7, "valid_read": 1_014}, "1,014, 7 of them with a match in the training text"),
        ({"valid_read": 1_020}, "1,014 of 1,020"),
        (
            {"valid_leaks": 1_016, "valid_read": 1_020},
            "1,014 of 1,020, 1,016 of all 1,020 with a match in the training text",
        ),
    )
    for changes, expected in cases:
        report = dataclasses.replace(REPORT, data=dataclasses.replace(REPORT.data, **changes))
        assert ["validation pairs", expected] in rendered_cells(format_markdown(report))


def test_headings_and_details_are_in_the_report() -> None:
    markdown = format_markdown(REPORT)
    assert markdown.startswith("# toy_run\n\nen to de, a toy.\n")
    assert "## Test set heldout: 2,000 sentences, 50.0 per second\n" in markdown
    assert "## Test set nested: 500 sentences\n" in markdown  # no rate without a time
    assert "\nbleu: 60.0/40.0/30.0/20.0 (BP = 1.000)\n" in markdown


def test_sentences_are_shown_verbatim() -> None:
    html = MarkdownIt("commonmark").enable("table").render(format_markdown(REPORT))
    for shown in (
        "source: A *b* &lt;i&gt;c&lt;/i&gt; | d",
        "reference: E [f](g)",
        "translation: _h_ `i` # j k",
        "source: s2",
    ):
        assert shown in html


def test_micro_batches_and_useful_computation_are_reported() -> None:
    cells = rendered_cells(format_markdown(with_training(micro_batches=8.0, useful_fraction=0.9912)))
    assert ["micro-batches per update", "8; 99.1% of the computation is useful"] in cells
    assert ["micro-batches per update", "unknown"] in rendered_cells(format_markdown(with_training()))


def test_a_model_that_is_worse_than_its_initial_model() -> None:
    assert "at update 1,100; worse than the initial model |" in format_markdown(with_training(is_worse_than_start=True))
    assert "initial model" not in format_markdown(REPORT)


def test_skipped_updates_are_reported() -> None:
    cells = rendered_cells(format_markdown(with_training(skipped=3)))
    assert ["updates", "1,200 (12.3 epochs); 3 skipped because of non-finite gradients"] in cells


def test_changed_options_are_reported() -> None:
    changes = (
        Change(1_000, "train.clip_norm", 0.0, 1.0),
        Change(1_100, "data.valid", [{"src": "a_*"}], [{"src": "|"}]),
        Change(1_100, "train.max_epochs", 3, None),
    )
    report = dataclasses.replace(REPORT, changes=changes)
    cells = rendered_cells(format_markdown(report))
    assert ["1,000", "train.clip_norm", "0.0", "1.0"] in cells
    assert ["1,100", "data.valid", "[{'src': 'a_*'}]", "[{'src': '|'}]"] in cells
    assert ["1,100", "train.max_epochs", "3", "not set"] in cells
    assert json.loads(format_json(report))["changes"][0] == dataclasses.asdict(changes[0])
    assert "changed after update" not in format_markdown(REPORT)


def test_a_validation_of_the_ema_is_labeled() -> None:
    markdown = format_markdown(with_training(is_from_ema=True))
    assert "| best validation | EMA nll 1.2500, perplexity 3.49 at update 1,100 |" in markdown


def test_a_validation_chosen_by_bleu_says_so() -> None:
    markdown = format_markdown(with_training(valid_bleu=23.456))
    expected = "BLEU 23.46, by which it was chosen, nll 1.2500, perplexity 3.49 at update 1,100"
    assert f"| best validation | {expected} |" in markdown


def test_missing_values_are_named() -> None:
    markdown = format_markdown(with_training(valid_nll=None, valid_step=None, seconds=0.0, world_size=1))
    assert "| best validation | none has a finite score |" in markdown
    assert "| precision | bf16 on cpu |" in markdown
    assert "| speed | 0 target tokens per second |" in markdown
    assert "| git commit | unknown |" in format_markdown(dataclasses.replace(REPORT, git_commit=None))


def test_diverged_run_has_a_report() -> None:
    for loss in (math.inf, math.nan, 1e6):
        report = with_training(valid_nll=loss)
        assert f"nll {loss:.4f}" in format_markdown(report)
        json.loads(format_json(report))


def test_a_report_is_written_as_markdown_and_json(tmp_path: Path) -> None:
    markdown, data = write_report(REPORT, tmp_path)
    assert (markdown, data) == (tmp_path / "report.md", tmp_path / "report.json")
    assert markdown.read_text(encoding="utf-8") == format_markdown(REPORT)
    assert json.loads(data.read_text(encoding="utf-8"))["name"] == "toy_run"


def test_notes_explain_intervals_and_older_metrics() -> None:
    scores = (
        dataclasses.replace(BLEU, mean=31.30, interval=0.987),
        Score("bleu-compound-split", 32.5, "BLEU|nrefs:1|compounds:split"),
    )
    markdown = format_markdown(dataclasses.replace(REPORT, tests=(ScoredTestSet("news", 3, 1.0, scores),)))
    assert "| bleu | 31.42 ± 0.99 |" in markdown
    assert "is within 0.12 of the score" in markdown
    assert "bleu-compound-split: computed as in older papers; not comparable with bleu" in markdown
    assert "95%" not in format_markdown(REPORT)


def test_the_report_has_curves_or_a_note() -> None:
    assert "![Curves of the training run](curves.png)" in format_markdown(
        dataclasses.replace(REPORT, curves="curves.png")
    )
    markdown = format_markdown(dataclasses.replace(REPORT, notes=("The curves are left out: no matplotlib",)))
    assert "\nThe curves are left out: no matplotlib.\n" in markdown
    assert "![" not in markdown


def test_the_sections_of_the_report_are_in_order() -> None:
    markdown = format_markdown(dataclasses.replace(REPORT, recipe='name = "toy_run"\n[model]\nd_model = 7\n'))
    assert '```toml\nname = "toy_run"\n[model]\nd_model = 7\n```\n' in markdown
    positions = [
        markdown.index(f"## {heading}") for heading in ("Test set", "Training", "Data", "Recipe", "Machine", "Samples")
    ]
    assert positions == sorted(positions)
    assert "## Recipe" not in format_markdown(REPORT)
    assert markdown.count("## Samples of") == 1  # the other test set has none


def test_a_forecast_is_compared_with_the_run() -> None:
    speed = SpeedForecast("cpu", "bf16", 1, 4_096, 60, 2_000.0, 3_600.0, 3_480.0, 3_720.0, 3, 9.0, None, None)
    work = (WorkForecast(1, 3.0, 0.99), WorkForecast(2, 4.0, 0.97))
    forecast = Forecast("", 2_612_345, 1, 2, 3, TextForecast(79_123, 1_200, 12.3, 98, 7_400_000), work, speed)
    report = dataclasses.replace(with_training(useful_fraction=0.965, micro_batches=4.0), forecast=forecast)
    rows = rendered_cells(format_markdown(report))
    at = rows.index(["", "forecast of nmt plan", "run"])
    assert rows[at + 1 : at + 6] == [
        ["updates", "1,200", "1,200"],
        ["epochs", "12.30", "12.34"],
        ["target tokens", "7,400,000", "7,450,000"],
        ["useful fraction of the work", "97.0%", "96.5%"],
        ["training time", "1 h 00 min (58 min 00 s to 1 h 02 min)", "1 h 02 min"],
    ]
    assert "different options than" not in format_markdown(report)
    assert "The time forecast is for cpu and a world size of 1." in format_markdown(report)
    other = dataclasses.replace(report, forecast=dataclasses.replace(forecast, options="seed = 2"))
    assert "The forecast was made with different options than the run." in format_markdown(other)
    assert json.loads(format_json(report))["forecast"]["speed"]["high"] == 3_720.0
    empty = dataclasses.replace(report, forecast=Forecast("", 1, 1, 2, 3))
    assert "forecast of" not in format_markdown(empty)
