"""`nmt align`, `nmt plot alignment`, `nmt rerank` and related options, with tiny, randomly initialized models."""

import shutil
import tomllib
import unicodedata
from pathlib import Path

import pytest
import sacrebleu
import torch

from nmt.checkpoint import model_files, model_tensors
from nmt.decode.translator import Translator
from nmt.model.transformer import Transformer
from nmt.recipe import DecodeRecipe, ModelRecipe, TokenizerRecipe, dump_recipe, parse_recipe
from nmt.storage.model_metadata import ModelMetadata, read_model_metadata
from nmt.storage.sealed import write_directory
from nmt.text.tokenizer import Tokenizers, train_tokenizer
from tests.calling import Nmt, one_line
from tests.recipes import small_recipe

SOURCES = ["the old cat sees a dog.", "", "a red tree", "no cats quickly,  a cat.", "the cat sees many dogs"]
TARGETS = ["red tree the old sees", "", "cat a red tree.", "no quickly", "the cat sees cats"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text, and the models `forward`, `backwards` (from right to left) and `reverse` (from German to English)."""
    folder = tmp_path_factory.mktemp("models")
    lines = [f"the old tree sees {word} cats quickly, a cat." for word in ("red", "green", "many", "no", "dogs")] * 20
    tokenizer = train_tokenizer(lines, TokenizerRecipe(vocab_size=320), folder / "tokenizer.model")
    sizes = {"d_model": 16, "d_ff": 32, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 3}
    recipe = ModelRecipe.model_validate(sizes | {"max_positions": 64})
    decode = DecodeRecipe(beam_size=4, max_extra_tokens=3)
    for seed, (name, src, tgt, reverse_target) in enumerate(
        [("forward", "en", "de", False), ("backwards", "en", "de", True), ("reverse", "de", "en", False)]
    ):
        torch.manual_seed(seed)
        model = Transformer(recipe, 320, 320)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.5)
        metadata = ModelMetadata(src, tgt, 320, 320, "NFC", decode, reverse_target=reverse_target)
        files = model_files(recipe, model_tensors(model), Tokenizers(tokenizer, tokenizer).files(), metadata)
        write_directory(folder / name, files)
    for name, text in {"src": SOURCES, "tgt": TARGETS, "ref": TARGETS, "one": ["a cat"]}.items():
        (folder / name).write_text("".join(f"{line}\n" for line in text))
    return folder


# --- Alignments -------------------------------------------------------------------------------------------------------


def links(line: str) -> list[tuple[int, int]]:
    pairs = [pair.split("-") for pair in line.split(" ")] if line else []
    return [(int(source), int(target)) for source, target in pairs]


@pytest.mark.slow
def test_align_prints_pharaoh_lines_within_the_words(folder: Path, tmp_path: Path, nmt: Nmt) -> None:
    status, out, _ = nmt("align", folder / "forward", folder / "src", folder / "tgt")
    assert status == 0
    lines = out.split("\n")
    assert lines.pop() == ""
    assert len(lines) == len(SOURCES)
    assert lines[1] == ""
    for line, source, target in zip(lines, SOURCES, TARGETS, strict=True):
        found = links(line)
        assert found == sorted(set(found))
        assert {tgt_word for _, tgt_word in found} == set(range(len(target.split())))
        assert all(0 <= src_word < len(source.split()) for src_word, _ in found)
    (tmp_path / "gold").write_text(out)
    status, again, err = nmt("align", folder / "forward", folder / "src", folder / "tgt", "--gold", tmp_path / "gold")
    assert (status, again) == (0, out) and "precision 1.0000, recall 1.0000, AER 0.0000" in err
    by_layer = [nmt("align", folder / "forward", folder / "src", folder / "tgt", "--layer", n)[1] for n in range(3)]
    assert by_layer[1] == out  # the second to last
    assert len(set(by_layer)) == 3
    by_head = nmt("align", folder / "forward", folder / "src", folder / "tgt", "--layer", 2, "--heads", "0")[1]
    assert by_head != by_layer[2]
    both = nmt("align", folder / "forward", folder / "src", folder / "tgt", "--layer", 2, "--heads", "1,0")[1]
    assert both == by_layer[2]
    for position, is_default in (("output", True), ("input", False)):
        by_position = nmt("align", folder / "forward", folder / "src", folder / "tgt", "--at", position)[1]
        assert (by_position == out) == is_default


@pytest.mark.slow
def test_choose_logs_uses_and_saves_the_attention(folder: Path, tmp_path: Path, nmt: Nmt) -> None:
    command = ("align", folder / "forward", folder / "src", folder / "tgt", "--choose", folder / "src", folder / "tgt")
    for more in ((), ("--reverse-model", folder / "reverse")):
        model = tmp_path / f"model{len(more)}"
        status, chosen, err = nmt(*command, *more, "--save-model", model)
        assert status == 0
        assert "agreement (F1 of links) by position and layer, all heads: output 0: 0." in err
        options = err.strip().splitlines()[-1].rpartition(": ")[2].split()
        assert options[0] == "--layer"
        assert nmt("align", folder / "forward", folder / "src", folder / "tgt", *options)[1] == chosen
        assert nmt("align", model, folder / "src", folder / "tgt")[1] == chosen
        decode = read_model_metadata(model).decode
        assert decode.alignment_layer == int(options[1])
        assert options[-2:] == ["--at", decode.alignment_at]


def test_a_reverse_model_without_its_tag_is_named(folder: Path, tmp_path: Path, nmt: Nmt) -> None:
    files: dict[str, bytes] = {path.name: path.read_bytes() for path in (folder / "reverse").iterdir()}
    del files["manifest.json"]
    files["model.toml"] += b'[tags]\n"<web>" = "de to en"\n'
    write_directory(tmp_path / "tagged", files)
    command = ("align", folder / "forward", folder / "src", folder / "tgt", "--choose", folder / "src", folder / "tgt")
    for reverse, count in ((tmp_path / "tagged", 1), (folder / "reverse", 0)):
        status, _, err = nmt(*command, "--reverse-model", reverse)
        warning = f"warning: {reverse} was trained with a tag before every source sentence, and none is set; "
        assert (status, err.count(warning)) == (0, count)


@pytest.mark.slow
def test_translations_come_with_their_alignments(folder: Path, nmt: Nmt) -> None:
    _, plain, _ = nmt("translate", folder / "forward", folder / "src", "--engine", "torch")
    status, out, _ = nmt("translate", folder / "forward", folder / "src", "--with-alignments")
    assert status == 0
    texts, alignments = zip(*(line.split("\t") for line in out.removesuffix("\n").split("\n")), strict=True)
    assert list(texts) == plain.removesuffix("\n").split("\n")
    _, listed, _ = nmt("translate", folder / "forward", folder / "src", "--with-alignments", "--n-best", 3)
    assert {len(line.split("\t")) for line in listed.splitlines()} == {4}
    decode = DecodeRecipe(beam_size=4, max_extra_tokens=3, alignments=True)
    found = Translator.load(folder / "forward", "cpu", decode=decode).translate_n_best(SOURCES)
    assert [best.alignment for best, *_ in found] == [links(line) for line in alignments]
    both = (folder / "forward", "--ensemble", folder / "forward")
    assert nmt("translate", both[0], folder / "src", *both[1:], "--with-alignments")[1] == out


@pytest.mark.slow
def test_alignment_is_plotted(folder: Path, tmp_path: Path, nmt: Nmt) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra `plot`")
    command = ("plot", "alignment", folder / "forward", folder / "src", folder / "tgt", "-o", tmp_path / "map.png")
    assert nmt(*command, "--line", 3)[:2] == (0, f"{tmp_path / 'map.png'}\n")
    assert (tmp_path / "map.png").stat().st_size > 1_000
    status, _, err = nmt(*command, "--line", 9)
    assert status == 1
    assert "has no line 9" in one_line(err)
    status, _, err = nmt(*command[:4], folder / "one", "-o", tmp_path / "map.png")
    assert status == 1
    assert f"{folder / 'src'} has 5 lines and {folder / 'one'} has 1; they must match line by line" in one_line(err)


def test_invalid_input_of_align_is_one_line(folder: Path, tmp_path: Path, nmt: Nmt) -> None:
    model, src, tgt = folder / "forward", folder / "src", folder / "tgt"
    for arguments, expected, status in (
        ((src, folder / "one"), "has 1; they must match line by line", 1),
        ((src, tgt, "--layer", "3"), "alignment_layer must be between 0 and 2", 1),
        ((src, tgt, "--heads", "1,1"), "alignment_heads names head 1 twice; a head counts once; remove one", 2),
        ((src, tgt, "--heads", "2"), "alignment_heads must be between 0 and 1", 1),
        ((src, tgt, "--heads", "x"), "--heads is 'x'; it must be comma-separated numbers from 0", 2),
        ((src, tgt, "--heads", "0]"), "--heads is '0]'; it must be comma-separated numbers from 0", 2),
        ((src, folder / "one", "--save-model", folder / "forward"), "already exists", 1),  # before anything else
        ((src, tgt, "--reverse-model", folder / "reverse"), "has no effect without --choose", 2),
        ((src, tgt, "--choose", src, folder / "one"), "has 1; they must match", 1),
        ((src, tgt, "--choose", src, tgt, "--reverse-model", model), "--reverse-model must translate from de to en", 1),
    ):
        found, out, err = nmt("align", model, *arguments)
        assert (found, out) == (status, "")
        assert expected in one_line(err)
    status, _, err = nmt("align", model, src, tgt, "--choose", src, tgt, "--layer", "1")
    assert status == 2
    assert "leave out either these or --choose" in one_line(err)


# --- Reranking --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nbest(folder: Path) -> Path:
    translator = Translator.load(folder / "forward", "cpu")
    with (folder / "nbest").open("w") as file:
        for number, found in enumerate(translator.translate_n_best(SOURCES, n_best=4), start=1):
            file.writelines(f"{number}\t{one.score:.4f}\t{one.text}\n" for one in found)
    return folder / "nbest"


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["bleu", "chrf"])
def test_tuned_weights_improve_the_score_and_can_be_applied(
    folder: Path, nbest: Path, tmp_path: Path, nmt: Nmt, metric: str
) -> None:
    models = ("--model", folder / "backwards", "--reverse-model", folder / "reverse")
    command = ("rerank", folder / "forward", folder / "src", nbest, *models)
    weights = tmp_path / "weights.toml"
    status, tuned, err = nmt(
        *command, "--tune", folder / "ref", "--metric", metric, "--save-weights", weights, "--restarts", 3
    )
    assert status == 0
    saved = tomllib.loads(weights.read_text())
    assert list(saved["weights"]) == ["given", "length", "model", "model-2", "reverse-model"]
    assert f"{metric} {saved['tuned']['before']:.2f} with the scores in the list" in err
    lines = tuned.split("\n")[:-1]
    compute = sacrebleu.corpus_bleu if metric == "bleu" else sacrebleu.corpus_chrf
    assert compute(lines, [TARGETS]).score == pytest.approx(saved["tuned"]["after"], abs=1e-3)
    candidates = [line.split("\t")[2] for line in nbest.read_text().splitlines()]
    as_given = nmt("translate", folder / "forward", folder / "src", "--engine", "torch")[1].split("\n")[:-1]
    assert set(as_given) <= set(candidates)
    assert compute(as_given, [TARGETS]).score == pytest.approx(saved["tuned"]["before"], abs=1e-3)
    assert saved["tuned"]["after"] >= saved["tuned"]["before"]
    assert nmt(*command, "--weights", weights)[:2] == (0, tuned)


@pytest.mark.slow
def test_weights_for_other_models_are_named(folder: Path, nbest: Path, tmp_path: Path, nmt: Nmt) -> None:
    forward, backwards = folder / "forward", folder / "backwards"
    weights, files = tmp_path / "weights.toml", (folder / "src", nbest)
    models = (forward, *files, "--model", backwards)
    tune = ("--tune", folder / "ref", "--save-weights", weights, "--restarts", 1)
    assert nmt("rerank", *models, *tune)[0] == 0
    moved = shutil.copytree(backwards, tmp_path / "moved")
    status, _, err = nmt("rerank", forward, *files, "--model", moved, "--weights", weights)
    assert status == 0 and "tuned for" not in err
    status, out, err = nmt("rerank", backwards, *files, "--model", forward, "--weights", weights)
    assert (status, out) == (1, "")
    assert (
        f"{weights} was tuned for these models in another order: model was {forward} and is {backwards}, model-2 was "
        f"{backwards} and is {forward}; give them in that order"
    ) in one_line(err)
    status, _, err = nmt("rerank", forward, *files, "--model", forward, "--weights", weights)
    assert status == 0
    assert f"was tuned for other models: model-2 was {backwards} and is {forward}; tune the weights" in err
    weights.write_text(weights.read_text().partition("[models")[0])  # as written by earlier versions
    status, _, err = nmt("rerank", backwards, *files, "--model", forward, "--weights", weights)
    assert status == 0 and "tuned for" not in err


def tuning_command(folder: Path, texts: Path) -> tuple[object, ...]:
    """Return the command that tunes weights with the files src, nbest and ref in `texts`."""
    return ("rerank", folder / "forward", texts / "src", texts / "nbest", "--tune", texts / "ref")


def test_csv_that_is_reranked_as_text_is_a_warning(folder: Path, nbest: Path, tmp_path: Path, nmt: Nmt) -> None:
    shutil.copy(folder / "src", tmp_path / "src.csv")
    shutil.copy(folder / "ref", tmp_path / "ref.csv")
    files = (tmp_path / "src.csv", nbest, "--tune", tmp_path / "ref.csv")
    status, _, err = nmt("rerank", folder / "forward", *files, "--restarts", 1)
    assert (status, err.count("is read as plain text")) == (0, 1)  # the references have no comma
    assert f"warning: {tmp_path / 'src.csv'} is read as plain text, including commas and quotes" in err
    (tmp_path / "ref.csv").write_text((folder / "ref").read_text().replace("cat", "cat,"))
    _, _, err = nmt("rerank", folder / "forward", *files, "--restarts", 1)
    assert f"warning: {tmp_path / 'ref.csv'} is read as plain text, including commas and quotes" in err


def test_tuning_uses_the_tokenizer_of_the_target_language(
    folder: Path, tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("rerank", "arguments"):  # rerank imports the other
        monkeypatch.setattr(f"nmt.cli.{module}.languages", lambda path: ("en", "zh"))
    for name, text in (("src", "a"), ("ref", "我喜欢读书。"), ("nbest", "1\t0.5\t我喜欢读报。\n1\t0.1\t我喜欢读书。")):
        (tmp_path / name).write_text(f"{text}\n")
    status, out, err = nmt(*tuning_command(folder, tmp_path), "--restarts", 1)
    assert (status, out) == (0, "我喜欢读书。\n"), err
    before = sacrebleu.corpus_bleu(["我喜欢读报。"], [["我喜欢读书。"]], tokenize="zh").score
    assert f"bleu {before:.2f} with the scores in the list, 100.00 tuned" in err


def test_tuning_uses_the_tokenizer_of_the_recipe(folder: Path, tmp_path: Path, nmt: Nmt) -> None:
    shutil.copytree(folder / "forward", tmp_path / "model")
    recipe = parse_recipe(RECIPE, ["evaluate.tokenize=char"])
    (tmp_path / "recipe.toml").write_text(dump_recipe(recipe))
    for name, text in (("src", "a"), ("ref", "the cat"), ("nbest", "1\t0.5\tthe bat")):
        (tmp_path / name).write_text(f"{text}\n")
    _, _, err = nmt("rerank", tmp_path, *tuning_command(folder, tmp_path)[2:], "--restarts", 1)
    assert f"bleu {sacrebleu.corpus_bleu(['the bat'], [['the cat']], tokenize='char').score:.2f} with" in err


@pytest.mark.slow
def test_tuning_ignores_case_if_the_model_writes_lowercase(folder: Path, tmp_path: Path, nmt: Nmt) -> None:
    tokenizer = train_tokenizer(
        ["the old tree sees red cats"] * 20, TokenizerRecipe(vocab_size=280, lowercase=True), tmp_path / "t.model"
    )
    recipe = ModelRecipe(d_model=16, d_ff=32, num_heads=2, num_encoder_layers=1, num_decoder_layers=1, max_positions=64)
    size = tokenizer.vocab_size
    files = model_files(
        recipe,
        model_tensors(Transformer(recipe, size, size)),
        Tokenizers(tokenizer, tokenizer).files(),
        ModelMetadata("en", "de", size, size, "NFC", DecodeRecipe()),
    )
    write_directory(tmp_path / "lowercase", files)
    nbest = "1\t0.5\tThe red old cats\n1\t0.1\tthe old red tree\n"
    for name, text in (("src", "a\n"), ("ref", "The Old Red Tree\n"), ("nbest", nbest)):
        (tmp_path / name).write_text(text)
    command = ("rerank", tmp_path / "lowercase", *tuning_command(folder, tmp_path)[2:])
    for metric in ("bleu", "chrf"):
        status, out, err = nmt(*command, "--metric", metric, "--restarts", 1)
        assert (status, out) == (0, "the old red tree\n"), err
        assert "100.00 tuned, ignoring case" in err
    assert "ignoring case" not in nmt(*tuning_command(folder, tmp_path), "--restarts", 1)[2]


def test_references_in_another_unicode_form_give_a_hint(folder: Path, tmp_path: Path, nmt: Nmt) -> None:
    for name, text in (("src", "a"), ("ref", unicodedata.normalize("NFD", "Grüße")), ("nbest", "1\t0.5\tGrüße")):
        (tmp_path / name).write_text(f"{text}\n")
    _, _, err = nmt(*tuning_command(folder, tmp_path))
    assert "hint: in 1 of 1 line, the n-best list and the reference have the same letters" in err


def test_empty_lines_are_named(folder: Path, nbest: Path, tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "ref").write_text("\n".join(["", *TARGETS[1:], ""]))
    named = f"warning: 1 of {len(TARGETS)} lines of {tmp_path / 'ref'} is empty (first: line 1); "
    command = ("rerank", folder / "forward", folder / "src", nbest, "--restarts", 0)
    assert f"{named}any translation of such a line counts as wrong\n" in nmt(*command, "--tune", tmp_path / "ref")[2]
    err = nmt("score", folder / "forward", folder / "src", tmp_path / "ref")[2]
    assert f"{named}their log-probabilities count; check both files\n" in err
    assert named in nmt("score", folder / "forward", tmp_path / "ref", folder / "tgt")[2]


def test_pairs_without_text_are_counted(folder: Path, tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "src").write_text("a dog\n\n \na cat\n")
    (tmp_path / "tgt").write_text("x\n\n\ny\n")
    err = nmt("score", folder / "forward", tmp_path / "src", tmp_path / "tgt")[2]
    assert "4 pairs (2 empty, whose EOS counts), " in err and "warning" not in err
    (tmp_path / "tgt").write_text("x\n")
    assert "1 pair, " in nmt("score", folder / "forward", tmp_path / "tgt", tmp_path / "tgt")[2]


@pytest.mark.slow
def test_equal_sides_give_a_warning(folder: Path, nbest: Path, tmp_path: Path, nmt: Nmt) -> None:
    src = folder / "src"
    warning = f"warning: {src} is given as both source and translation; they must be different files; correct one\n"
    assert warning in nmt("rerank", folder / "forward", src, nbest, "--restarts", 0, "--tune", src)[2]
    assert warning in nmt("evaluate", folder / "tgt", "--ref", src, "--src", src, "--by-length")[2]
    (tmp_path / "copy").write_bytes(src.read_bytes())
    for tgt in (src, tmp_path / "copy"):
        for command in ("score", "align"):
            status, _, err = nmt(command, folder / "forward", src, tgt)
            copied = f"warning: {tgt} is identical to {src}; it must be the translation; is it the right file?\n"
            assert status == 0 and (warning if tgt == src else copied) in err
    assert "identical" not in nmt("score", folder / "forward", src, folder / "tgt")[2]


def test_weights_of_a_single_feature_rank_by_it(folder: Path, nbest: Path, tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "given.toml").write_text("[weights]\ngiven = 1.0\nlength = 0.0\nmodel = 0.0\n")
    command = ("rerank", folder / "forward", folder / "src", nbest, "--n-best", 9)
    assert nmt(*command, "--weights", tmp_path / "given.toml")[:2] == (0, nbest.read_text())

    (tmp_path / "model.toml").write_text("[weights]\ngiven = 0.0\nlength = 0.0\nmodel = 1.0\n")
    _, listed, _ = nmt(*command, "--weights", tmp_path / "model.toml")
    rows = [line.split("\t") for line in listed.splitlines()]
    (tmp_path / "src").write_text("".join(f"{SOURCES[int(number) - 1]}\n" for number, _, _ in rows))
    (tmp_path / "tgt").write_text("".join(f"{text}\n" for _, _, text in rows))
    _, scored, _ = nmt("score", folder / "forward", tmp_path / "src", tmp_path / "tgt")
    assert [float(score) for _, score, _ in rows] == pytest.approx([float(x) for x in scored.split()], abs=2e-4)
    for line_number in "12345":
        scores = [float(score) for number, score, _ in rows if number == line_number]
        assert scores == sorted(scores, reverse=True)


@pytest.mark.slow
def test_wrong_input_of_rerank_is_one_line(folder: Path, nbest: Path, tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "w.toml").write_text("[weights]\ngiven = 1.0\n")
    forward, src, tune = folder / "forward", folder / "src", ("--tune", folder / "ref")
    for arguments, expected in (
        ((forward, folder / "one", nbest, *tune), "has translations of 5"),
        ((forward, src, src, *tune), "line 1, is malformed"),
        ((forward, src, nbest, "--tune", folder / "one"), "one has 1 line"),
        ((forward, src, nbest, "--weights", tmp_path / "w.toml"), "for given; expected given, length"),
        ((forward, src, nbest, *tune, "--model", folder / "reverse"), "--model must translate from en to de"),
        ((forward, src, nbest, *tune, "--reverse-model", forward), "--reverse-model must translate from de to en"),
        ((tmp_path, src, nbest, *tune), "has no model"),
        # This is checked before the model is loaded.
        ((tmp_path, src, nbest, *tune, "--save-weights", tmp_path / "no" / "w"), "no is not a directory"),
    ):
        status, out, err = nmt("rerank", *arguments)
        assert (status, out) == (1, "")
        assert expected in one_line(err)
    for both in ((), (*tune, "--weights", tmp_path / "w.toml")):
        status, _, err = nmt("rerank", forward, src, nbest, *both)
        assert status == 2
        assert "give either" in one_line(err)
    given = ("--weights", tmp_path / "w.toml")
    for option, value in (("--save-weights", "new"), ("--metric", "bleu"), ("--restarts", 10), ("--seed", 1)):
        status, _, err = nmt("rerank", forward, src, nbest, *given, option, value)
        assert (status, f"{option} has no effect without --tune" in one_line(err)) == (2, True)


def test_members_of_an_ensemble_have_the_same_languages(folder: Path, nmt: Nmt) -> None:
    status, out, err = nmt("translate", folder / "forward", folder / "src", "--ensemble", folder / "reverse")
    assert (status, out) == (1, "")
    assert "reverse translates from de to en, and" in one_line(err) and "from en to de; ensemble" in one_line(err)


# --- Training from right to left --------------------------------------------------------------------------------------

RECIPE = (
    small_recipe(
        """
reverse_target = true
train = [{ kind = "text", src = "src", tgt = "tgt" }]
valid = [{ kind = "text", src = "src", tgt = "tgt" }]
""",
        """
max_steps = 2
batch_tokens = 500
micro_batch_tokens = 500
validate_every = 2
validate_bleu_every = 2
validate_bleu_sentences = 4
save_every = 2
""",
        name="tiny",
        vocab_size=300,
    )
    + """
[decode]
beam_size = 1
max_extra_tokens = 3
"""
)


@pytest.mark.slow
def test_models_of_a_right_to_left_run_have_the_direction(folder: Path, tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "tiny.toml").write_text(RECIPE.replace("workers = 1", f'workers = 1\nroot = "{folder}"'))
    status, _, err = nmt("train", tmp_path / "tiny.toml", f"run_dir={tmp_path / 'run'}")
    assert status == 0, err
    assert read_model_metadata(tmp_path / "run" / "checkpoints" / "step-00000002").reverse_target
    status, _, err = nmt("average", tmp_path / "run", "--last", 1, "-o", tmp_path / "mean")
    assert status == 0, err
    assert read_model_metadata(tmp_path / "mean").reverse_target
    status, _, err = nmt("train", tmp_path / "tiny.toml", f"run_dir={tmp_path / 'run'}", "data.reverse_target=false")
    assert status == 1
    assert "data.reverse_target is False, was True" in one_line(err)
