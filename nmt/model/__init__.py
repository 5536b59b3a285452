"""The Transformer model: tensors in, tensors out."""
