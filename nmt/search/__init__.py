"""Beam search and sampling: the loop, and what steers it."""
