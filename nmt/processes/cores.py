"""CPU cores of this process, in a separate module because importing multiprocessing takes 10 ms."""

import os


def num_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
