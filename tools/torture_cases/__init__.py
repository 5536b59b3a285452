"""Crash tests of training and translation with real processes; started by `tools/torture`.

`sandbox` starts commands and manages their folders, `child` runs a command with a fault, which `faults` injects,
`run_state` reads the files of a run, and the other modules contain the cases.
"""
