"""Learning curves of several systems: validation nll, the rounds of nmt, resumption, table and plot."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from bench import comparison, environments, worker
from bench.__main__ import main
from bench.environments import Peer
from bench.learning import Curve, draw, learn, summarize
from bench.peers import nmt_system
from bench.text import prepare_text, text_recipe
from bench.token_nll import mean_nll
from bench.workload import Learning, Shape, Workload

from nmt.bench.model_specs import find_model_spec
from nmt.errors import UserError
from nmt.models import build_model

TINY = Shape(num_encoder_layers=1, num_decoder_layers=1, d_model=16, d_ff=32, num_heads=2)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared text of a few repeated words."""
    data, made = tmp_path_factory.mktemp("parallel"), tmp_path_factory.mktemp("bench") / "text"
    for split, num_lines in {"train": 60, "val": 6, "test": 5}.items():
        for side in ("en", "de"):
            lines = [f"{'abcdefg'[i % 7]} {side} {'xyz'[i % 3]} one two" for i in range(num_lines)]
            (data / f"{split}.{side}").write_text("".join(f"{line}\n" for line in lines))
    prepare_text(text_recipe(data, made, src_lang="en", tgt_lang="de", vocab_size=280))
    return made


def workload(folder: Path | str, output: str = "", rounds: int = 3) -> Workload:
    """Workload of a few updates."""
    learning = Learning(rounds, 7, learning_rate=0.5, warmup_steps=20, output=output)
    return Workload("learn", str(folder), 280, TINY, threads=1, batch_tokens=100, updates=8, learning=learning)


def test_the_schedule_is_that_of_the_paper() -> None:
    learning = Learning(1, 1, learning_rate=2.0, warmup_steps=100, output="")
    assert learning.rate(512, 50) == pytest.approx(2 * 512**-0.5 * 50 * 100**-1.5)
    assert learning.rate(512, 100) == pytest.approx(2 * 512**-0.5 / 10)
    assert learning.rate(512, 400) == pytest.approx(2 * 512**-0.5 / 20)


def test_a_learning_workload_survives_json() -> None:
    work = workload("folder", "out")
    assert Workload.from_json(work.to_json()) == work
    assert Workload.from_json(replace(work, learning=None).to_json()).learning is None


def test_mean_nll_counts_every_token_but_bos_and_padding_once() -> None:
    """If token t has probability 1 / (t + source length), the result must be the mean of log(t + source length)."""

    def log_probs(src: torch.Tensor, tgt: torch.Tensor) -> torch.Tensor:
        return -(tgt[:, 1:] + (src != 0).sum(1, keepdim=True)).double().log()

    src = [[5] * (1 + i % 4) for i in range(150)]  # more than two batches
    tgt = [[2, *range(4, 4 + i % 9), 3] for i in range(150)]
    expected = [math.log(token + len(s)) for s, t in zip(src, tgt, strict=True) for token in t[1:]]
    found = mean_nll(src, tgt, log_probs, pad=0, device="cpu")
    assert found == pytest.approx(sum(expected) / len(expected), rel=1e-12)


class RecordingClock(worker.Clock):
    """Records the answers; never blocks."""

    def __init__(self) -> None:
        self.answers: list[dict[str, Any]] = []

    def end_round(self, tokens: int, results: Callable[[], dict[str, Any]] = dict) -> None:
        self.answers.append({"tokens": tokens, **results()})


@pytest.mark.slow
def test_nmt_learns_and_translates(text: Path, tmp_path: Path) -> None:
    clock, work = RecordingClock(), workload(text, str(tmp_path / "out"), rounds=4)
    nmt_system.learn(work.with_settings({"model.norm_order": "pre"}), clock)
    ready, *rounds, translated = clock.answers
    assert ready == {"tokens": 0} and translated == {"tokens": 5}
    assert all(answer["tokens"] > 8 * 50 for answer in rounds)
    nll = [answer["nll"] for answer in rounds]
    assert math.log(280) + 1 > nll[0] > nll[1] > nll[3]
    assert len((tmp_path / "out.txt").read_text().splitlines()) == 5


def test_settings_of_nmt_override_the_workload(text: Path, tmp_path: Path) -> None:
    settings = {"model.dropout": "0.25", "train.label_smoothing": "0.2"}
    work = workload(text, str(tmp_path / "out")).with_settings(settings)
    recipe = nmt_system._training_spec(work, {}, ("train.", "model.")).recipe
    assert (recipe.model.dropout, recipe.train.label_smoothing) == (0.25, 0.2)


@pytest.mark.slow
def test_nmt_initializes_as_other_systems_do() -> None:
    recipe = find_model_spec("tiny").recipe.model
    stds = {}
    for system in ("nmt", "xavier", "transformers", "eole"):
        torch.manual_seed(1)
        model = build_model(recipe, 3_000, 3_000)
        nmt_system._initialize_like(system, model)
        weights = model.state_dict()
        names = ("output.weight", "encoder.layers.0.feed_forward.inner.weight")
        stds[system] = [float(weights[name].std()) for name in names]
    with pytest.raises(SystemExit, match="init must be nmt, xavier, transformers or eole, got 'other'"):
        nmt_system._initialize_like("other", model)
    xavier = (2 / (128 + 256)) ** 0.5  # of the feed-forward weights, with d_model 128 and d_ff 256
    assert stds["nmt"] == pytest.approx([128**-0.5 / 2, xavier / 2], rel=0.02)
    assert stds["xavier"] == pytest.approx([128**-0.5, xavier], rel=0.02)
    assert stds["transformers"] == pytest.approx([0.02, 0.02], rel=0.02)
    assert stds["eole"] == pytest.approx([(2 / 3_128) ** 0.5, xavier], rel=0.02)


