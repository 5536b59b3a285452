"""Training: loss, optimiser, schedule, validation and the loop that joins them."""
