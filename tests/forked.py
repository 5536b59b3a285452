"""Processes of tests, from a fork server with the modules that they need, because importing them takes seconds."""

import multiprocessing
import socket

MODULES = (
    "nmt.train.trainer",
    "torch._dynamo",  # imported by DistributedDataParallel
    "nmt.streams.torch_workers",
    "nmt.export.engine",
    "nmt.cli.translate",
)
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(list(MODULES))


def job_variables(size: int) -> dict[str, str]:
    """Return environment variables, except the rank, of a job with this number of processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
