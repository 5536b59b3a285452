"""Text classification with the encoder: data, training, inference. Translation does not need this package."""
