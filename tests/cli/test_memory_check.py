"""`tools/memory-check`: edited files get the same translations with and without a memory."""

import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import memory_check
import pytest

from nmt.decode.task import TranslatorInput
from nmt.decode.translation import Translation
from tests.cli.nasty_lines import sentence
from tests.extras import import_ctranslate2


@pytest.fixture
def text(tmp_path: Path) -> Path:
    rng = random.Random(2)
    (tmp_path / "text").write_text("".join(f"{sentence(rng)}\n" for _ in range(200)), encoding="utf-8")
    return tmp_path / "text"


@pytest.mark.slow
def test_edited_files_have_the_same_translations_with_a_memory(
    model: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import_ctranslate2()
    assert memory_check.main([str(model), str(text), "--files", "20"]) == 0
    torch, ctranslate2 = (line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:])
    assert torch[0] == "torch fp32" and torch[4] == "0"
    assert ctranslate2[0] == "ctranslate2 int8" and ctranslate2[4:] == ["0", "0"]
    reused_percent = float(ctranslate2[3].rstrip("%"))
    assert reused_percent > 80, "edits change at most 5 of about 30 lines"


def test_a_translation_that_depends_on_other_lines_is_reported(
    model: Path, text: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Numbering:
        """Gives each line its number in the batch."""

        def start_translation(
            self, inputs: Sequence[TranslatorInput], n_best: int | None = None
        ) -> Callable[[], list[list[Translation]]]:
            return lambda: [[Translation(str(number), 0.0, 0.0, [], [])] for number in range(len(inputs))]

        def count_long(self, lines: Iterable[str]) -> None:
            """Count no lines."""

        def translate_inputs(self, inputs: Sequence[TranslatorInput]) -> list[list[Translation]]:
            return self.start_translation(inputs)()

    monkeypatch.setattr(memory_check, "load", lambda *_: Numbering())
    assert memory_check.main([str(model), str(text), "--files", "3", "--lines", "10"]) == 1
    assert "| torch fp32 | 4 |" in capsys.readouterr().out


def test_edits_change_few_lines_and_keep_the_size() -> None:
    rng, lines = random.Random(1), [f"a b {number}" for number in range(10)]
    for _ in range(500):
        edited = memory_check.edit(rng, lines, ["x y", "z"], 10)
        assert len(set(edited) - set(lines)) <= 5 and 1 <= len(edited) <= 25
        lines = edited


def test_zero_lines_are_a_usage_error(model: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        memory_check.main([str(model), str(text), "--lines", "0"])
    assert ended.value.code == 2
    assert "--lines must be at least 1" in capsys.readouterr().err
