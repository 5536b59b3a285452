"""Diagnostics of text and training: leaked test sentences, replayed updates, learning-rate range tests."""
