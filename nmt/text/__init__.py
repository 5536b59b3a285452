"""Text: lines of files, normalization and cleaning, the subword tokenizer."""
