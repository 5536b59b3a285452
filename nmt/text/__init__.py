"""Text: lines of files, cleaning, subword tokenization, trees."""
