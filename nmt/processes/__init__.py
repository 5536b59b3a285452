"""Multi-process execution: process group, failure detection, worker pools, run locks, memory, interruption."""
