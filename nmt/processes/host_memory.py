"""Memory of the host: what this process uses, and what it can still allocate."""

from __future__ import annotations

import os
from pathlib import Path


def resident_memory() -> int:
    """Return the resident set size of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def free_host_memory(root: Path = Path("/")) -> int | None:
    """Return the minimum of the free bytes of the machine and of this process's control groups; None if unknown.

    `root` holds proc and sys.
    """
    try:
        lines = (root / "proc/meminfo").read_text().split("\n")
    except OSError:
        return None
    free_bytes = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return min(free_bytes + _free_in_control_groups(root), default=None)


def _free_in_control_groups(root: Path) -> list[int]:
    """Return the free bytes of each limited control group (v1, v2) of this process, including inactive page cache."""
    membership = root / "proc/self/cgroup"
    if not membership.exists():
        return []
    free_bytes: list[int] = []
    for line in membership.read_text().split("\n")[:-1]:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # In a container the path may be relative to the host; the group is then `base` itself.
        group = base / path.lstrip("/")
        for folder in [group, *group.parents]:
            if folder.is_relative_to(base):
                free_bytes += _free_in_control_group(folder, *names)
    return free_bytes


def _free_in_control_group(folder: Path, limit: str, usage: str, cache: str) -> list[int]:
    """Return the free bytes of a group, in a list that is empty if the group is not limited or cannot be read."""
    try:
        maximum, used = (folder / limit).read_text().strip(), int((folder / usage).read_text())
        statistics = dict(line.split(" ", 1) for line in (folder / "memory.stat").read_text().split("\n")[:-1])
    except OSError:
        return []
    return [] if maximum == "max" else [int(maximum) - used + int(statistics.get(cache, 0))]
