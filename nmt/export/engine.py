"""Translating with CTranslate2: its beam search in place of ours, behind the same translator.

CTranslate2 searches; what is kept of each hypothesis is scored by CTranslate2 once more, in one pass over the whole of
it. So scores and their order mean what they mean everywhere in nmt: true log-probabilities, the end token and a given
prefix counted, where CTranslate2's own search leaves the prefix out and shares the probability of forbidden tokens out
among the others.

What remains different is which hypotheses are found. CTranslate2 ends the search for a sentence when `beam_size *
PATIENCE` hypotheses have ended; ours ends it when nothing can overtake the best any more. And it compares what follows
a prefix without the prefix: with a length penalty, ours then prefers longer outputs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, cast

import torch

from nmt.data.clean import UnicodeForm
from nmt.data.tokenizer import Tokenizers
from nmt.decode.hypothesis import Hypothesis
from nmt.decode.options import SearchOptions, length_penalty
from nmt.decode.rules import Rules
from nmt.decode.text_translator import Task
from nmt.decode.translator import Translator
from nmt.distributed import choose_device
from nmt.export.cache import find_conversion
from nmt.export.packages import load_package
from nmt.layout import find_model
from nmt.recipe import DecodeRecipe, UserError
from nmt.special_ids import BOS_ID, EOS_ID, PAD_ID
from nmt.storage.model_facts import USUAL_MAX_TOKENS, read_model_facts

EnginePrecision = Literal["auto", "fp32", "bf16", "fp16", "int8"]

PATIENCE = 2.0
"""How many times the beam size hypotheses must end before CTranslate2 stops; see the head of this file."""

_COMPUTE_TYPES: Mapping[str, str] = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "int8"}


class CTranslate2Engine:
    """A model that CTranslate2 has loaded, with vocabularies to speak to it in token ids."""

    def __init__(self, directory: Path, tokenizers: Tokenizers, device: torch.device, arithmetic: str) -> None:
        """Load the CTranslate2 model in `directory`; raises UserError when it cannot be loaded."""
        try:
            self._translator = load_package("ctranslate2").Translator(
                str(directory),
                device=device.type,
                device_index=device.index or 0,
                compute_type=arithmetic,
                intra_threads=torch.get_num_threads(),
            )
        except (RuntimeError, ValueError) as error:
            raise _failure(error) from error
        self._src_pieces = tokenizers.src.pieces(range(tokenizers.src.vocab_size))
        self._tgt_pieces = tokenizers.tgt.pieces(range(tokenizers.tgt.vocab_size))
        self._tgt_ids = {piece: token for token, piece in enumerate(self._tgt_pieces)}

    def search(self, tasks: Sequence[Task], options: SearchOptions, batch_tokens: int) -> list[list[Hypothesis]]:
        """The `n_best` best translations that CTranslate2 finds of each source, best first.

        Limits of length are the same for all that CTranslate2 decodes at once, so sentences with the same go together.
        """
        rules = Rules(options, [len(task.sentence) for task in tasks], [task.prefix for task in tasks])
        together: dict[tuple[int, int, bool], list[int]] = defaultdict(list)
        for i, task in enumerate(tasks):
            together[rules.limits[i], rules.shortest[i], bool(task.prefix)].append(i)
        outputs: dict[int, list[tuple[int, ...]]] = {}
        for (limit, shortest, _), group in together.items():
            found = self._translate([tasks[i] for i in group], options, (limit, shortest), batch_tokens)
            outputs.update(zip(group, found, strict=True))
        candidates = [(tasks[i].sentence, output) for i in range(len(tasks)) for output in outputs[i]]
        scored = iter(self.score(candidates, batch_tokens))
        return [_best([(output, next(scored)) for output in outputs[i]], options) for i in range(len(tasks))]

    def score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], batch_tokens: int) -> list[list[float]]:
        """Log-probabilities of each target's tokens and of its end token; source and target without special tokens."""
        if not pairs:
            return []
        sources = [[self._src_pieces[token] for token in src] for src, _ in pairs]
        targets = [[self._tgt_pieces[token] for token in tgt] for _, tgt in pairs]
        try:
            results = self._translator.score_batch(
                sources, targets, max_batch_size=batch_tokens, batch_type="tokens", max_input_length=0
            )
        except (RuntimeError, ValueError) as error:
            raise _failure(error) from error
        return [list(result.log_probs) for result in results]

    def _translate(
        self, tasks: Sequence[Task], options: SearchOptions, lengths: tuple[int, int], batch_tokens: int
    ) -> list[list[tuple[int, ...]]]:
        """The outputs that CTranslate2 finds for sources with the same longest and shortest output."""
        (limit, shortest), has_prefix = lengths, bool(tasks[0].prefix)
        never = [[piece] for piece in (self._tgt_pieces[PAD_ID], self._tgt_pieces[BOS_ID])]
        forbidden = [[self._tgt_pieces[token] for token in sequence] for sequence in options.forbidden]
        try:
            results = self._translator.translate_batch(
                [[self._src_pieces[token] for token in task.sentence] for task in tasks],
                target_prefix=[[self._tgt_pieces[t] for t in task.prefix] for task in tasks] if has_prefix else None,
                beam_size=options.beam_size,
                patience=PATIENCE if options.beam_size > 1 else 1.0,
                # With a prefix, CTranslate2's order is not ours: see the head of this file.
                num_hypotheses=options.beam_size if has_prefix else options.n_best,
                length_penalty=0.0 if options.length_penalty == "none" else options.length_alpha,
                no_repeat_ngram_size=options.no_repeat_ngram,
                disable_unk=True,
                suppress_sequences=never + forbidden,
                max_input_length=0,
                max_decoding_length=limit,
                min_decoding_length=shortest,
                return_end_token=True,  # so that it counts as a token of the length, as in ours
                return_scores=True,
                max_batch_size=batch_tokens,
                batch_type="tokens",
            )
        except (RuntimeError, ValueError) as error:
            raise _failure(error) from error
        return [self._outputs(result.hypotheses, limit) for result in results]

    def _outputs(self, hypotheses: Sequence[Sequence[str]], limit: int) -> list[tuple[int, ...]]:
        """The tokens of each hypothesis, once each; one that was stopped at the limit ends there."""
        outputs = [[self._tgt_ids[piece] for piece in hypothesis] for hypothesis in hypotheses]
        ended = [output[:-1] if output[-1:] == [EOS_ID] else output[: limit - 1] for output in outputs]
        return list(dict.fromkeys(map(tuple, ended)))


