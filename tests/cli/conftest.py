"""A tiny random model on disk, and the command line called in this process."""

import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from calling import Nmt, PipeIn, Result, Write
from nasty_lines import sentence

from nmt import cli
from nmt.checkpoint import ModelFacts, model_files, model_tensors, write_directory
from nmt.data.tokenizer import Tokenizers, train_tokenizer
from nmt.model.transformer import Transformer
from nmt.recipe import DecodeRecipe, ModelRecipe, TokenizerRecipe


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights, whose translations are short and differ from line to line; it knows two tags."""
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
            parameter.mul_(2.0)
    decode = DecodeRecipe(beam_size=2, max_extra_tokens=2, max_length_ratio=0.2, batch_tokens=8_192)
    facts = ModelFacts("en", "de", vocab, vocab, "NFC", decode)
    files = model_files(architecture, model_tensors(network), tokenizers.files(), facts)
    write_directory(folder / "model", files)
    return folder / "model"


@pytest.fixture
def nmt(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Nmt:
    """Run a command in this process; gives exit status, stdout and stderr."""

    def call(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["nmt", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
            sys.exit(0)
        out, err = capfd.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 0), out, err

    return call


@pytest.fixture
def pipe_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[PipeIn]:
    """Make standard input a pipe that a function, called in a thread, writes to; it is closed when that returns."""
    threads: list[threading.Thread] = []

    def start(write_all: Callable[[Write], None]) -> None:
        reading, writing = os.pipe()

        def run() -> None:
            with os.fdopen(writing, "wb", buffering=0) as pipe, suppress(BrokenPipeError):
                write_all(lambda content: _write(pipe.fileno(), content))

        monkeypatch.setattr(sys, "stdin", os.fdopen(reading))
        threads.append(threading.Thread(target=run, daemon=True))
        threads[-1].start()

    yield start
    for thread in threads:
        thread.join(20)


def _write(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]
