"""Generate text with a language model: a model whose source is empty (`src_lang = "zxx"`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nmt.decode.line_encoder import CONTINUES_LINES
from nmt.decode.task import TranslatorInput
from nmt.decode.translation import Translation
from nmt.decode.translator import Translator
from nmt.errors import UserError
from nmt.recipe import DecodeRecipe
from nmt.text.splitting import Part


class TextGenerator(Translator):
    """Continue lines of text with a language model, by sampling or beam search. See `Translator`.

        generator = TextGenerator.load("runs/english", decode=DecodeRecipe(sampling=True, n_best=5))
        generator.translate_n_best(["Once upon a time"])[0]          # five texts that begin like this
        generator.translate_n_best([""])[0]                          # five texts

    The probability of an output includes that of the line.
    """

    has_source = False

    def start_translation(
        self, inputs: Sequence[TranslatorInput], n_best: int | None = None, *, partial_word: bool = False
    ) -> Callable[[], list[list[Translation]]]:
        """Start the continuation of each line; see `Translator.start_translation`."""
        if any(item.prefix.strip() or item.glossary is not None for item in inputs):
            raise UserError(CONTINUES_LINES)
        if self._reverse_target and any(item.text.strip() for item in inputs):
            raise UserError(
                "this language model predicts text from right to left; continuing a line needs a left-to-right model; "
                "choose another model, or score text with this one (nmt score)"
            )
        beginnings = [item._replace(text="", prefix=item.text) for item in inputs]
        return super().start_translation(beginnings, n_best, partial_word=partial_word)

    def alternatives(self, *_: object, **__: object) -> list[Translation]:
        """Raise UserError: a line is already the prefix of the output, and there is no source."""
        raise UserError("alternatives are for translation; a language model continues each line; use n_best")

    @property
    def unsupported(self) -> dict[str, str]:
        """See `TextTranslator.unsupported`."""
        fields = ("prefix", "partial_word", "alternatives", "glossary", "keep")
        reasons = dict.fromkeys(fields, "a language model continues the text; give it the beginning")
        return super().unsupported | reasons | {"alignments": "a language model has no source"}

    def _set_decode(self, decode: DecodeRecipe) -> None:
        source_limits = ("min_length_ratio", "max_length_ratio")
        for name in ("alignments", "shortlist", "split_sentences", *source_limits, "trees", "fusion"):
            if getattr(decode, name):
                raise UserError(
                    f"decode.{name} is for translation; a language model has no source; remove decode.{name}"
                )
        super()._set_decode(decode)

    def _split(self, line: str) -> list[Part]:
        """Return one part without tokens: the source of a language model is empty."""
        return [Part("", 0, [])]
