"""Pruning of attention heads.

All attention layers of a stack keep the same number of heads (`model.num_encoder_heads`, `model.num_heads`), and heads
keep their dimension (`model.d_head`). Both engines support such models. CTranslate2 does not support a different number
for each layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from nmt.alignment.attention import AlignmentAttention
from nmt.checkpoint import LoadedModel, model_files, model_tensors
from nmt.heads.masks import AttentionId, Head, attentions
from nmt.logs import warn
from nmt.model.transformer import Transformer
from nmt.recipe import DecodeRecipe, ModelRecipe
from nmt.storage.sealed import write_directory
from nmt.text.tokenizer import Tokenizers

# The heads that each attention layer keeps, ascending.
KeptHeads = Mapping[AttentionId, Sequence[int]]


def most_important(importance: Mapping[Head, float], encoder: int, decoder: int) -> dict[AttentionId, list[int]]:
    """Return the most important heads of each attention layer, ascending; ties go to lower indices.

    encoder: heads to keep in each encoder layer; decoder: in each self- and cross-attention layer of the decoder
    """
    by_attention: dict[AttentionId, list[Head]] = {}
    for head in sorted(importance, key=lambda head: (-importance[head], head)):
        by_attention.setdefault(head.attention, []).append(head)
    return {
        key: sorted(head.index for head in heads[: encoder if key.kind == "encoder" else decoder])
        for key, heads in sorted(by_attention.items())
    }


def prune(model: Transformer, kept: KeptHeads) -> Transformer:
    """Return a model with only these heads; all attention layers of a stack must keep the same number."""
    recipe = model.recipe
    (encoder_heads,) = {len(heads) for key, heads in kept.items() if key.kind == "encoder"}
    (num_heads,) = {len(heads) for key, heads in kept.items() if key.kind != "encoder"}
    sizes = {"num_heads": num_heads, "num_encoder_heads": encoder_heads, "d_head": recipe.head_width}
    vocab = model.src_embedding.weight.shape[0], model.tgt_embedding.weight.shape[0]
    pruned = Transformer(ModelRecipe.model_validate(recipe.model_dump() | sizes), *vocab)
    pruned.to(model.tgt_embedding.weight.device)
    parameters = dict(model.named_parameters())
    for key, attention in attentions(model).items():
        prefix = next(name for name, module in model.named_modules() if module is attention)
        index = torch.tensor(kept[key])
        for name, tensor in attention.named_parameters():
            parameters[f"{prefix}.{name}"] = torch.nn.Parameter(_select(name, tensor, attention.num_heads, index))
    pruned.load_state_dict(parameters, strict=False)
    return pruned.eval()


def _select(name: str, tensor: Tensor, num_heads: int, index: Tensor) -> Tensor:
    """Select heads of a parameter of an attention layer: columns of W_O, rows of the other projections."""
    index = index.to(tensor.device)
    match name.split("."):
        case ["out", "weight"]:
            columns: Tensor = tensor.unflatten(1, (num_heads, -1))
            return columns.index_select(1, index).flatten(1)
        case ["qkv" | "kv" | "q", _]:
            parts = {"qkv": 3, "kv": 2, "q": 1}[name.partition(".")[0]]
            rows: Tensor = tensor.unflatten(0, (parts, num_heads, -1))
            return rows.index_select(1, index).flatten(0, 2)
        case _:  # the bias of W_O and the vectors of relative positions, which all heads share
            return tensor


def write_pruned(loaded: LoadedModel, kept: KeptHeads, out: Path) -> Transformer:
    """Write the pruned model to a new directory, and return the model. Raises UserError if `out` exists.

    `decode.alignment_heads` is renumbered; warns if some of these heads are removed.
    """
    pruned = prune(loaded.transformer, kept)
    kinds = dict.fromkeys(key.kind for key in kept)
    origin = {kind: [list(heads) for key, heads in kept.items() if key.kind == kind] for kind in kinds}
    metadata = replace(
        loaded.metadata,
        decode=_renumber_alignment_heads(loaded, kept),
        origin={**loaded.metadata.origin, "kept_heads": origin},
    )
    tokenizer_files = Tokenizers.load(loaded.directory).files()
    write_directory(out, model_files(pruned.recipe, model_tensors(pruned), tokenizer_files, metadata))
    return pruned


def _renumber_alignment_heads(loaded: LoadedModel, kept: KeptHeads) -> DecodeRecipe:
    """Return the search options with renumbered heads for alignments, or with all heads if none of them is kept.

    Warns if some of these heads are removed.
    """
    decode = loaded.metadata.decode
    if not decode.alignment_heads:
        return decode
    layer = AlignmentAttention.from_recipe(decode, loaded.model.recipe).layer
    heads = kept[AttentionId("cross", layer)]
    numbers = tuple(new for new, old in enumerate(heads) if old in decode.alignment_heads)
    if removed := sorted(set(decode.alignment_heads) - set(heads)):
        used = "the remaining ones of decode.alignment_heads" if numbers else "all heads of that layer"
        plural = len(removed) > 1
        warn(
            f"head{'s' * plural} {', '.join(map(str, removed))} of decoder layer {layer} aligned words "
            f"(decode.alignment_heads) and {'were' if plural else 'was'} removed; alignments now use {used}; choose "
            "heads of the pruned model with `nmt align --choose --save-model`, or remove fewer"
        )
    return decode.model_copy(update={"alignment_heads": numbers})
