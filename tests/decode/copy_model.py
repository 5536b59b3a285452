"""A translator that copies: a model that predicts its source, and lines for it."""

import random
from typing import Any

import torch
from torch import Tensor

from nmt.decode.translator import Translator
from nmt.packing.packed import PackedSequences
from nmt.recipe import DecodeRecipe
from nmt.search.beam_search import StepModel
from nmt.storage.model_metadata import DEFAULT_MAX_TOKENS
from nmt.text.tokenizer import Tokenizers

CPU = torch.device("cpu")
WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "tree",
    "sees",
    "likes",
    "old",
    "red",
    "quickly,",
    "slowly.",
    "Then",
    "he",
    "said:",
    "go!",
]


def text_lines(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in range(count)]


def nasty_lines() -> list[str]:
    """Return 200 difficult lines."""
    lines = [
        "",
        " ",
        "\t",
        "\u3000 \u00a0",
        "\x00",
        "\x00\x00 a\x00b",
        "\ufeffcat",
        "\ud800 lone \udfff surrogates",
        "\u200b",
    ]
    lines += ["cat\rdog", "cat\x85dog", "cat\u2028dog\u2029", "cat\x0b\x0c\x1c\x1d\x1edog", "  the  cat  ", "▁▁ cat ▁"]
    lines += [
        "<s> </s> <unk> <pad> <0x0A>",
        "\\n \\t %s {0} $HOME `rm`",
        "&amp; <b>cat</b>",
        "😀🇩🇪👩‍👩‍👧‍👦🏳️‍🌈",
        "ﷺ ﬁ ½ Å",
    ]
    lines += ["שלום עולם", "مرحبا بالعالم؟ نعم.", "\u202etac\u202c", "日本語の文。二番目の文。", "नमस्ते दुनिया", "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢"]
    lines += [
        "word " * 10_000,
        "x" * 3_000,
        "cat. " * 300,
        "猫" * 700,
        "a," * 500,
        "https://example.org/" + "path/" * 80,
        "0" * 257,
    ]
    rng = random.Random(1)
    while len(lines) < 150:
        lines.append(
            "".join(chr(rng.choice([rng.randrange(0x250), rng.randrange(0x110000)])) for _ in range(rng.randrange(60)))
        )
    return lines + text_lines(200 - len(lines), seed=2)


class CopyState:
    def __init__(self, sentences: list[list[int]], beam_size: int) -> None:
        self.sentences, self.beam_size, self.length = sentences, beam_size, 0

    def reorder(self, beam_index: Tensor) -> None:
        pass

    def select(self, sentence_index: Tensor) -> None:
        self.sentences = [self.sentences[i] for i in sentence_index.tolist()]


OUT_OF_MEMORY = (
    torch.OutOfMemoryError("no"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"),
    MemoryError("no"),
)


class CopyModel:
    """Predicts the source token of each position.

    too_many: number of sentences in a batch that exhaust its memory
    error:    raised if they do
    sure:     whether all other tokens have probability 0, which makes samples deterministic
    """

    def __init__(
        self, vocab: int, too_many: int = 10**9, *, error: Exception = OUT_OF_MEMORY[0], sure: bool = False
    ) -> None:
        self.vocab, self.too_many, self.error, self.sure = vocab, too_many, error, sure
        self.batches: list[list[int]] = []  # lengths of the sentences of each batch
        self.refused: list[int] = []  # sizes of the batches that were too large

    def start(self, src: PackedSequences, beam_size: int) -> CopyState:
        if src.num_sentences >= self.too_many:
            self.refused.append(src.num_sentences)
            raise self.error
        self.batches.append(src.lengths.tolist())
        return CopyState(src.to_lists(), beam_size)

    def step(self, tokens: Tensor, state: CopyState) -> Tensor:
        log_probs = torch.full((*tokens.shape, self.vocab), 0.0 if self.sure else 0.1 / self.vocab).log()
        for row, sentence in enumerate(state.sentences):
            log_probs[row, :, sentence[min(state.length, len(sentence) - 1)]] = -0.1
        state.length += 1
        return log_probs


def make_translator(
    model: StepModel[CopyState],
    tokenizers: Tokenizers,
    max_positions: int = 1024,
    max_tokens: int = DEFAULT_MAX_TOKENS,
    **decode: Any,
) -> Translator:
    # The model is nearly certain of each token, so all other hypotheses end early; `first` would stop at these.
    stop = "first" if decode.get("sampling") else "exact"
    recipe = DecodeRecipe.model_validate({"beam_size": 2, "max_extra_tokens": 3, "stop": stop} | decode)
    return Translator(
        model,
        tokenizers,
        recipe,
        max_positions=max_positions,
        unicode_form="NFC",
        device=CPU,
        max_tokens=max_tokens,
    )
