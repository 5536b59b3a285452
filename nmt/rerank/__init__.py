"""Reranking of n-best lists, and tuning of feature weights."""
