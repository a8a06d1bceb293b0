"""What the C library does with memory that a server has freed: large pieces go back to the system at once."""

import ctypes

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""glibc's names for them (malloc.h)."""
LARGE_BYTES = 1 << 20
KEPT_BYTES = 8 << 20
"""What the end of the heap may keep, so that it is not given back and asked for again with every reply."""


def return_large_memory() -> None:
    """Have pieces of LARGE_BYTES and more be mappings of their own, which end when they are freed. glibc only.

    Left alone, glibc keeps all pieces up to the size of the largest that it has seen freed, and twice that much
    beside: after one large body a server would hold up to 64 MiB more for good.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(MMAP_THRESHOLD, LARGE_BYTES)
        set_option(TRIM_THRESHOLD, KEPT_BYTES)