FAKE = """\
from pathlib import Path

def learn(workload, clock):
    offset = float(workload.options.get("offset", "0")) * workload.learning.seed
    clock.end_round(0)
    for number in range(workload.learning.rounds):
        clock.end_round(100, lambda: {"nll": 5.0 - number + offset})
    workload.write_pieces(workload.pieces("test", "tgt"))
    clock.end_round(5)
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Settings of a system `fake` whose nll falls by 1 in each round, and that translates perfectly."""
    (tmp_path / "fake_peer.py").write_text(FAKE)
    for module in (comparison, environments):
        monkeypatch.setitem(module.PEERS, "fake", Peer("fake_peer", ("learn",), options={"learn": "offset"}))
    monkeypatch.setenv("NMT_BENCH_SHARED", str(tmp_path))
    return {"offset": "0.5"}


@pytest.mark.slow
def test_curves_of_all_systems_and_seeds_are_recorded(fake: dict[str, str], text: Path, tmp_path: Path) -> None:
    results, work = tmp_path / "learning.json", workload(text)
    systems = [("fake", dict[str, str]()), ("fake", fake)]
    curves = learn(work, systems, [1, 2], results)
    assert [(c.seed, c.nll, c.updates, c.tokens) for c in curves] == [
        (seed, [5.0 + offset * seed - i for i in range(3)], [8, 16, 24], [100, 200, 300])
        for seed in (1, 2)
        for offset in (0.0, 0.5)
    ]
    assert all(c.bleu == pytest.approx(100) and "tok:13a" in c.signature and c.versions for c in curves)

    unchanged = results.read_text() + "\n"
    results.write_text(unchanged)
    assert learn(work, systems, [2], results) == curves
    assert results.read_text() == unchanged, "a file that has all curves must not be written"
    assert [c.seed for c in learn(work, systems, [2, 3], results)] == [1, 1, 2, 2, 3, 3]
    with pytest.raises(UserError, match="curves with other settings; choose another file"):
        learn(replace(work, updates=9), systems, [1], results)
    for broken in ("{", "{}", "[]", '{"workload": {}, "curves": [{"name": "fake"}]}'):
        results.write_text(broken)
        with pytest.raises(UserError, match=r"cannot read .*; choose another file with --results"):
            learn(work, systems, [1], results)


@pytest.mark.slow
def test_the_command_prints_a_table_and_draws(
    fake: dict[str, str], text: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "learning.json"
    command = ["learn", "fake", "fake:offset=0.5", "--results", str(results), "--folder", str(text), "--rounds", "2"]
    assert main([*command, "--seeds", "1", "2", "--threads", "1"]) == 0
    out = capfd.readouterr().out
    assert "| fake | 2 | 4.000 |  | 100.00 |  | 0 |" in out
    assert "| fake offset=0.5 | 2 | 4.750 | +0.750 ± 3.177 | 100.00 | +0.00 ± 0.00 | 0 |" in out
    assert len(json.loads(results.read_text())["curves"]) == 4
    assert (tmp_path / "learning.svg").read_bytes().startswith(b"<?xml")

    assert main(["learn", "opennmt", "--results", str(results), "--folder", str(text)]) == 1
    assert "'opennmt' does not support 'learn'; it must be one of" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("results", "message"), [("curves.svg", "the plot would overwrite"), ("absent/curves.json", "no such folder")]
)
def test_results_that_could_not_be_kept_are_an_error(
    text: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], results: str, message: str
) -> None:
    assert main(["learn", "nmt", "--results", str(tmp_path / results), "--folder", str(text)]) == 1
    assert message in capfd.readouterr().err


def test_empty_translations_give_a_warning(
    fake: dict[str, str], text: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    peer = tmp_path / "fake_peer.py"
    peer.write_text(peer.read_text().replace('workload.pieces("test", "tgt")', "[[]] * 5"))
    (curve,) = learn(workload(text), [("fake", fake)], [1], tmp_path / "learning.json")
    assert curve.bleu == 0
    assert "warning: fake offset=0.5, seed 1: all translations are empty, so BLEU" in capfd.readouterr().err


def test_a_single_seed_has_no_interval() -> None:
    curves = [
        Curve(name, {}, 1, {}, updates=[10, 20], tokens=[1, 2], seconds=[3.0, 6.0], nll=[nll, nll / 2], bleu=bleu)
        for name, nll, bleu in (("nmt", 4.0, 30.0), ("other", 4.4, 29.0))
    ]
    assert "| other | 1 | 2.200 | +0.200 | 29.00 | -1.00 | 6 |" in summarize(curves)


@pytest.mark.slow
def test_curves_are_drawn(tmp_path: Path) -> None:
    curve = Curve("nmt", {}, 1, {}, updates=[10, 20], tokens=[1, 2], seconds=[3.0, 6.0], nll=[4.0, 2.0])
    draw([curve], tmp_path / "curve.png")
    draw([replace(curve, updates=[], seconds=[], nll=[])], tmp_path / "empty.png")
    assert (tmp_path / "curve.png").stat().st_size > (tmp_path / "empty.png").stat().st_size
