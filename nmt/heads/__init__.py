"""Attention heads: importance, behavior and pruning."""
