"""`nmt heads` as a user types it, with a tiny, randomly initialized model."""

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nmt.checkpoint import LoadedModel, load_model
from nmt.cli.heads import _numbers_to_keep
from nmt.export.packages import is_installed
from nmt.heads.analysis import MaskedBleu, analyze
from nmt.recipe import NO_CONTEXT, Context, ModelRecipe, dump_recipe, parse_recipe
from nmt.text.tokenizer import Tokenizers
from tests.calling import Nmt, one_line
from tests.cli.nasty_lines import sentence
from tests.recipes import small_recipe

CPU = ("--device", "cpu")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder, rng = tmp_path_factory.mktemp("pairs"), random.Random(1)
    sources = ["", *(sentence(rng) for _ in range(8)), ""]
    references = [sentence(rng) for _ in range(10)]
    for name, lines in (("src", sources), ("ref", references)):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder / "src", folder / "ref"


@pytest.mark.slow
def test_table_and_json_have_the_same_heads(model: Path, pairs: tuple[Path, Path], nmt: Nmt) -> None:
    status, out, _ = nmt("heads", model, *pairs, *CPU)
    assert status == 0
    header, *rows = out.split("\n\n")[0].split("\n")
    assert header.split()[:5] == ["attention", "layer", "head", "dL/dxi", "removed"]
    status, out, _ = nmt("heads", model, *pairs, "--json", *CPU)
    found = json.loads(out)
    assert (status, found["pairs"], found["bleu"], found["curves"]) == (0, 10, None, {})
    names = [(head["attention"], str(head["layer"]), str(head["head"])) for head in found["heads"]]
    assert names == [tuple(row.split()[:3]) for row in rows]
    assert sorted(names) == [(kind, "0", head) for kind in ("cross", "decoder", "encoder") for head in ("0", "1")]
    values = [head["sensitivity"] for head in found["heads"]]
    assert values == sorted(values, reverse=True)


def test_a_newer_checkpoint_of_the_run_is_named(
    model: Path, pairs: tuple[Path, Path], nmt: Nmt, tmp_path: Path
) -> None:
    shutil.copytree(model, tmp_path / "model")
    (tmp_path / "report.json").write_text(json.dumps({"training": {"steps": 1_000}}))
    (tmp_path / "checkpoints" / "step-00001200").mkdir(parents=True)
    status, _, err = nmt("heads", tmp_path, *pairs, *CPU)
    assert (status, err.count("was averaged at step 1,000, but the run has a checkpoint of step 1,200")) == (0, 1)


