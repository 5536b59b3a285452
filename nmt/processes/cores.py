"""CPU cores of this process. A module of its own, as multiprocessing takes 10 ms to import."""

import os


def num_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
