"""Memory for a comparison: every call finds its results' pages ready. Knows malloc; knows nothing of programs."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

#: Parameters of glibc's mallopt, see malloc.h, and values: one heap for all threads, and the most that it may keep.
_ONE_HEAP = {-8: 1}
_KEEP = {-3: (1 << 31) - 1, -1: (1 << 31) - 1}
#: What keeps as much as glibc comes to by itself.
_KEEP_LITTLE = {-3: 32 << 20, -1: 64 << 20}
#: Bytes of a page.
_PAGE = 4096
#: The size up to which glibc keeps freed memory by itself.
_SMALL = 128 << 10
#: Bytes that aligning a result may take, and those by which a piece is larger than that.
_HEADER, _SLACK = 256, 1 << 18


@contextlib.contextmanager
def one_heap() -> Iterator[None]:
    """While it lasts, threads that start share one heap, and it keeps what is freed. Nothing where the C library is not
    glibc.

    By itself glibc has a heap for each of some threads. From which of them a result comes depends on the thread that
    starts the call; whether that heap gives it back to the system, so that the next call pays for new pages, on what
    else lies there: of two sides with the same code one took 9 ms, the other 21. Threads that have ended hand theirs
    on, so this is to be entered before any starts.
    """
    glibc = _glibc()
    if glibc is None:
        yield
        return
    _set(glibc, _ONE_HEAP | _KEEP)
    try:
        yield
    finally:
        _set(glibc, _KEEP_LITTLE)


class Room:
    """Free pieces of memory, one for each of some results, whose pages the system has given already.

    Each is a little larger than its result, for what else may come to lie there, and ends before a piece that stays.
    """

    def __init__(self, sizes: Sequence[int]):
        self._glibc = _glibc()
        self._sizes = [size + _HEADER for size in sizes if size > _SMALL]
        if self._glibc is not None:
            pieces = [(self._glibc.malloc(size + _SLACK), self._glibc.malloc(1)) for size in self._sizes]
            for piece, _ in pieces:
                self._glibc.free(piece)
            self.prepare()

    def prepare(self) -> None:
        """See to it that the next results need no new pages."""
        if self._glibc is None:
            return
        pieces = [(self._glibc.malloc(size), size) for size in self._sizes]
        for address, size in pieces:
            np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))[::_PAGE] = 0
        for address, _ in pieces:
            self._glibc.free(address)


def _set(glibc: ctypes.CDLL, options: Mapping[int, int]) -> None:
    for option, value in options.items():
        glibc.mallopt(option, value)


def _glibc() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    if library is None or not hasattr(library, "gnu_get_libc_version"):
        return None
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
    return library
