"""Plain input lines, and difficult ones with every kind of character except line feeds."""

import random
from collections.abc import Callable

WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "tree",
    "sees",
    "likes",
    "old",
    "quickly,",
    "slowly.",
    "Then",
    "said:",
    "go!",
    "3.14",
]
SEPARATORS = ["\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\t"]
BLANKS = ["", " ", "\t", "  \t ", "\u3000", "\u00a0 ", "\r", "\x00", "\u200b", "\ufeff", "\u2028\u2029", "\x85"]
WRITTEN = [
    "שלום עולם",
    "مرحبا بالعالم؟ نعم.",
    "\u202etac\u202c cat",
    "日本語の文。二番目の文。",
    "नमस्ते दुनिया",
    "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢",
    "e\u0301 \u0301 a\u0308\u0304",
    "😀🇩🇪👩‍👩‍👧‍👦🏳️‍🌈",
    "a\u200bb\u200cc\u200dd\u2060e\u00adf",
    "<s> </s> <unk> <pad> <0x0A> <web> ▁▁ cat",
    '{"text": "a\\nb"}\t"quoted\tcolumns"',
    "\\n \\t %s {0} $HOME `rm` && &amp; <b>cat</b>",
    "\ufeffcat",
    "cat\r",
    "\ufdd0 \ufffe \uffff \U0010ffff \ufffd \ue000",
]
LONGEST = 100_000
SENTENCES = [f"the old dog {number} sees a cat" for number in range(20)]


def sentence(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(1, 12)))


def _separated(rng: random.Random) -> str:
    return rng.choice(SEPARATORS).join(sentence(rng) for _ in range(rng.randint(2, 4)))


def _with_nul(rng: random.Random) -> str:
    return sentence(rng).replace(" ", "\x00", 2)


def _random(rng: random.Random) -> str:
    characters = (chr(rng.choice([rng.randrange(0x250), rng.randrange(0x110000)])) for _ in range(rng.randrange(40)))
    return "".join(c for c in characters if c != "\n" and not "\ud800" <= c <= "\udfff")


KINDS: list[Callable[[random.Random], str]] = [
    sentence,
    _separated,
    _with_nul,
    _random,
    lambda rng: rng.choice(BLANKS),
    lambda rng: rng.choice(WRITTEN),
]


def nasty_lines(count: int, seed: int = 1, num_longest: int = 6) -> list[str]:
    """`count` lines, of which `num_longest` have 100,000 characters each, evenly spread."""
    rng = random.Random(seed)
    lines = [rng.choice(KINDS)(rng) for _ in range(count)]
    longest = ["word " * (LONGEST // 5), "x" * LONGEST, "cat. " * (LONGEST // 5), "猫" * LONGEST, " " * LONGEST]
    for number in range(num_longest):
        lines[(2 * number + 1) * count // (2 * num_longest)] = longest[number % len(longest)]
    return lines


def as_bytes(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()
