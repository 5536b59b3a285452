"""Experiments of many runs: variants of a recipe, each with several seeds, and what differs between them."""
