"""Input and output of `nmt translate`: files, pipes, formats, and the translation job."""
