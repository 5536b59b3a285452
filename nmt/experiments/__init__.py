"""Experiments: recipe variants with several seeds, and their comparison."""
