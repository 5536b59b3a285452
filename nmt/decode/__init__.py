"""Translation and scoring of text."""
