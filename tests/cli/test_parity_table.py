"""`tools/parity` scores models that ignore case without regard to case."""

from pathlib import Path
from types import SimpleNamespace

import parity_table
import pytest

from nmt.recipe import DecodeRecipe


@pytest.mark.parametrize("lowercase", [False, True])
def test_lower_cased_models_are_scored_without_regard_to_case(
    lowercase: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    src = ["ein hund sieht zwei katzen", "zwei katzen sehen einen hund"]
    ref = ["A dog sees two cats", "Two cats see a dog"]
    found = [line.lower() for line in ref]
    n_best = [[SimpleNamespace(pieces=line.split(), score=-1.0)] for line in found]
    program = SimpleNamespace(
        lowercases=lowercase,
        translate=lambda lines: found[: len(lines)],
        translate_n_best=lambda lines: n_best[: len(lines)],
    )
    loader = SimpleNamespace(load=lambda *arguments: program)
    monkeypatch.setattr(parity_table, "Translator", loader)
    monkeypatch.setattr(parity_table, "CTranslate2Translator", loader)
    monkeypatch.setattr(parity_table, "export_model", lambda *arguments: ["exported"])
    monkeypatch.setattr(parity_table, "huggingface_translator", lambda *arguments: program.translate)
    parity_table.compare(Path("model"), src, ref, DecodeRecipe(beam_size=1), len(src))
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("beam 1")]
    assert len(rows) == 4
    assert all(("100.00" in row) == lowercase for row in rows)
