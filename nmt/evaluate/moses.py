"""Text as the Moses scripts leave it, for the BLEU of older publications."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import Literal, assert_never

Punctuation = Literal["norm", "unipunct"]

_CODES = "as bn ca cs de el en es et fi fr ga gu hi hu is it ja kn ko lt lv ml mni mr nl or pa pl pt ro ru sk sl sv ta"
LANGUAGES = frozenset([*_CODES.split(), "tdt", "te", "yue", "zh"])
"""Languages with rules of their own in the Moses tokenizer. For ja, ko and zh, sacreBLEU has tokenizers too."""


class MosesText:
    """Text as the Moses scripts leave it: punctuation made uniform, then tokenised, special characters escaped.

    punctuation `norm` is `normalize-punctuation.perl`. Lower-cased before, it reproduces each of the 93,042 lines of
    Multi30k's `lc.norm.tok` files (task 1, three languages).
    punctuation `unipunct` is `replace-unicode-punctuation.perl`, the first step of tensor2tensor's `get_ende_bleu.sh`.
    Hyphens stay inside words (no aggressive splitting).
    """

    def __init__(self, lang: str, punctuation: Punctuation = "norm") -> None:
        """`lang` is an ISO 639 code; Moses has rules for about thirty languages and takes English ones for others."""
        # Importing it compiles its rules, which takes a second that only those who need them shall wait.
        from sacremoses import MosesPunctNormalizer, MosesTokenizer  # noqa: PLC0415

        self._punctuation: Punctuation = punctuation
        self._normalizer = MosesPunctNormalizer(lang, perl_parity=True)
        self._tokenizer = MosesTokenizer(lang)
        self.signature = f"moses.{lang}.{punctuation}.sacremoses-{version('sacremoses')}"

    def tokens(self, line: str) -> str:
        """The tokens of a line, joined by single spaces."""
        tokenized: str = self._tokenizer.tokenize(self._uniform(line), return_str=True)
        return tokenized.strip()

    def _uniform(self, line: str) -> str:
        uniform: str
        match self._punctuation:
            case "norm":
                # Moses' rule for a full stop before a closing quote looks at the character behind it: in Perl, the
                # line end.
                uniform = self._normalizer.normalize(line + "\n")
            case "unipunct":
                uniform = self._normalizer.replace_unicode_punct(line)
            case _:
                assert_never(self._punctuation)
        return uniform


def split_compounds(tokens: str) -> str:
    """Tokens with each hyphen between two characters made a token, as the paper's English-German scores were counted.

    The rule of tensor2tensor's `get_ende_bleu.sh`, which follows Luong et al. 2015.
    """
    return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", tokens)
