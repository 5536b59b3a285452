"""A tiny run, a tiny random model, texts to score, and the command line called in this process."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import pytest
import torch

from nmt.checkpoint import model_files, model_tensors
from nmt.grammar import generate
from nmt.model.transformer import Transformer
from nmt.recipe import DecodeRecipe, ModelRecipe, TokenizerRecipe
from nmt.storage.model_metadata import ModelMetadata
from nmt.storage.sealed import write_directory
from nmt.streams.records import Record
from nmt.streams.workers import TranslatedWindow, WindowTranslator
from nmt.text.tokenizer import Tokenizers, train_tokenizer
from tests.calling import PipeIn, Write
from tests.cli.nasty_lines import SENTENCES, as_bytes, sentence
from tests.recipes import small_recipe

# Text that tokenizers split differently.
AWKWARD = [
    "Der 10.000-Meter-Lauf, sagte er: „Das war\u2019s!“",
    "Text-zu-Text-Übersetzung kostet ca. 3,50 € (USD 4.10) …",
    "Rock-'n'-Roll \u2013 A-B-C \u2013 U-Bahn-Haltestelle Nord-Süd",
    "E-Mail: info@example.org & http://example.org/a-b?c=d",
    "„Was?“, fragte sie; 50 % der CO2-Emissionen sind 'neu'.",
    "Die 1990er-Jahre [sic] <b>fett</b> {x|y} 5-6",
]

TINY_RECIPE = (
    small_recipe(
        """
train = [{ kind = "toy", pairs = 400 }]
valid = [{ kind = "toy", split = "valid", pairs = 30 }]
""",
        """
max_steps = 12
batch_tokens = 500
micro_batch_tokens = 500
schedule = "linear"
learning_rate = 0.01
warmup_steps = 4
validate_every = 6
validate_bleu_every = 6
validate_bleu_sentences = 10
save_every = 4
average_count = 2
""",
        name="tiny",
        top="seed = 4",
        vocab_size=700,
    )
    + """
[data.test]
heldout = { kind = "toy", split = "test", pairs = 20 }
[decode]
beam_size = 2
max_extra_tokens = 5
min_tokens = 3  # otherwise this model translates each line to the empty string
[evaluate]
samples = 10
"""
)


def corrupt_words(line: str, random_numbers: random.Random, fraction: float) -> str:
    """Drop, duplicate, move or uppercase about this fraction of the words."""
    words = line.split(" ")
    for index in range(len(words)):
        if random_numbers.random() < fraction:
            match random_numbers.randrange(4):
                case 0:
                    words[index] = ""
                case 1:
                    words[index] *= 2
                case 2:
                    words[index], words[0] = words[0], words[index]
                case _:
                    words[index] = words[index].upper()
    return " ".join(word for word in words if word)


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a source, two references and the outputs of three systems of decreasing quality."""
    folder = tmp_path_factory.mktemp("texts")
    pairs = list(generate("test", 60, 5))
    random_numbers = random.Random(1)
    reference = [pair.tgt for pair in pairs] + AWKWARD
    sides = {
        "src": [pair.src for pair in pairs] + AWKWARD,
        "ref": reference,
        "ref2": [corrupt_words(line, random_numbers, 0.1) for line in reference],
        "good": [corrupt_words(line, random_numbers, 0.15) for line in reference],
        "fair": [corrupt_words(line, random_numbers, 0.25) for line in reference],
        "poor": ["", *(corrupt_words(line, random_numbers, 0.4) for line in reference[1:])],
    }
    for name, lines in sides.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


@pytest.fixture
def lowered(texts: Path, tmp_path: Path) -> Path:
    """The references in lower case, like the output of a system that was trained on lowercased text."""
    path = tmp_path / "lowered"
    path.write_text((texts / "ref").read_text(encoding="utf-8").lower(), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights and two tags, whose translations are short and differ from line to line."""
    folder = tmp_path_factory.mktemp("model")
    rng = random.Random(0)
    recipe = TokenizerRecipe(vocab_size=320, user_symbols=("<web>", "<news>"))
    tokenizer = train_tokenizer((sentence(rng) for _ in range(300)), recipe, folder / "tokenizer.model")
    tokenizers, vocab = Tokenizers(tokenizer, tokenizer), tokenizer.vocab_size
    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_ff": 32, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1}
    architecture = ModelRecipe.model_validate(sizes | {"max_positions": 64})
    network = Transformer(architecture, vocab, vocab)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(4.0 if parameter.dim() > 1 else 2.0)
    decode = DecodeRecipe(beam_size=2, max_extra_tokens=2, max_length_ratio=0.2, batch_tokens=8_192)
    metadata = ModelMetadata("en", "de", vocab, vocab, "NFC", decode)
    files = model_files(architecture, model_tensors(network), tokenizers.files(), metadata)
    write_directory(folder / "model", files)
    return folder / "model"


@pytest.fixture
def sentences(tmp_path: Path) -> Path:
    """A file of 20 short lines."""
    (tmp_path / "in.txt").write_bytes(as_bytes(SENTENCES))
    return tmp_path / "in.txt"


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished tiny run, made by `nmt run`; its folder also holds the recipe and what the command printed."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "tiny.toml").write_text(TINY_RECIPE)
    command = [sys.executable, "-m", "nmt", "run", str(folder / "tiny.toml"), f"run_dir={folder / 'run'}"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    (folder / "out.md").write_text(done.stdout)
    return folder / "run"


@pytest.fixture
def pipe_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[PipeIn]:
    """Replace stdin with a pipe that a function writes to in a thread; the pipe closes when the function returns."""
    threads: list[threading.Thread] = []
    files: list[TextIO] = []

    def start(write_all: Callable[[Write], None]) -> None:
        reading, writing = os.pipe()

        def run() -> None:
            with os.fdopen(writing, "wb", buffering=0) as pipe, suppress(BrokenPipeError):
                write_all(lambda content: _write(pipe.fileno(), content))

        files.append(os.fdopen(reading))
        monkeypatch.setattr(sys, "stdin", files[-1])
        threads.append(threading.Thread(target=run, daemon=True))
        threads[-1].start()

    yield start
    for file in files:
        file.close()
    for thread in threads:
        thread.join(60)


def _write(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]


@pytest.fixture
def interrupt_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Simulate one Ctrl-C after this many windows."""

    def set_up(windows: int) -> None:
        left, translate = [windows], WindowTranslator.start

        def translate_or_stop(self: WindowTranslator, window: list[Record]) -> Callable[[], TranslatedWindow]:
            left[0] -= 1
            if left[0] == -1:
                os.kill(os.getpid(), signal.SIGINT)
            return translate(self, window)

        monkeypatch.setattr(WindowTranslator, "start", translate_or_stop)

    return set_up
