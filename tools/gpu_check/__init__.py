"""Everything worth knowing about nmt on one GPU, in stages of a few minutes; started by `tools/gpu-check`.

`__main__`, `driver`, `packages`, `outcome` and `report` need the standard library alone, so that a machine without the
project's dependencies gets a clear answer. Each other module is a stage and runs in a process of its own.
"""
