"""Beam search and sampling, their constraints and batches."""
