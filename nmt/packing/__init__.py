"""Sentences packed end to end, and the rectangles that products of matrices want."""
