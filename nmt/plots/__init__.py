"""Plots of training curves, learning rates, experiment scores, attention and head removal."""
