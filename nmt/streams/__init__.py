"""Input and output of `nmt translate`: files, pipes and formats."""
