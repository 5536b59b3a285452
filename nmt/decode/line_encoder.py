"""Encoding of lines and their constraints as search tasks: normalization, tokenization, splitting, glossaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nmt.decode.context import ContextEncoder
from nmt.decode.glossary import Glossary, Required, forms_of
from nmt.decode.task import Task, TranslatorInput
from nmt.errors import UserError
from nmt.recipe import DecodeRecipe, UnicodeForm
from nmt.search.limits import max_output_length, num_required_tokens, require_fit
from nmt.search.options import SearchOptions
from nmt.text.clean import normalize
from nmt.text.sentences import split_sentences
from nmt.text.splitting import Part, split_line
from nmt.text.subword_file import SPACE, spell
from nmt.text.term_markup import Mark, TermMarkers, token_span
from nmt.text.tokenizer import Tokenizers

RIGHT_TO_LEFT = "the model decodes from right to left; prefixes need a left-to-right model"
CONTINUES_LINES = "prefixes and glossaries are for translation; a language model continues each line; leave out both"


class LineEncoder:
    """Encodes lines with their prefixes, required phrases and glossary terms as search tasks.

    options:    search options; their phrases are encoded
    tag:        token ids before each source sentence
    max_tokens: maximum number of source tokens, `tag` excluded
    """

    def __init__(
        self,
        tokenizers: Tokenizers,
        decode: DecodeRecipe,
        context: ContextEncoder,
        *,
        unicode_form: UnicodeForm,
        max_positions: int,
        max_tokens: int,
        reverse_target: bool,
        allows_digits: bool,
    ) -> None:
        """Raises UserError for options of `decode` that the tokenizers do not support.

        max_positions: maximum sentence length of the model, EOS included
        max_tokens:    maximum sentence length, `tag` included
        """
        self._tokenizers, self._decode, self._context = tokenizers, decode, context
        self._unicode_form, self._reverse_target = unicode_form, reverse_target
        annotates = decode.glossary_mode == "annotate"
        self._markers = TermMarkers.find(tokenizers, "decode.glossary_mode 'annotate'") if annotates else None
        forbidden_tokens = TermMarkers.ids_of(tokenizers.tgt)
        if context.tgt_separator is not None:  # the text before it would count as context
            forbidden_tokens.append(context.tgt_separator)
        if not allows_digits:
            forbidden_tokens += tokenizers.tgt.tokens_with_digits()
        forbidden = [tokens for phrase in decode.forbid for tokens in self._phrase(phrase, is_forbidden=True)]
        forbidden += [[token] for token in forbidden_tokens]
        bias = [(tokens, value) for phrase, value in decode.bias.items() for tokens in self._phrase(phrase)]
        self.options = SearchOptions.from_recipe(decode, max_positions - 1, forbidden, bias, context.tgt_separator)
        self.tag = [] if decode.tag is None else [tokenizers.src.tag_id(decode.tag)]
        self.max_tokens = max_tokens - len(self.tag)

    def limit_outputs(self, max_tokens: int) -> None:
        """Limit outputs for any input to `max_tokens`, unless the limit is already lower."""
        self.options = replace(self.options, max_tokens=min(max_tokens, self.options.max_tokens or max_tokens))

    def split(self, line: str) -> tuple[list[Part], int]:
        """Return the parts of a line, and the length in tokens of its longest sentence before it is split.

        There are no parts if the line is empty, several if it is too long and not truncated, otherwise one; with
        `decode.split_sentences`, the parts of each of its sentences.
        """
        text = normalize(line, self._unicode_form)
        parts: list[Part] = []
        end = longest = 0
        for sentence in split_sentences(text) if self._decode.split_sentences else [text]:
            start = text.index(sentence, end)
            end = start + len(sentence)
            tokens = self._tokenizers.src.encode(sentence)
            longest = max(longest, len(tokens))
            if self._decode.long_lines == "truncate":
                tokens = tokens[: self.max_tokens]
            if len(tokens) > self.max_tokens:
                split = split_line(sentence, self._tokenizers.src.encode, self.max_tokens)
                parts += [part._replace(start=start + part.start) for part in split]
            elif tokens:
                parts.append(Part(sentence, start, tokens))
        return parts, longest

    def tasks(self, item: TranslatorInput, parts: Sequence[Part], *, partial_word: bool) -> list[Task]:
        """Return the tasks of a line with its prefix and context; phrases and terms are still to be added."""
        prefix, partial = self._prefix(item.prefix, partial_word=partial_word)
        tasks = [Task(part.tokens, [], []) for part in parts]
        if tasks:
            tasks[0] = tasks[0]._replace(prefix=prefix, partial=partial)
        limit = self.max_tokens
        if self._context.tgt_separator is not None:  # a language model with fewer positions reads the context too
            limit = min(limit, self.options.max_tokens or limit)
        return self._context.add(tasks, item.context, limit, split=self._decode.split_sentences)

    def required(self, required: Sequence[Required]) -> list[list[list[int]]]:
        """Tokenize the required phrases of a line and of the recipe."""
        if self._decode.sampling and required:
            raise UserError(
                "sampling does not support required phrases; they need beam search; set decode.sampling to false"
            )
        phrases = (*self._decode.require, *required)
        encoded = [self._forms(phrase) for phrase in phrases]
        num_tokens, max_tokens = num_required_tokens(encoded), max_output_length(self.options)
        if num_tokens > max_tokens:
            shown = ", ".join(" or ".join(map(repr, forms_of(phrase))) for phrase in phrases)
            raise UserError(
                f"the required phrases {shown} have {num_tokens} tokens; an output has at most {max_tokens}; require "
                "fewer"
            )
        return encoded

    def add_terms(self, tasks: Sequence[Task], parts: Sequence[Part], glossary: Glossary) -> list[Task]:
        """Require the terms of each part of a line, as many as fit the maximum output length, or annotate them."""
        if self._markers is not None:
            return [
                task._replace(sentence=self._mark_terms(task.sentence, part, glossary, self._markers))
                for task, part in zip(tasks, parts, strict=True)
            ]
        if self._decode.sampling:
            raise UserError("sampling does not support glossaries; they need beam search; set decode.sampling to false")
        return [self._require_terms(task, part, glossary) for task, part in zip(tasks, parts, strict=True)]

    def _require_terms(self, task: Task, part: Part, glossary: Glossary) -> Task:
        """Require the terms of a part, as many as fit the maximum output length."""
        required = task.required
        limit = max_output_length(self.options, task.prefix) - len(task.prefix)
        _, starts = self._tokenizers.src.encode_with_starts(part.text)
        text = part.text
        if len(part.tokens) < len(starts):  # truncated
            text = text[: starts[len(part.tokens)]]
        for forms in glossary.required(text):
            extended = [*required, self._forms(forms)]
            if num_required_tokens(extended) <= limit:
                required = extended
        return task._replace(required=required)

    def _mark_terms(self, tokens: list[int], part: Part, glossary: Glossary, markers: TermMarkers) -> list[int]:
        """Insert the first form of each term after its words in a part, for as many terms as fit the maximum length."""
        _, starts = self._tokenizers.src.encode_with_starts(part.text)
        marks: list[Mark] = []
        capacity = self.max_tokens - len(tokens)
        for span, term in glossary.locate(part.text):
            translation = self._tokenizers.src.encode(normalize(term.forms[0], self._unicode_form))
            mark = Mark(*token_span(starts, span), translation)
            follows = not marks or mark.first >= marks[-1].end
            if follows and mark.end <= len(part.tokens) and mark.added <= capacity:
                marks.append(mark)
                capacity -= mark.added
        return markers.mark(tokens, marks)

    def _phrase(self, phrase: str, *, is_forbidden: bool = False) -> list[list[int]]:
        """Tokenize part of an output in each of its forms, see `Tokenizer.encode_phrase`, in the model's order."""
        text, tokenizer = normalize(phrase, self._unicode_form), self._tokenizers.tgt
        forms = tokenizer.encode_forbidden(text) if is_forbidden else tokenizer.encode_phrase(text)
        return [tokens[::-1] for tokens in forms] if self._reverse_target else forms

    def _forms(self, required: Required) -> list[list[int]]:
        """Tokenize a required phrase, or the alternatives of one, in each of its forms."""
        forms = [tokens for phrase in forms_of(required) for tokens in self._phrase(phrase)]
        if not forms or not all(forms):
            raise UserError(f"required phrase {required!r} is empty; it must have text; remove it")
        return forms

    def _prefix(self, prefix: str, *, partial_word: bool) -> tuple[list[int], bytes]:
        """Return the tokens of a prefix, which must fit the maximum output length, and the bytes of a partial word."""
        if not prefix.strip():
            return [], b""
        if self._reverse_target:
            raise UserError(f"{RIGHT_TO_LEFT}; remove the prefixes")
        tokens = self._tokenizers.tgt.encode(normalize(prefix, self._unicode_form))
        partial = b""
        if partial_word and prefix[-1].isspace():
            partial = b" "
        elif partial_word:
            pieces = self._tokenizers.tgt.pieces(tokens)
            start = max((i for i, piece in enumerate(pieces) if piece.startswith(SPACE)), default=0)
            tokens = tokens[:start]
            partial = b"".join(map(spell, pieces[start:]))
        return require_fit(tokens, self.options), partial
