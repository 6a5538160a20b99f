"""Memory that the process keeps for the next results. Knows malloc; knows nothing of programs."""

from __future__ import annotations

import ctypes
import sys
import warnings

#: Parameters of glibc's mallopt, see malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
#: The size from which on glibc asks the system for memory, and gives it back, each time: the end of its own adapting.
FRESH = 32 << 20
_LARGEST = (1 << 31) - 1


def keep(count: int) -> None:
    """Have malloc keep up to `count` free bytes, at most 2 GiB, instead of giving them back to the system.

    It is XLA that allocates results, by malloc. From 32 MiB on, glibc asks the system for such memory and gives it back
    at each call, and the system clears every page when it is first written. 0 goes back to that.
    """
    options = ((_MMAP_THRESHOLD, max(count, FRESH)), (_TRIM_THRESHOLD, max(count, 2 * FRESH)))
    if not all(_mallopt(option, min(size, _LARGEST)) for option, size in options) and count:
        warnings.warn("lanax.config.keep_memory has no effect: it needs glibc 2.35 or newer.", stacklevel=4)


def _mallopt(option: int, value: int) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    function = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none, or one that does nothing
    return function is not None and function(option, value) == 1
