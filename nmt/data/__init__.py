"""Data: from parallel text to batches of token ids; knows text and numbers, never a model."""
