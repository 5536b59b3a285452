"""Scores of translations, and the report of a run."""
