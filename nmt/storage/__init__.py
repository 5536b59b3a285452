"""Model and run directories: atomic writes, verification, metadata."""
