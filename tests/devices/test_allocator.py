"""Reuse of freed memory, measured by page faults and by the size of the heap."""

import platform
import resource
import subprocess
import sys

import pytest

ROUNDS, BLOCKS, BYTES = 5, 8, 8 << 20
# Calls the C library directly: torch aligns tensors to 64 bytes, which varies the address of the first block and
# the number of rounds until blocks are reused.
LIBC = """
import ctypes, resource
from nmt.devices.allocator import keep_freed_memory
libc = ctypes.CDLL("libc.so.6")
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.memset.restype, libc.memset.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
libc.sbrk.restype, libc.sbrk.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t]
"""
PROGRAM = f"""
PR_SET_THP_DISABLE = 41  # a transparent huge page needs one page fault for 2 MiB
libc.prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)

def write_and_free():
    blocks = [libc.malloc({BYTES}) for _ in range({BLOCKS})]
    for block in blocks:
        libc.memset(block, 1, {BYTES})
    for block in blocks:
        libc.free(block)

KEEP
write_and_free()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({ROUNDS}):
    write_and_free()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
# The blocks are not written, so they need no memory.
LARGE_HEAP = """
keep_freed_memory()
blocks = [libc.malloc(16 << 20) for _ in range(160)]
end = libc.sbrk(0)
for block in blocks:
    libc.free(block)
print(end - libc.sbrk(0))
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="requires glibc"),
]


def output_of(program: str) -> int:
    command = [sys.executable, "-c", LIBC + program]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def count_page_faults(keep: str) -> int:
    """Return the number of page faults after the first round."""
    return output_of(PROGRAM.replace("KEEP", keep))


def test_freed_memory_is_reused() -> None:
    pages_per_round = BLOCKS * BYTES // resource.getpagesize()
    assert count_page_faults("keep_freed_memory()") < pages_per_round // 100
    # Without the option, every round faults again, so the assertion above can fail.
    assert count_page_faults("") > (ROUNDS - 1) * pages_per_round // 2


def test_a_heap_of_more_than_2_gb_does_not_shrink() -> None:
    assert output_of(LARGE_HEAP) == 0
