"""Scores of `tools/parity`."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import parity_table
import pytest
import sacrebleu

from nmt.recipe import DecodeRecipe

SRC = ["ein hund sieht zwei katzen", "zwei katzen sehen einen hund"]


def program(found: list[str], *, lowercase: bool = False) -> SimpleNamespace:
    """Return a fake translator with the given translations."""
    n_best = [[SimpleNamespace(pieces=line.split(), score=-1.0)] for line in found]
    return SimpleNamespace(
        lowercases=lowercase,
        translate=lambda lines: found[: len(lines)],
        translate_n_best=lambda lines: n_best[: len(lines)],
    )


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[SimpleNamespace, SimpleNamespace], None]:
    """Return a function that replaces the translators of nmt and of the other programs."""

    def replace(ours: SimpleNamespace, others: SimpleNamespace) -> None:
        monkeypatch.setattr(parity_table, "Translator", SimpleNamespace(load=lambda *arguments: ours))
        monkeypatch.setattr(parity_table, "CTranslate2Translator", SimpleNamespace(load=lambda *arguments: others))
        monkeypatch.setattr(parity_table, "export_model", lambda *arguments: ["exported"])
        monkeypatch.setattr(parity_table, "huggingface_translator", lambda *arguments: others.translate)

    return replace


def test_bleu_uses_the_tokenizer_of_the_target_language(
    use: Callable[[SimpleNamespace, SimpleNamespace], None], capsys: pytest.CaptureFixture[str]
) -> None:
    ref = ["我喜欢读书。", "他们明天去北京。"]
    ours, others = ["我喜欢读报。", "他们明天去南京。"], ["我喜欢看书。", "他们今天去北京。"]
    use(program(ours), program(others))
    parity_table.compare(Path("model"), SRC, ref, DecodeRecipe(beam_size=1), 2, "zh")
    first, second, *_ = (line.split() for line in capsys.readouterr().out.splitlines())
    for row, found in ((first, ours), (second, others)):
        assert row[-2] == f"{sacrebleu.corpus_bleu(found, [ref], tokenize='zh').score:.2f}"


def test_without_equal_translations_there_is_no_score_difference(
    use: Callable[[SimpleNamespace, SimpleNamespace], None], capsys: pytest.CaptureFixture[str]
) -> None:
    use(program(["a", "b"]), program(["c", "d"]))
    parity_table.compare(Path("model"), SRC, ["a", "b"], DecodeRecipe(beam_size=1), 2, "en")
    assert "difference of equal translations, first 2 lines: fp32 has none, int8 has none\n" in capsys.readouterr().out


@pytest.mark.parametrize("lowercase", [False, True])
def test_lower_cased_models_are_scored_without_regard_to_case(
    lowercase: bool,
    use: Callable[[SimpleNamespace, SimpleNamespace], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    ref = ["A dog sees two cats", "Two cats see a dog"]
    same = program([line.lower() for line in ref], lowercase=lowercase)
    use(same, same)
    parity_table.compare(Path("model"), SRC, ref, DecodeRecipe(beam_size=1), 2, "en")
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("beam 1")]
    assert len(rows) == 4
    assert all(("100.00" in row) == lowercase for row in rows)
