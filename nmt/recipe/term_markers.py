"""The reserved tokens around glossary terms in the source of models trained with `train.glossary_markup`."""

TERM_MARKERS = ("<term-source>", "<term-target>", "<term-end>")
"""User symbols of the tokenizer, in the order of a marked term: before its words, before and after its translation."""
