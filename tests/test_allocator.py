"""Memory that is freed comes back without the system: counted by its page faults."""

import platform
import subprocess
import sys

import pytest

ROUNDS, TENSORS, BYTES = 10, 8, 8 << 20
PROGRAM = f"""
import resource, torch
from nmt.allocator import keep_freed_memory
keep_freed_memory()
tensors = [torch.ones({BYTES // 4}) for _ in range({TENSORS})]
del tensors
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({ROUNDS}):
    [torch.ones({BYTES // 4}) for _ in range({TENSORS})]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep memory")
def test_memory_is_kept() -> None:
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    # Without it, there are more than in a whole round.
    assert int(found.stdout) < TENSORS * BYTES // 4096 // 2
