"""Crash tests of training and translation with real processes; started by `tools/torture`.

`sandbox` starts commands and manages their folders, `faults` injects faults into a command, `run_state` reads the files
of a run, and the other modules contain the cases.
"""
