"""Plots of training curves, experiment scores and attention."""
