"""Moses tokenization, for BLEU as reported in older publications."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import Literal

from nmt.text.languages import SHORT_CODES

Punctuation = Literal["norm", "unipunct"]

_CODES = "as bn ca cs de el en es et fi fr ga gu hi hu is it ja kn ko lt lv ml mni mr nl or pa pl pt ro ru sk sl sv ta"
LANGUAGES = frozenset([*_CODES.split(), "tdt", "te", "yue", "zh"])
"""Languages that the Moses tokenizer has rules for. For ja, ko and zh, sacreBLEU has tokenizers too."""


class MosesTokenizer:
    """Moses punctuation normalization, tokenization and escaping. Words are not split at hyphens.

    punctuation: `norm` is `normalize-punctuation.perl`. On lowercased input, it reproduces all 93,042 lines of the
        `lc.norm.tok` files of Multi30k (task 1, three languages).
        `unipunct` is `replace-unicode-punctuation.perl`, the first step of tensor2tensor's `get_ende_bleu.sh`.
    """

    def __init__(self, lang: str, punctuation: Punctuation = "norm") -> None:
        """`lang` is an ISO 639 code; languages outside LANGUAGES use the English rules."""
        # Importing sacremoses compiles its rules, which takes a second.
        import sacremoses  # noqa: PLC0415

        lang = lang if lang in LANGUAGES else SHORT_CODES.get(lang, lang)
        self._punctuation: Punctuation = punctuation
        self._normalizer = sacremoses.MosesPunctNormalizer(lang, perl_parity=True)
        self._tokenizer = sacremoses.MosesTokenizer(lang)
        self.signature = f"moses.{lang}.{punctuation}.sacremoses-{version('sacremoses')}"

    def __call__(self, line: str) -> str:
        """Return the tokens of a line, separated by single spaces."""
        if self._punctuation == "norm":
            # The rule for a period before a closing quote matches the character after it, a line feed in Perl.
            line = self._normalizer.normalize(line + "\n")
        else:
            line = self._normalizer.replace_unicode_punct(line)
        tokens: str = self._tokenizer.tokenize(line, return_str=True)
        return tokens.strip()


def split_compounds(tokens: str) -> str:
    """Split words at hyphens, as for the English-German scores of Vaswani et al. 2017.

    Applies the rule of tensor2tensor's `get_ende_bleu.sh`, which follows Luong et al. 2015.
    """
    return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", tokens)
