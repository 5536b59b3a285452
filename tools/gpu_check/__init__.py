"""Checks of nmt on one GPU, in stages of a few minutes each; started by `tools/gpu-check`.

`__main__` and the modules that it imports need only the standard library, so missing dependencies are reported clearly.
Each `*_stage` module is a stage and runs in its own process.
"""
