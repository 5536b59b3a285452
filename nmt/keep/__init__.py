"""Preservation of markup, numbers, URLs, e-mail addresses and placeholders in translations."""
