"""CPU cores of this process; not in `parallel`, because importing multiprocessing takes 10 ms."""

import os

from nmt.processes.environment import local_world_size


def num_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores_per_process() -> int:
    """Return the number of CPU cores for each process of the job on this machine, at least 1."""
    return max(1, num_cores() // local_world_size())
