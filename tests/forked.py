"""Processes that tests fork from a server which has imported what they need; importing it takes seconds for each."""

import multiprocessing

MODULES = (
    "nmt.train.trainer",
    "torch._dynamo",  # imported by the optimizer
    "nmt.streams.torch_workers",
    "nmt.export.engine",
    "nmt.cli.translate",
)
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(list(MODULES))
