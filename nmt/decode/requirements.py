"""Checks of a recipe's decoding options before training."""

from __future__ import annotations

from contextlib import suppress

from nmt.data.fingerprint import read_report
from nmt.data.reused_tokenizers import reused_tokenizers, tokenizer_sources
from nmt.decode.context import ContextEncoder
from nmt.decode.language_model import require_fusible
from nmt.decode.line_encoder import LineEncoder
from nmt.decode.shortlist import Shortlist
from nmt.errors import UserError
from nmt.recipe import DecodeRecipe, Recipe
from nmt.search.trees import TreeTokens
from nmt.storage.run_folder import find_model
from nmt.storage.sealed import file_sha256, manifest_digest
from nmt.text.tokenizer import Tokenizers


def require_decoding_inputs(recipe: Recipe) -> None:
    """Raise UserError, before preparing text, for a missing shortlist or an unusable language model.

    If tokenizers are reused, also raises UserError for options that do not fit them; see `require_decoding`.
    """
    decode = recipe.decode
    if decode.shortlist is not None and not decode.shortlist.is_file():
        wrong = "is not a file" if decode.shortlist.exists() else "does not exist"
        raise UserError(
            f"decode.shortlist {decode.shortlist.absolute()} {wrong}; expected output of `nmt shortlist`; correct the "
            "path"
        )
    if decode.fusion is not None:
        try:
            require_fusible(decode.fusion, recipe.tgt_lang)
        except UserError as error:
            raise UserError(f"decode.fusion is {decode.fusion.absolute()}: {error}") from error
    is_prepared = read_report(recipe.data_directory) is not None  # prepared text has its own tokenizers
    if not is_prepared and all(path.exists() for path in tokenizer_sources(recipe)):
        tokenizers = reused_tokenizers(recipe)
        if tokenizers is not None:
            require_decoding(recipe, tokenizers)


def require_decoding(recipe: Recipe, tokenizers: Tokenizers) -> None:
    """Raise UserError for options that do not fit the tokenizers, the context or the positions of the model."""
    decode, data = recipe.decode, recipe.data
    context = ContextEncoder(data.context_options, tokenizers, data.unicode_form)
    context.require_supported(decode)
    encoder = LineEncoder(
        tokenizers,
        decode,
        context,
        unicode_form=data.unicode_form,
        max_positions=recipe.model.max_positions,
        max_tokens=data.max_tokens,
        reverse_target=data.reverse_target,
        allows_digits=True,
    )
    encoder.required(())
    for corpus in data.test.values():
        if corpus.tag is not None:
            tokenizers.src.tag_id(corpus.tag)
    if decode.shortlist is not None:
        Shortlist.load(decode.shortlist, tokenizers, (recipe.src_lang, recipe.tgt_lang))
    if decode.trees:
        TreeTokens.find(tokenizers)
    if decode.fusion is not None:
        require_fusible(decode.fusion, recipe.tgt_lang, tokenizers.tgt, reverse_target=data.reverse_target)


def decoding_files(decode: DecodeRecipe) -> dict[str, str]:
    """Return the SHA-256 of the shortlist and of the language model's manifest, by option; omits missing ones."""
    digests = {}
    with suppress(OSError):
        if decode.shortlist is not None:
            digests["decode.shortlist"] = file_sha256(decode.shortlist)
    with suppress(UserError):
        if decode.fusion is not None:
            digests["decode.fusion"] = manifest_digest(find_model(decode.fusion))
    return digests
