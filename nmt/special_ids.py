"""Ids of the special tokens, the same for all tokenizers."""

PAD_ID, UNK_ID, BOS_ID, EOS_ID = 0, 1, 2, 3
