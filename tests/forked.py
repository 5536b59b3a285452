"""A fork server for tests: it preloads the modules that the processes need, because importing them takes seconds."""

import multiprocessing

MODULES = (
    "nmt.train.trainer",
    "torch._dynamo",  # imported by DistributedDataParallel
    "nmt.streams.torch_workers",
    "nmt.export.engine",
    "nmt.cli.translate",
)
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(list(MODULES))
