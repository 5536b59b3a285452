"""Text classification with the encoder: labeled examples, training, use. Translation does not need this package."""
