import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nmt import cli
from nmt.data.embedded import generate

Nmt = Callable[..., tuple[int, str, str]]

# What tokenizers disagree about.
AWKWARD = [
    "Der 10.000-Meter-Lauf, sagte er: „Das war\u2019s!“",
    "Text-zu-Text-Übersetzung kostet ca. 3,50 € (USD 4.10) …",
    "Rock-'n'-Roll \u2013 A-B-C \u2013 U-Bahn-Haltestelle Nord-Süd",
    "E-Mail: info@example.org & http://example.org/a-b?c=d",
    "„Was?“, fragte sie; 50 % der CO2-Emissionen sind 'neu'.",
    "Die 1990er-Jahre [sic] <b>fett</b> {x|y} 5-6",
]


def spoil(line: str, random_numbers: random.Random, share: float) -> str:
    """The line with about that share of its words dropped, doubled, moved or written in capitals."""
    words = line.split(" ")
    for place in range(len(words)):
        if random_numbers.random() < share:
            match random_numbers.randrange(4):
                case 0:
                    words[place] = ""
                case 1:
                    words[place] *= 2
                case 2:
                    words[place], words[0] = words[0], words[place]
                case _:
                    words[place] = words[place].upper()
    return " ".join(word for word in words if word)


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a source, two references and three systems of falling quality, line by line."""
    folder = tmp_path_factory.mktemp("texts")
    pairs = list(generate("test", 60, 5))
    random_numbers = random.Random(1)
    reference = [pair.tgt for pair in pairs] + AWKWARD
    sides = {
        "src": [pair.src for pair in pairs] + AWKWARD,
        "ref": reference,
        "ref2": [spoil(line, random_numbers, 0.1) for line in reference],
        "good": [spoil(line, random_numbers, 0.15) for line in reference],
        "fair": [spoil(line, random_numbers, 0.25) for line in reference],
        "poor": ["", *(spoil(line, random_numbers, 0.4) for line in reference[1:])],
    }
    for name, lines in sides.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


@pytest.fixture
def nmt(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Nmt:
    """Run a command in this process; gives exit status, stdout and stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["nmt", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
            sys.exit(0)
        out, err = capfd.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 0), out, err

    return call
