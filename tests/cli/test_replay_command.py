"""`nmt replay` repeats an update of a run: the same states, its pairs with file and line, and their losses."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch
from torch.nn import functional as F

from nmt.checkpoint import load_checkpoint, load_model, state_digest
from nmt.data.loader import make_batch
from nmt.data.pair_text import decode_pairs, locate_pairs
from nmt.data.prepare import prepare
from nmt.data.store import PairStore
from nmt.grammar import generate
from nmt.recipe import load_recipe
from nmt.storage.run_folder import checkpoint_directory
from nmt.train.schedule import learning_rate
from tests.calling import Nmt, one_line
from tests.recipes import small_recipe

RECIPE = small_recipe(
    """
root = "FOLDER"
max_length_ratio = 2.0
train = [{ kind = "text", src = "train.en", tgt = "train.de" }]
valid = [{ kind = "text", src = "valid.en", tgt = "valid.de" }]
""",
    """
max_steps = 10
batch_tokens = 400
micro_batch_tokens = 200
learning_rate = 0.01
schedule = "constant"
warmup_steps = 3
ema_decay = 0.9
validate_every = 4
save_every = 4
log_every = 2
keep_last = 20
average_count = 1
""",
    top='run_dir = "FOLDER/run"',
)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replay")
    pairs = list(generate("train", 120, 3))
    for name, size in (("train", 120), ("valid", 20)):
        (folder / f"{name}.en").write_text("".join(f"{pair.src}\n" for pair in pairs[:size]))
        (folder / f"{name}.de").write_text("".join(f"{pair.tgt}\n" for pair in pairs[:size]))
    path = folder / "small.toml"
    path.write_text(RECIPE.replace("FOLDER", str(folder)))
    return path


Train = Callable[..., Path]


@pytest.fixture
def train(recipe: Path, nmt: Nmt, tmp_path: Path) -> Train:
    def run(name: str, *overrides: str) -> Path:
        assert nmt("train", recipe, f"run_dir={tmp_path / name}", *overrides)[0] == 0
        return tmp_path / name

    return run


def replay(nmt: Nmt, run: Path, step: int, *options: str) -> dict[str, Any]:
    status, out, err = nmt("replay", run, "--step", step, "--json", *options)
    assert status == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def saved_digest(run: Path, step: int) -> str:
    saved = load_checkpoint(checkpoint_directory(run, step))
    return state_digest(saved.model, saved.optimizer, saved.average)


def modification_times(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("train.subword_sampling=0.1", "train.micro_batch_tokens=auto"),
        ("train.glossary_markup=0.5",),
        ("train.schedule=plateau", "train.plateau_patience=1", "train.validate_every=1", "train.keep_best=0"),
    ],
)
def test_states_are_those_of_the_run(train: Train, nmt: Nmt, overrides: tuple[str, ...]) -> None:
    run = train("run", *overrides)
    shutil.copytree(run / "data", run.with_name("every") / "data", ignore=shutil.ignore_patterns("epochs"))
    every = train("every", "train.save_every=1", *overrides)
    before = modification_times(run)
    for step, checkpoint, verified_at in ((2, None, 4), (6, "step-00000004", 8), (8, "step-00000004", 8)):
        found = replay(nmt, run, step, "--verify")
        assert found["checkpoint"] == (str(run / "checkpoints" / checkpoint) if checkpoint else None)
        assert found["state_before"] == saved_digest(every, step - 1)
        assert found["state_after"] == saved_digest(every, step)
        assert (found["verified_at"], found["verified"]) == (verified_at, True)
        assert found["gradient_norm"] == found["logged_gradient_norm"]
        if not overrides:
            assert found["learning_rate"] == pytest.approx(0.01 * min(1, step / 3))
    assert modification_times(run) == before


@pytest.mark.slow
def test_replay_of_another_text_is_an_error(train: Train, nmt: Nmt, recipe: Path, tmp_path: Path) -> None:
    run, other = train("run", "train.max_steps=6"), tmp_path / "other"
    assert nmt("prepare", recipe, f"run_dir={other}", "data.max_tokens=30")[0] == 0
    shutil.rmtree(run / "data")
    shutil.copytree(other / "data", run / "data")
    for step in (2, 6):  # from the start, and from a checkpoint
        status, out, err = nmt("replay", run, "--step", step)
        assert (status, out) == (1, "")
        assert f"the text in {run / 'data'} is not that of its checkpoints" in one_line(err)


@pytest.mark.slow
def test_losses_are_those_of_single_pairs(train: Train, nmt: Nmt, recipe: Path) -> None:
    run = train(
        "run", "train.precision=fp32", 'data.train=[{kind="text", src="train.en", tgt="train.de", tag="<toy>"}]'
    )
    found = replay(nmt, run, 5)
    model = load_model(checkpoint_directory(run, 4), torch.device("cpu")).model
    store = PairStore(run / "data", "train")
    src, tgt = ((recipe.parent / f"train.{side}").read_text().splitlines() for side in ("en", "de"))
    assert len(found["pairs"]) == found["num_pairs"] > 10
    for pair in found["pairs"]:
        batch = make_batch(store, np.array([pair["pair"]]))
        with torch.no_grad():
            loss = F.cross_entropy(model.logits(model(batch.src, batch.tgt)), batch.labels)
        assert pair["nll"] == pytest.approx(float(loss), rel=1e-5)
        assert pair["tgt_tokens"] == len(batch.labels)
        line = pair["number"]
        assert pair["src_location"] == f"{recipe.parent}/train.en:{line}"
        assert pair["tgt_location"] == f"{recipe.parent}/train.de:{line}"
        assert (pair["tag"], pair["src"], pair["tgt"]) == ("<toy>", src[line - 1], tgt[line - 1])
    losses = [pair["nll"] for pair in found["pairs"]]
    assert losses == sorted(losses, reverse=True)
    status, out, _ = nmt("replay", run, "--step", 5, "--top", 3)
    assert status == 0 and out.count(f"{recipe.parent}/train.en:") == 3
    assert f"{found['num_pairs'] - 3} more with lower loss" in out
    assert replay(nmt, run, 5, "--top", "3")["pairs"] == found["pairs"][:3]
    shutil.rmtree(checkpoint_directory(run, 10))
    status, _, err = nmt("replay", run, "--step", 9, "--verify")
    assert status == 2
    assert f"{run} has no checkpoint at or after update 9; --verify needs one; leave out --verify" in one_line(err)


@pytest.mark.slow
def test_a_different_state_is_reported(train: Train, nmt: Nmt, monkeypatch: pytest.MonkeyPatch) -> None:
    run = train("run", "train.max_steps=4")
    monkeypatch.setattr("nmt.train.update.learning_rate", lambda *given: learning_rate(*given) * (1 + 1e-6))
    assert replay(nmt, run, 4)["verified"] is False
    status, out, _ = nmt("replay", run, "--step", 4)
    assert status == 0 and "DIFFERS FROM" in out
    status, out, _ = nmt("replay", run, "--step", 4, "--verify")
    assert status == 1 and "DIFFERS FROM" in out


@pytest.mark.slow
def test_a_changed_start_model_is_reported(train: Train, nmt: Nmt) -> None:
    start = train("start", "train.max_steps=4")
    run = train("run", "train.max_steps=4", f"train.start_from={start}")
    message = f"warning: {start} has changed since {run} started from it, so the states differ"
    assert message not in nmt("replay", run, "--step", 1)[2]
    train("start", "train.max_steps=8")
    assert message in " ".join(nmt("replay", run, "--step", 1)[2].split())


@pytest.mark.slow
def test_options_that_changed_at_the_next_checkpoint_are_reported(train: Train, nmt: Nmt) -> None:
    """Training validates again on resuming, and saves the checkpoint with the new options."""
    run = train("run", "train.max_steps=6")
    train("run", "train.label_smoothing=0.3")
    status, _, err = nmt("replay", run, "--step", 6)
    assert status == 0
    message = "train.label_smoothing, train.max_steps changed after update 6; the replay uses the later options"
    assert message in " ".join(err.split())


@pytest.mark.slow
def test_a_diverged_update_has_no_loss(train: Train, nmt: Nmt) -> None:
    run = train("run", "train.max_steps=3", "train.learning_rate=1e30", "train.log_every=1")
    status, out, _ = nmt("replay", run, "--step", 3, "--json")
    assert status == 0
    assert "NaN" not in out, "JSON has no NaN"
    found = json.loads(out)
    assert found["skipped"] is True
    assert [found[name] for name in ("nll", "gradient_norm", "logged_gradient_norm")] == [None, None, None]
    assert "nan (the run logged nan)" in nmt("replay", run, "--step", 3)[1]


@pytest.mark.slow
def test_an_update_after_the_last_record_of_the_run_is_reported(train: Train, nmt: Nmt) -> None:
    run = train("run", "train.max_steps=6")
    shutil.rmtree(checkpoint_directory(run, 6))  # as after a kill
    message = f"{run} may not have reached update 6; its last recorded update is 4"
    assert "may not have reached" not in nmt("replay", run, "--step", 6)[2]
    metrics = run / "metrics.jsonl"
    metrics.write_text("".join(line for line in metrics.read_text().splitlines(True) if json.loads(line)["step"] <= 4))
    assert message in " ".join(nmt("replay", run, "--step", 6)[2].split())


@pytest.mark.slow
def test_wrong_input_and_missing_files_are_reported(train: Train, nmt: Nmt, recipe: Path, tmp_path: Path) -> None:
    status, _, err = nmt("replay", tmp_path, "--step", 1)
    assert status == 1 and " is not a run; expected the directory of a run" in one_line(err)
    text = tmp_path / "text"
    text.mkdir()
    for name in ("train.en", "train.de", "valid.en", "valid.de"):
        shutil.copy(recipe.parent / name, text)
    run = train("run", "train.max_steps=6", f"data.root={text}")
    status, _, err = nmt("replay", run, "--step", 7)
    assert status == 2 and one_line(err) == f"--step must be at most 6, train.max_steps of {run}, got 7"
    assert nmt("replay", run, "--step", 0)[0] == 2
    (text / "train.de").unlink()
    status, out, err = nmt("replay", run, "--step", 6, "--top", 1)
    assert status == 0 and "data.train.0, stored pair" in out
    assert "warning: the locations of the pairs are unknown: cannot read" in " ".join(err.split())
    damaged = checkpoint_directory(run, 4) / "optimizer.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\x99")
    status, _, err = nmt("replay", run, "--step", 5)
    assert status == 1 and "optimizer.safetensors is missing or corrupt" in err
    assert checkpoint_directory(run, 4).is_dir()


@pytest.mark.slow
def test_pairs_of_cleaned_corpora_are_located(recipe: Path, tmp_path: Path) -> None:
    pairs = [(pair.src, pair.tgt) for pair in generate("train", 60, 8)]
    rows = [("EN", "DE"), ("", "leer"), pairs[0], ("viel " * 30, "kurz"), pairs[1], pairs[1], *pairs[2:40]]
    (tmp_path / "a.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in rows))
    (tmp_path / "b.en").write_text("".join(f"  {src}\n" for src, _ in pairs[40:]))
    (tmp_path / "b.de").write_text("".join(f"{tgt}\u200b\n" for _, tgt in pairs[40:]))
    tsv = "{kind='tsv', path='a.tsv', src_column='EN', tgt_column='DE', tag='<a>'}"
    text = "{kind='text', src='b.en', tgt='b.de'}"
    options = [f"data.root={tmp_path}", f"data.train=[{tsv},{text}]", f"run_dir={tmp_path / 'run'}"]
    options += ["data.reverse_target=true", "tokenizer.lowercase=true", "data.max_tokens=200"]
    options += ["model.max_positions=256", "train.micro_batch_tokens=256"]
    loaded = load_recipe(recipe, options)
    (tmp_path / "valid.en").write_text("a\n")
    (tmp_path / "valid.de").write_text("b\n")
    prepared = prepare(loaded)
    found = locate_pairs(prepared, loaded, decode_pairs(prepared, loaded, range(60)))
    assert [(pair.corpus, pair.number) for pair in found] == [
        *((0, number) for number in (2, 4, *range(6, 44))),
        *((1, number) for number in range(1, 21)),
    ]
    assert [(pair.src, pair.tgt) for pair in found] == [(src.lower(), tgt.lower()) for src, tgt in pairs]


@pytest.mark.slow
def test_pairs_with_truncated_and_lowercased_sources_are_located(recipe: Path, tmp_path: Path) -> None:
    pairs = [(pair.src, pair.tgt) for pair in generate("train", 60, 8)]
    long = [(f"\u0130zmir {src}" * 9, f"\u0130zmir {tgt}") for src, tgt in pairs]
    (tmp_path / "a.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in [("\u0130", long[0][1]), *long]))
    options = [f"data.root={tmp_path}", "data.train=[{kind='tsv', path='a.tsv', tag='<a>'}]"]
    options += [
        "data.max_tokens=100",
        "model.max_positions=128",
        "data.long_sources=truncate",
        "decode.long_lines=truncate",
        "tokenizer.lowercase=true",
    ]
    loaded = load_recipe(recipe, [*options, f"run_dir={tmp_path / 'run'}", "data.max_length_ratio=99"])
    for name in ("valid.en", "valid.de"):
        (tmp_path / name).write_text("a\n")
    prepared = prepare(loaded)
    found = locate_pairs(prepared, loaded, decode_pairs(prepared, loaded, range(61)))
    assert [pair.number for pair in found] == list(range(1, 62))


def test_pairs_that_a_reused_tokenizer_normalizes_are_located(recipe: Path, tmp_path: Path) -> None:
    pairs = [
        ("a cup", "1 Tasse"),
        ("half a cup", "\u00bd Tasse"),
        ("\uff4fne \ufb01sh", "ein \ufb01sch"),
        ("a cup", "1 Tasse"),
    ]
    (tmp_path / "a.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in pairs))
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text for pair in pairs for text in pair]),
        model_prefix=tmp_path / "spm",
        vocab_size=30,
        hard_vocab_limit=False,
        normalization_rule_name="nmt_nfkc",
        minloglevel=2,
    )
    options = [f"data.root={tmp_path}", "data.train=[{kind='tsv', path='a.tsv'}]", "tokenizer.vocab_size="]
    loaded = load_recipe(recipe, [*options, f"run_dir={tmp_path}/run", f"tokenizer.start_from={tmp_path}/spm.model"])
    for name in ("valid.en", "valid.de"):
        (tmp_path / name).write_text("a\n")
    prepared = prepare(loaded)
    found = locate_pairs(prepared, loaded, decode_pairs(prepared, loaded, range(3)))
    assert [(pair.tgt, pair.number) for pair in found] == [("1 Tasse", 1), ("1\u20442 Tasse", 2), ("ein fisch", 3)]
