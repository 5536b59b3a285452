"""All metrics of the heads of a model, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from typing import Any

from nmt.checkpoint import LoadedModel
from nmt.decode.translator import Translator
from nmt.evaluate.metrics import Score, make_scorer, tokenizer_of_run
from nmt.evaluate.tables import Table
from nmt.heads.behavior import Behavior, measure_behavior
from nmt.heads.importance import nll_without, sensitivity
from nmt.heads.masks import Head, HeadMasks, all_heads
from nmt.heads.pairs import Pairs
from nmt.heads.pruning import most_important
from nmt.inference.prepacked import prepack
from nmt.logs import progress, warn
from nmt.recipe import DecodeRecipe
from nmt.text.tokenizer import Tokenizers

_CURVE_STEPS = 10

# (Number of removed heads, BLEU) along each curve, from 0 removed heads, by name.
BleuCurves = dict[str, list[tuple[int, float]]]


@dataclass
class Analysis:
    """Metrics of all heads on sentence pairs.

    nll:         negative log-likelihood of the references, per target token
    sensitivity: see `nmt.heads.importance`; the order of removal
    removal:     change in nll when one head is removed
    bleu:        BLEU of the model's translations and its signature, if measured
    bleu_change: change in BLEU when one head is removed, for the measured heads
    """

    num_pairs: int
    nll: float
    sensitivity: dict[Head, float]
    removal: dict[Head, float]
    behavior: dict[Head, Behavior]
    bleu: float | None = None
    signature: str = ""
    bleu_change: dict[Head, float] = field(default_factory=dict)
    curves: BleuCurves = field(default_factory=dict)

    def heads(self) -> list[Head]:
        """Return all heads, the most important first."""
        return sorted(self.sensitivity, key=lambda head: (-self.sensitivity[head], head))

    def to_dict(self) -> dict[str, Any]:
        """Return all values for JSON, unrounded."""
        heads = [
            {
                "attention": head.attention.kind,
                "layer": head.attention.layer,
                "head": head.index,
                "sensitivity": self.sensitivity[head],
                "removal": self.removal[head],
                "bleu_change": self.bleu_change.get(head),
                **asdict(self.behavior[head]),
                "role": self.behavior[head].role,
            }
            for head in self.heads()
        ]
        return {
            "pairs": self.num_pairs,
            "nll": self.nll,
            "bleu": self.bleu,
            "signature": self.signature or None,
            "heads": heads,
            "curves": self.curves,
        }

    def tables(self) -> list[Table]:
        """Return the table of all heads, and one for each BLEU curve."""
        with_bleu = ("BLEU",) if self.bleu_change else ()
        header = ("attention", "layer", "head", "dL/dxi", "removed", *with_bleu, "prev", "same", "next", "dist")
        header += ("bound", "rare", "entropy", "align", "role")
        notes = (
            f"nll {self.nll:.4f} per target token, {self.num_pairs:,} pairs. dL/dxi: absolute gradient of the nll with "
            "respect to the head's mask; removed: change in nll without the head.",
            "prev, same, next: fraction of positions that attend most to this offset; dist: mean distance in tokens;",
            "bound: weight of EOS (source) or BOS (target); rare: fraction that attends most to the rarest token;",
            "entropy: of the weights, in nats; align: F1 of attended tokens against links of a statistical aligner.",
        )
        bleu = (("BLEU", f"{self.bleu:.2f} with all heads, {self.signature}"),) if self.bleu is not None else ()
        rows = tuple(self._row(head) for head in self.heads())
        tables = [Table("", f"lrrrr{'r' * len(with_bleu)}rrrrrrrrl", header, rows, bleu, notes)]
        for name, points in self.curves.items():
            cells = tuple((str(removed), f"{bleu:.2f}") for removed, bleu in points)
            tables.append(Table(name, "rr", ("removed", "BLEU"), cells))
        return tables

    def _row(self, head: Head) -> tuple[str, ...]:
        behavior = self.behavior[head]
        cells = [
            head.attention.kind,
            str(head.attention.layer),
            str(head.index),
            f"{self.sensitivity[head]:.4f}",
            f"{self.removal[head]:+.4f}",
        ]
        if self.bleu_change:
            cells.append(f"{self.bleu_change[head]:+.2f}" if head in self.bleu_change else "")
        for name in ("previous", "same", "next", "distance", "boundary", "rare", "entropy", "alignment"):
            value = getattr(behavior, name)
            cells.append("" if value is None else f"{value:.2f}")
        return (*cells, behavior.role)


class MaskedBleu:
    """BLEU of a model's translations with heads removed, with the search options and the tokenizer of its run."""

    def __init__(
        self, loaded: LoadedModel, tokenizers: Tokenizers, sources: Sequence[str], references: Sequence[str]
    ) -> None:
        metadata = loaded.metadata
        self._model = prepack(deepcopy(loaded.transformer))
        self._masks = HeadMasks(self._model)
        self._translator = Translator(
            self._model,
            tokenizers,
            DecodeRecipe(alignments=False).over(metadata.decode),
            max_positions=loaded.model.recipe.max_positions,
            unicode_form=metadata.unicode_form,
            device=loaded.model.tgt_embedding.weight.device,
            reverse_target=metadata.reverse_target,
            max_tokens=metadata.max_tokens,
            context=metadata.context,
        )
        self._scorer = make_scorer(
            "bleu",
            tgt_lang=metadata.tgt_lang,
            tokenize=tokenizer_of_run(loaded.directory),
            lowercase=tokenizers.tgt.lowercases(),
        )
        self._sources = sources
        self._references = references

    def without(self, heads: Sequence[Head]) -> Score:
        """Return BLEU with these heads removed."""
        with self._masks.removed(heads):
            return self._scorer.score(self._translator.translate(self._sources), [self._references])


