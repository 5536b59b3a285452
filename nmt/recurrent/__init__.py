"""The GRU encoder-decoder with attention (Bahdanau et al. 2015), which the Transformer replaced."""
