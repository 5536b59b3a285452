"""Interpolated Kneser-Ney smoothing against values computed by hand, and the tool on a prepared run."""

import math
import random
from pathlib import Path

import ngram_baseline
import pytest
from ngram_baseline import KneserNey

from nmt.grammar import generate
from nmt.pipeline import prepare
from nmt.special_ids import BOS_ID, EOS_ID
from tests.test_language_model import recipe_of

A, B, C = 4, 5, 6
TOKENS = (A, B, C, EOS_ID)


def test_bigram_probabilities_equal_the_hand_computed_ones() -> None:
    """Counts: BOS a 2, and a b, a c, b EOS, c EOS once. Distinct tokens before a, b, c: 1; before EOS: 2. D = 0.5."""
    model = KneserNey([[A, B], [A, C]], order=2, vocab_size=4)
    unigrams = {A: (0.5 + 2 / 4) / 5, B: (0.5 + 2 / 4) / 5, C: (0.5 + 2 / 4) / 5, EOS_ID: (1.5 + 2 / 4) / 5}
    assert [model.probability((), token) for token in TOKENS] == pytest.approx([unigrams[token] for token in TOKENS])
    assert model.probability((BOS_ID,), A) == pytest.approx((1.5 + 0.5 * unigrams[A]) / 2)
    assert model.probability((BOS_ID, A), B) == pytest.approx((0.5 + 1.0 * unigrams[B]) / 2)
    assert model.probability((BOS_ID, C), A) == pytest.approx(0.5 * unigrams[A])
    expected = [(1.5 + 0.5 * 0.2) / 2, (0.5 + 1.0 * 0.2) / 2, 0.5 + 0.5 * 0.4]
    assert model.log_probs([A, B]) == pytest.approx([math.log(p) for p in expected])


def test_discounts_follow_chen_and_goodman() -> None:
    counts = [1] * 40 + [2] * 15 + [3] * 8 + [4] * 4 + [9] * 3
    ratio = 40 / (40 + 2 * 15)
    expected = [0.0, 1 - 2 * ratio * 15 / 40, 2 - 3 * ratio * 8 / 15, 3 - 4 * ratio * 4 / 8]
    assert list(ngram_baseline._discounts(counts)) == pytest.approx(expected)


def test_discounts_are_positive() -> None:
    """With a discount of 0, unseen tokens would have probability 0."""
    _, *discounts = ngram_baseline._discounts([1] * 10 + [2] * 2 + [3] * 10 + [4] * 60)
    assert min(discounts) > 0.0


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_distributions_sum_to_one(order: int) -> None:
    rng = random.Random(order)
    sentences = [rng.choices((A, A, A, B, C), k=rng.randint(0, 7)) for _ in range(60)]
    model = KneserNey(sentences, order, vocab_size=4)
    for length in range(6):
        history = (BOS_ID, *rng.choices((A, B, C), k=length))
        probabilities = [model.probability(history, token) for token in TOKENS]
        assert sum(probabilities) == pytest.approx(1.0)
        assert min(probabilities) > 0.0


def test_tool_scores_text_of_a_prepared_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [pair.src for pair in generate("train", 300, 1)]
    (tmp_path / "train").write_text("".join(f"{line}\n" for line in texts[50:]), encoding="utf-8")
    (tmp_path / "valid").write_text("".join(f"{line}\n" for line in texts[:50]), encoding="utf-8")
    (tmp_path / "test").write_text("x\n")
    prepare(recipe_of(tmp_path))
    capsys.readouterr()
    assert ngram_baseline.main([str(tmp_path / "run"), str(tmp_path / "valid"), "--order", "1", "--order", "4"]) == 0
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in capsys.readouterr().out.splitlines()[2:]]
    tokens, num_bytes = sum(len(line) + 2 for line in texts[:50]), sum(map(len, texts[:50]))
    for _, _, counted, perplexity, bits_per_byte in rows:
        assert int(counted.replace(",", "")) == tokens
        bits = tokens * math.log2(float(perplexity)) / num_bytes
        assert float(bits_per_byte) == pytest.approx(bits, rel=1e-2)
    assert float(rows[1][4]) < 0.7 * float(rows[0][4])


def test_training_sentences_are_in_reading_order_and_without_context(tmp_path: Path) -> None:
    for name, lines in (("train", ["ab", "cd", "ef"]), ("valid", ["ab"]), ("test", ["ab"])):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "src").write_text("uv\nwx\nyz\n")
    corpus = '[{ kind = "text", src = "src", tgt = "train" }]'
    options = ["src_lang=de", f"data.train={corpus}", f"data.valid={corpus}", "data.test={}"]
    variants = {
        "plain": [],
        "reversed": ["data.reverse_target=true"],
        "context": ["data.context=1", "data.context_sides=both"],
    }
    for name, overrides in variants.items():
        prepared = prepare(recipe_of(tmp_path, *options, *overrides, f"run_dir={tmp_path / name}"))
        tokenizer = prepared.tokenizers.tgt
        found = [tokenizer.decode(ids) for ids in ngram_baseline.training_sentences(prepared)]
        assert found == ["ab", "cd", "ef"], name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--order", "0"], "--order must be from 1 to 10, got 0"), ([], "has no complete corpus of a translation model")],
)
def test_wrong_input_is_a_one_line_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    (tmp_path / "text").write_text("x\n")
    assert ngram_baseline.main([str(tmp_path), str(tmp_path / "text"), *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_damaged_or_empty_text_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("train", "valid", "test"):
        (tmp_path / name).write_text("x y\n" * 50)
    prepare(recipe_of(tmp_path))
    (tmp_path / "empty").write_text("")
    assert ngram_baseline.main([str(tmp_path / "run"), str(tmp_path / "empty")]) == 2
    assert capsys.readouterr().err.endswith("empty is empty; it must have one sentence per line; check the file\n")
    tokens = tmp_path / "run/data/train.tgt.tokens.npy"
    content = tokens.read_bytes()
    tokens.write_bytes(content[:-4] + bytes([content[-4] ^ 1]) + content[-3:])
    assert ngram_baseline.main([str(tmp_path / "run"), str(tmp_path / "valid")]) == 2
    assert "train.tgt.tokens.npy is damaged: its SHA-256" in capsys.readouterr().err