def removal_steps(importance: Mapping[Head, float]) -> dict[str, list[list[Head]]]:
    """Return the heads removed at each point of the BLEU curves.

    The first curve removes the least important heads of the model, in steps of a tenth. As pruning does, the others
    remove the same number of heads from each attention layer of the model, the encoder or the decoder.
    """
    ascending = sorted(importance, key=lambda head: (importance[head], head))
    counts = sorted({round(len(ascending) * step / _CURVE_STEPS) for step in range(_CURVE_STEPS)})
    encoder = 1 + max(head.index for head in importance if head.attention.kind == "encoder")
    decoder = 1 + max(head.index for head in importance if head.attention.kind != "encoder")

    def removed(encoder_heads: int, decoder_heads: int) -> list[Head]:
        keep = most_important(importance, encoder_heads, decoder_heads)
        return [head for head in ascending if head.index not in keep[head.attention]]

    return {
        "least important first": [ascending[:count] for count in counts],
        "same number in each attention layer": [
            removed(encoder - less, decoder - less) for less in range(min(encoder, decoder))
        ],
        "same number in each encoder layer": [removed(encoder - less, decoder) for less in range(encoder)],
        "same number in each decoder layer": [removed(encoder, decoder - less) for less in range(decoder)],
    }


def measure_curves(
    bleu: MaskedBleu, importance: Mapping[Head, float], whole: float, advance: Callable[[], None]
) -> BleuCurves:
    """Measure BLEU along the curves of `removal_steps`. whole: BLEU with all heads; advance: called at each point"""
    curves: BleuCurves = {}
    for name, steps in removal_steps(importance).items():
        curves[name] = []
        for heads in steps:
            curves[name].append((len(heads), bleu.without(heads).value if heads else whole))
            advance()
    return curves


def analyze(loaded: LoadedModel, sources: list[str], references: list[str], bleu: int, *, curves: bool) -> Analysis:
    """Measure all heads.

    bleu:   number of heads to remove, one at a time, to measure their effect on BLEU
    curves: whether to measure BLEU along the curves of `removal_steps`
    """
    model = loaded.transformer
    tokenizers = Tokenizers.load(loaded.directory, loaded.metadata.tgt_lang)
    if loaded.metadata.context.size:
        warn("the model was trained with context; its heads are measured on single lines, without context")
    device = model.tgt_embedding.weight.device
    pairs = Pairs.encode(loaded, tokenizers, sources, references)
    measure_bleu = MaskedBleu(loaded, tokenizers, sources, references) if bleu or curves else None
    masks = HeadMasks(model)
    heads = all_heads(model)
    batches = [batch for _, batch in pairs.batches(device)]
    with progress("measuring heads", 3 * len(batches), "batches") as bar:
        importance = sensitivity(model, masks, batches, bar.advance)
        behavior = measure_behavior(model, pairs, device, bar.advance)
        nll, *without = nll_without(model, masks, batches, [[], *([head] for head in heads)], bar.advance)
    removal = {head: value - nll for head, value in zip(heads, without, strict=True)}
    analysis = Analysis(len(sources), nll, importance, removal, behavior)
    if measure_bleu is not None:
        _add_bleu(analysis, measure_bleu, bleu, curves)
    return analysis


def _add_bleu(analysis: Analysis, measure: MaskedBleu, number: int, curves: bool) -> None:
    """Add BLEU with all heads, and without each of the `number` heads that affect the nll most.

    curves: whether to add BLEU along the curves of `removal_steps`
    """
    largest: list[Head] = sorted(analysis.removal, key=lambda head: -abs(analysis.removal[head]))[:number]
    points = sum(map(len, removal_steps(analysis.sensitivity).values())) if curves else 0
    with progress("translating", 1 + len(largest) + points, "translations") as bar:
        whole = measure.without([])
        bar.advance()
        analysis.bleu, analysis.signature = whole.value, whole.signature
        for head in largest:
            analysis.bleu_change[head] = measure.without([head]).value - whole.value
            bar.advance()
        if curves:
            analysis.curves = measure_curves(measure, analysis.sensitivity, whole.value, bar.advance)