@pytest.mark.slow
def test_bleu_without_heads_is_measured_and_plotted(
    model: Path, pairs: tuple[Path, Path], nmt: Nmt, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'nmt[plot]'")
    plot = tmp_path / "heads.svg"
    status, out, err = nmt("heads", model, pairs[0], pairs[0], "--bleu", 2, "--plot", plot, "--json", *CPU)
    found = json.loads(out)
    assert status == 0 and err.endswith(f"wrote {plot}\n")
    changes = {head["removal"]: head["bleu_change"] for head in found["heads"] if head["bleu_change"] is not None}
    assert sorted(map(abs, changes)) == sorted(abs(head["removal"]) for head in found["heads"])[-2:]
    assert found["signature"].startswith("BLEU|")
    gradual, same, encoder, decoder = found["curves"].values()
    assert [removed for removed, _ in gradual] == [0, 1, 2, 3, 4, 5]
    assert [removed for removed, _ in same] == [0, 3]
    assert [removed for removed, _ in encoder] == [0, 1]
    assert [removed for removed, _ in decoder] == [0, 2]
    assert gradual[0][1] == same[0][1] == found["bleu"]
    assert "removed heads" in plot.read_text(encoding="utf-8")


def test_a_model_with_context_is_measured_without_it(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loaded = load_model(model, torch.device("cpu"))
    for context, expected in ((NO_CONTEXT, ""), (Context(2, "source"), "warning: the model was trained with context;")):
        with_context = replace(loaded, metadata=replace(loaded.metadata, context=context))
        analyze(with_context, ["A dog."], ["Ein Hund."], 0, curves=False)
        err = capsys.readouterr().err
        assert err.startswith(expected) and bool(err) == bool(expected)


@pytest.mark.parametrize(("language", "has_spaces"), [("de", True), ("ja", False)])
def test_bleu_uses_the_spacing_of_the_target_language(
    model: Path, monkeypatch: pytest.MonkeyPatch, language: str, has_spaces: bool
) -> None:
    loaded, found = load_model(model, torch.device("cpu")), list[bool]()

    def measure(loaded: LoadedModel, tokenizers: Tokenizers, *texts: object) -> MaskedBleu:
        found.append(tokenizers.tgt.has_spaces)
        return MaskedBleu(replace(loaded, metadata=replace(loaded.metadata, tgt_lang="de")), tokenizers, ["a"], ["a"])

    monkeypatch.setattr("nmt.heads.analysis.MaskedBleu", measure)
    analyze(replace(loaded, metadata=replace(loaded.metadata, tgt_lang=language)), ["a"], ["a"], 1, curves=False)
    assert found == [has_spaces]


def test_bleu_uses_the_tokenizer_of_the_run(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "model")
    corpora = 'train = [{ kind = "toy", pairs = 9 }]\nvalid = [{ kind = "toy", pairs = 9 }]'
    for tokenize in ("char", "intl"):
        recipe = parse_recipe(small_recipe(corpora, "max_steps = 1"), [f"evaluate.tokenize={tokenize}"])
        (tmp_path / "recipe.toml").write_text(dump_recipe(recipe))
        loaded = load_model(tmp_path, torch.device("cpu"))
        japanese = replace(loaded, metadata=replace(loaded.metadata, tgt_lang="ja"))
        measure = MaskedBleu(japanese, Tokenizers.load(loaded.directory), ["a"], ["a"])
        assert f"|tok:{tokenize}|" in measure.without([]).signature


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_one_stack_can_be_pruned(model: Path, pairs: tuple[Path, Path], nmt: Nmt, tmp_path: Path, stack: str) -> None:
    options = ("--prune", "0.5", "--stack", stack, "-o", tmp_path / "pruned")
    assert nmt("heads", model, *pairs, *options, *CPU)[0] == 0
    recipe = load_model(tmp_path / "pruned", torch.device("cpu")).model.recipe
    assert (recipe.encoder_heads, recipe.num_heads) == ((1, 2) if stack == "encoder" else (2, 1))
    status, _, err = nmt("export", tmp_path / "pruned", "--to", "huggingface", "-o", tmp_path / "hf")
    assert (status, "model.num_encoder_heads is " in one_line(err)) == (1, True)
    status, _, err = nmt("heads", tmp_path / "pruned", *pairs, *options[:4], "-o", tmp_path / "again", *CPU)
    problem = f"each attention layer of the {stack} has 1 head, and one must remain; leave out --prune"
    assert (status, problem in err) == (2, True)


@pytest.mark.parametrize(("num_heads", "fraction", "kept"), [(5, "0.5", 2), (8, "0.3125", 5), (4, "0.25", 3)])
def test_a_fraction_of_heads_is_rounded_half_up(num_heads: int, fraction: str, kept: int) -> None:
    recipe = ModelRecipe(d_model=8 * num_heads, num_heads=num_heads)
    assert _numbers_to_keep(fraction, None, recipe) == (kept, kept)


@pytest.mark.slow
def test_a_pruned_model_is_smaller_and_translates(
    model: Path, pairs: tuple[Path, Path], nmt: Nmt, tmp_path: Path
) -> None:
    status, _, err = nmt("heads", model, *pairs, "--prune", "0.5", "-o", tmp_path / "pruned", *CPU)
    assert status == 0
    whole, pruned = (load_model(path, torch.device("cpu")).model for path in (model, tmp_path / "pruned"))
    assert (pruned.recipe.num_heads, pruned.recipe.d_head) == (1, 8)
    assert f"1 of 2 in the decoder; {pruned.num_parameters():,} of {whole.num_parameters():,} parameters" in err
    assert pruned.num_parameters() < whole.num_parameters()
    nmt("heads", model, *pairs, "--prune", "1", "-o", tmp_path / "same", *CPU)
    assert (tmp_path / "same/model.safetensors").read_bytes() == (tmp_path / "pruned/model.safetensors").read_bytes()
    engines = ["torch"] + (["ctranslate2"] if is_installed("ctranslate2") else [])
    for engine in engines:
        status, out, _ = nmt("translate", tmp_path / "pruned", pairs[0], "--engine", engine, *CPU)
        assert (status, out.count("\n")) == (0, 10)
    if "ctranslate2" in engines:
        assert "cannot run" not in nmt("info", tmp_path / "pruned")[1]
    status, _, err = nmt("export", tmp_path / "pruned", "--to", "huggingface", "-o", tmp_path / "hf")
    assert status == 1
    assert "Hugging Face cannot represent this model: model.d_head is 8" in one_line(err)


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["--prune", "2", "-o", "new"], 2, "one must remain; give 1, or a fraction such as 0.5"),
        (["--prune", "0", "-o", "new"], 2, "--prune is '0'"),
        (["--prune", "0.9", "-o", "new"], 2, "--prune is '0.9', which rounds to 2; each attention layer"),
        (["--prune", "0.1", "-o", "new"], 2, "--prune is '0.1', which rounds to 0; each attention layer"),
        (["--prune", "half", "-o", "new"], 2, "--prune is 'half'"),
        (["--prune", "nan", "-o", "new"], 2, "--prune is 'nan'"),
        (["--stack", "encoder"], 2, "--stack has no effect without --prune"),
        (["--prune", "1"], 2, "--prune and -o must be given together"),
        (["-o", "new"], 2, "--prune and -o must be given together"),
        (["--prune", "1", "-o", "photo.png/new"], 1, "photo.png is not a directory; choose another path"),
        (["--plot", "heads"], 2, "needs an extension such as .png"),
        (["--plot", "heads.txt"], 2, "needs an extension such as .png"),
        (["--plot", "nowhere/heads.png"], 1, "is not a directory"),
        (["--plot", "photo.png"], 1, "photo.png was not written by this command"),
    ],
)
def test_wrong_options_are_one_line(
    model: Path,
    pairs: tuple[Path, Path],
    nmt: Nmt,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    status: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photo.png").write_text("of another program")
    found, out, err = nmt("heads", model, *pairs, *options, *CPU)
    assert (found, out) == (status, "")
    assert message in one_line(err)


def test_text_that_does_not_fit_is_one_line(model: Path, pairs: tuple[Path, Path], nmt: Nmt, tmp_path: Path) -> None:
    (tmp_path / "one").write_text("a\n")
    assert "match line by line" in one_line(nmt("heads", model, pairs[0], tmp_path / "one", *CPU)[2])
    (tmp_path / "long").write_text("a\n" + "a b c d " * 30 + "\n")
    (tmp_path / "two").write_text("a\nb\n")
    message = one_line(nmt("heads", model, tmp_path / "long", tmp_path / "two", *CPU)[2])
    assert message.startswith("source, line 2 has ") and "at most 63" in message
