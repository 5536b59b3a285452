"""Proof by real processes that training survives whatever happens to it; started by `tools/torture`.

`workshop` starts commands and keeps their folders, `faults` makes things go wrong inside a command, `evidence` reads
what a run left behind, and the other modules are the cases.
"""
