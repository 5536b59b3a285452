"""Training data: preparation, token store, epoch plans, and batches."""
