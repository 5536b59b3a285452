"""Measuring speed: training and translation as they really are, with the clock on the work alone."""
