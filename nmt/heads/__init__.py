"""Attention heads: how much each contributes, what it attends to, and models with fewer of them."""