def _best(candidates: Sequence[tuple[tuple[int, ...], list[float]]], options: SearchOptions) -> list[Hypothesis]:
    """The best of scored outputs, best first."""
    hypotheses = []
    for tokens, log_probs in candidates:
        log_prob = math.fsum(log_probs)
        penalty = length_penalty(len(log_probs), options.length_penalty, options.length_alpha)
        hypotheses.append(Hypothesis(list(tokens), log_prob / penalty, log_prob, log_probs))
    finite = [hypothesis for hypothesis in hypotheses if math.isfinite(hypothesis.log_prob)]
    return sorted(finite, key=lambda hypothesis: -hypothesis.score)[: options.n_best]


class CTranslate2Translator(Translator):
    """A translator that searches with CTranslate2."""

    def __init__(
        self,
        engine: CTranslate2Engine,
        tokenizers: Tokenizers,
        decode: DecodeRecipe,
        *,
        max_positions: int,
        unicode_form: UnicodeForm,
        reverse_target: bool = False,
        max_tokens: int = USUAL_MAX_TOKENS,
    ) -> None:
        """Raises UserError that names all search options which CTranslate2 cannot honour."""
        refuse_options(decode)
        super().__init__(
            None,
            tokenizers,
            decode,
            max_positions=max_positions,
            unicode_form=unicode_form,
            device=torch.device("cpu"),
            reverse_target=reverse_target,
            max_tokens=max_tokens,
        )
        self._engine = engine

    @classmethod
    def load(
        cls,
        path: str | Path,
        device: str = "auto",
        precision: EnginePrecision = "auto",
        decode: DecodeRecipe | None = None,
        ensemble: Sequence[str | Path] = (),
    ) -> CTranslate2Translator:
        """As `Translator.load`; the model is converted once, and the conversion kept inside its directory.

        precision: `auto` takes bf16 where CTranslate2 computes it on the device, else fp32; int8 rounds the weights.
        Raises UserError where CTranslate2 is missing, and for options that it cannot honour, all of them at once.
        """
        place = choose_device(device)
        own = read_model_facts(find_model(Path(path))).decode
        options = own if decode is None else decode.over(own)
        refuse_options(options, ensemble, precision, place)
        conversion = find_conversion(Path(path))
        tokenizers = Tokenizers.load(conversion.model)
        return cls(
            CTranslate2Engine(conversion.directory, tokenizers, place, compute_type(precision, place)),
            tokenizers,
            options,
            max_positions=conversion.recipe.max_positions,
            unicode_form=cast(UnicodeForm, conversion.facts.unicode_form),
            reverse_target=conversion.facts.reverse_target,
            max_tokens=conversion.facts.max_tokens,
        )

    def _search(self, tasks: Sequence[Task], options: SearchOptions) -> list[list[Hypothesis]]:
        """Leave all to CTranslate2, which makes its own batches."""
        if any(task.required for task in tasks):
            raise UserError(
                "--engine ctranslate2 cannot see to required phrases; leave them out, or use --engine torch"
            )
        tagged = [task._replace(sentence=[*self._tag, *task.sentence]) for task in tasks]
        found = self._engine.search(tagged, options, self._batching.tokens)
        return [[self._as_read(hypothesis) for hypothesis in hypotheses] for hypotheses in found]


