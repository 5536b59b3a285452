"""Fast inference: prepacked and 8-bit weights, CUDA graphs and their buffers."""
