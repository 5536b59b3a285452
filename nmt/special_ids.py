"""Ids that every tokenizer of this project gives its special tokens."""

PAD_ID, UNK_ID, BOS_ID, EOS_ID = 0, 1, 2, 3