def refuse_options(
    decode: DecodeRecipe,
    ensemble: Sequence[str | Path] = (),
    precision: EnginePrecision = "auto",
    device: torch.device | None = None,
) -> None:
    """Raise UserError that names all that CTranslate2 cannot honour, if there is anything; without device, anywhere."""
    problems = []
    if decode.length_penalty == "gnmt" and decode.length_alpha:
        problems.append(
            f"length penalty 'gnmt' with alpha {decode.length_alpha:g} (it divides by n^alpha: give "
            "--length-penalty power, or none)"
        )
    if decode.sampling:
        problems.append("sampling (its draws depend on more than seed and line)")
    if decode.num_groups > 1:
        problems.append("groups of the beam")
    if decode.bias:
        problems.append("a bias of words")
    if decode.require:
        problems.append("required phrases")
    if decode.shortlist is not None:
        problems.append("a shortlist (decode.shortlist, --shortlist)")
    if decode.alignments:
        problems.append("alignments (they are read from our attention)")
    if ensemble:
        problems.append("an ensemble (it holds one model)")
    if device is not None and compute_type(precision, device) not in _supported_types(device):
        possible = [own for own, name in _COMPUTE_TYPES.items() if name in _supported_types(device)]
        problems.append(f"precision {precision} (on this {device.type} it computes {', '.join(possible)})")
    if problems:
        raise UserError(f"--engine ctranslate2 cannot honour {'; '.join(problems)}; change that, or use --engine torch")


def compute_type(precision: EnginePrecision, device: torch.device) -> str:
    """CTranslate2's name of a precision, whether or not it computes it on the device."""
    if precision == "auto":
        return "bfloat16" if "bfloat16" in _supported_types(device) else "float32"
    return _COMPUTE_TYPES[precision]


def _supported_types(device: torch.device) -> set[str]:
    supported: set[str] = load_package("ctranslate2").get_supported_compute_types(device.type, device.index or 0)
    return supported


def _failure(error: Exception) -> UserError:
    detail = " ".join(str(error).split())
    return UserError(f"CTranslate2 failed: {detail}; the model and its options must fit it; try --engine torch")
