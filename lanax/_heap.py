"""Memory that the process keeps for its next results. Knows malloc; knows nothing of programs.

It is XLA that allocates results, by malloc. From some size on, glibc asks the system for such memory and gives it back
at each call, and the system clears every page when it is first written. glibc raises that size by itself when a program
frees a larger piece, up to 32 MiB, and keeps twice as much; here both ends are set further out.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import warnings

#: Parameters of glibc's mallopt, see malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
#: The size from which on glibc asks the system for memory, and gives it back, each time: the end of its own adapting.
FRESH = 32 << 20
#: Free bytes that are kept where nobody says how many: twice what glibc comes to by itself.
AUTOMATIC = 128 << 20
_LARGEST = (1 << 31) - 1

_asked: int | None = None


def keep(count: int | None) -> None:
    """Have malloc keep up to `count` free bytes, at most 2 GiB, instead of giving them back to the system. 0 goes back
    to glibc's own ways; None to those until `has_large_results` is called next, and to `AUTOMATIC` from then on."""
    global _asked
    changed, _asked = _asked != count, count
    if count and _glibc() is None:
        warnings.warn("lanax.config.keep_memory has no effect: it needs glibc 2.35 or newer.", stacklevel=4)
    if changed:
        _set(count or 0)


def has_large_results() -> None:
    """Say that the process runs programs with results of `FRESH` bytes or more."""
    _set(kept())


def kept() -> int:
    """The free bytes that the process keeps where it has large results."""
    if _glibc() is None:
        return 0
    if _asked is None:
        return 0 if _is_tuned_by_the_environment() else AUTOMATIC
    return _asked


def _set(count: int) -> None:
    glibc = _glibc()
    if glibc is not None:
        glibc.mallopt(_MMAP_THRESHOLD, min(max(count, FRESH), _LARGEST))
        glibc.mallopt(_TRIM_THRESHOLD, min(max(count, 2 * FRESH), _LARGEST))


@functools.cache
def _glibc() -> ctypes.CDLL | None:
    """The C library, where it is a glibc whose ends can be set."""
    library = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    version = getattr(library, "gnu_get_libc_version", None)
    if version is None:
        return None
    version.restype = ctypes.c_char_p
    return library if tuple(map(int, version().decode().split(".")[:2])) >= (2, 35) else None


def _is_tuned_by_the_environment() -> bool:
    return "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "") or any(n.startswith("MALLOC_") for n in os.environ)
