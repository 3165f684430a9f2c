"""Memory that was freed, but that the C library keeps for later."""

import ctypes
from contextlib import suppress


def return_freed_memory() -> None:
    """Return freed memory to the system, if the C library can (glibc). Otherwise it would keep half a gigabyte after a
    model was loaded, and 40 MB for every 64 embedded passages, whose different lengths fragment it.
    """
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
