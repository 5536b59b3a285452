"""Translators and scorers of text."""
