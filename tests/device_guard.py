"""A device guard for CUDA in torch builds without CUDA."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch


def install_device_guard() -> None:
    """Let a torch build without CUDA select the device `cuda`, with no effect.

    `_ensureCUDADeviceGuardSet` replaces a guard that counts no devices with a no-op guard, but CPU builds have no
    guard at all. Register one that returns 0 from all methods first, for torch to replace. Call this before the first
    backward pass, in which autograd starts a thread per device.
    """
    library = Path(torch.__file__).parent / "lib" / "libc10.so"
    if torch.cuda.is_available() or not library.exists():
        return
    registry = (ctypes.c_void_p * 2).in_dll(ctypes.CDLL(str(library)), "_ZN3c104impl26device_guard_impl_registryE")
    if registry[1] is None:
        zero = ctypes.CFUNCTYPE(ctypes.c_int64)(lambda: 0)
        methods = (ctypes.c_void_p * 64)(*[ctypes.cast(zero, ctypes.c_void_p).value] * 64)
        guard = (ctypes.c_void_p * 1)(ctypes.addressof(methods))
        registry[1] = ctypes.addressof(guard)
        torch._C._ensureCUDADeviceGuardSet()
        assert registry[1] != ctypes.addressof(guard), "torch did not replace the guard"
