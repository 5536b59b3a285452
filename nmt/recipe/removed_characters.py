"""Characters that normalization removes or replaces with spaces, as ranges of a regular expression."""

INVISIBLE = "\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff"
"""Soft hyphen, zero-width space, direction marks, word joiner, invisible operators, byte order mark. The zero-width
joiner and non-joiner are kept, because Persian, Hindi and emoji need them."""

CONTROL = "\x00-\x1f\x7f-\x9f"
"""Control characters, which become spaces."""
