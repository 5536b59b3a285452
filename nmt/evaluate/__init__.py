"""Metrics, significance tests and run reports."""
