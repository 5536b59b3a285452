"""Benchmarks of training and translation speed, run on the production code."""
