"""N-best lists: features, tuning of their weights, and the choice."""
