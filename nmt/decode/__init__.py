"""Decoding: search for translations, score given ones, and carry lines of text through both."""
