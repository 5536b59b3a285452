"""What becomes of memory that torch frees on a CPU."""

from __future__ import annotations

import ctypes

# The options of mallopt(3), as <malloc.h> of glibc numbers them, and what they are set to.
_OPTIONS = {
    -1: (1 << 31) - 1,  # M_TRIM_THRESHOLD: give nothing back
    -2: 64 << 20,  # M_TOP_PAD: take much at a time
    -3: 32 << 20,  # M_MMAP_THRESHOLD: the most that it can be; what is larger still comes and goes by itself
    -8: 1,  # M_ARENA_MAX: what the thread of the backward pass frees, the other can use
}


def keep_freed_memory() -> None:
    """Let the C library keep what is freed for the next who asks; only glibc can, elsewhere this does nothing.

    An update takes and frees its activations. Each page that comes from the system anew is cleared and mapped first: of
    the Multi30k model's updates on two cores of a Xeon that was a tenth of the time.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    for option, value in _OPTIONS.items():
        mallopt(option, value)
