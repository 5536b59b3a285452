"""Decoder state during search: KV cache, cross-attention cache and their masks."""
