"""A fake translator that corrupts its output."""

import random
from collections.abc import Callable, Sequence
from copy import copy
from typing import Self, cast

from nmt.decode.glossary import Required
from nmt.decode.task import Previous, TranslatorInput
from nmt.decode.translation import Translation
from nmt.recipe import NO_CONTEXT


class NoisyTranslator:
    """Moves, drops and repeats words, changes characters, and adds items.

    noise:       probability that one of these changes is made to a word
    can_require: whether it accepts required phrases, some of which it omits
    aligns:      whether it returns links, some of them wrong
    digits:      whether outputs may have digits
    calls:       lines of each call
    contexts:    previous sentences of each line of the last call
    """

    def __init__(self, noise: float, *, can_require: bool = True, aligns: bool = True) -> None:
        self.noise, self.aligns, self.digits = noise, aligns, True
        self.require: Sequence[Required] = ()
        self.forbid: Sequence[str] = ()
        self.lines_split = self.lines_longer = self.lines_reused = 0
        self.unsupported = {} if can_require else {"required": "a reason"}
        self.calls: list[list[str]] = []
        self.context = NO_CONTEXT
        self.contexts: list[list[Previous]] = []
        self.splits_sentences = False

    def start_translation(
        self, inputs: Sequence[TranslatorInput], n_best: int | None = None
    ) -> Callable[[], list[list[Translation]]]:
        """See `TextTranslator.start_translation`."""
        self.calls.append([one.text for one in inputs])
        self.contexts = [list(one.context) for one in inputs]
        found = [[self._translate(one.text, one.prefix, cast(Sequence[str], one.required))] for one in inputs]
        return lambda: found

    def with_constraints(
        self, tag: str | None, forbidden: Sequence[str] = (), *, digits: bool = True, requires: bool = True
    ) -> Self:
        """See `TextTranslator.with_constraints`; tag and phrases are ignored."""
        other = copy(self)
        other.digits = digits
        other.require = self.require if requires else ()
        return other

    def fits_beam(self, item: TranslatorInput) -> bool:
        """See `TextTranslator.fits_beam`; the beam is always large enough."""
        return True

    def translate_inputs(self, inputs: Sequence[TranslatorInput], n_best: int | None = None) -> list[list[Translation]]:
        """See `TextTranslator.translate_inputs`."""
        return self.start_translation(inputs, n_best)()

    def _translate(self, line: str, prefix: str, required: Sequence[str]) -> Translation:
        rng = random.Random(f"{line} {prefix} {required}")
        words = list(enumerate(line.split()))
        output = [(0, word) for word in prefix.split()]
        for index, word in words:
            if rng.random() < self.noise:
                match rng.randrange(6):
                    case 0:
                        continue
                    case 1:
                        output.insert(rng.randint(0, len(output)), (index, word))
                        continue
                    case 2:
                        output.append((index, word))
                    case 3:
                        word = word[: len(word) // 2] + rng.choice("a7.,{%<&") + word[len(word) // 2 :]
                    case 4:
                        output.append((index, rng.choice(["345", "http://example.net", "{x}", "100.000", "2"])))
                    case _:
                        word = word.lower()
            output.append((index, word))
        output += [(rng.randint(0, len(words)), word) for word in required if rng.random() > self.noise]
        links = [(source if rng.random() > self.noise else 0, target) for target, (source, _) in enumerate(output)]
        if not self.digits:
            output = [(index, "".join(filter(str.isalpha, word)) or "word") for index, word in output]
        text = " ".join(word for _, word in output)
        return Translation(text, -1.0, -1.0, text.split(), [], links if self.aligns else None)
