"""Memory that was freed: a server that has read large bodies is no larger than before."""

import subprocess
import sys

SCRIPT = """
from vllm_obs.server.freed_memory import return_large_memory

def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096

return_large_memory()
before = resident_bytes()
for _ in range(3):
    pieces = [b"x" * (20 << 20), b"y" * (25 << 20), b"z" * (2 << 20)]
    small = [b"s" * 1000 for _ in range(100)]
    del pieces
print(resident_bytes() - before)
"""


def test_large_pieces_go_back_to_the_system_with_small_ones_behind_them() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) < 4 << 20
