"""Packed sentences without padding, and padded rows for attention."""
