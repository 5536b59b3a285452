"""Training data: preparation, token store, epoch plans, batches, and leak detection."""
