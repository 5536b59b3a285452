"""The model: tensors in, tensors out; it knows nothing of text or files."""
