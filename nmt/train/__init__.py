"""Training: loss, optimizer, schedule, validation, checkpoints and the training loop."""
