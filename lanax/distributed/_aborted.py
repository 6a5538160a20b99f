"""A line on standard error where this process is aborted: JAX does that as soon as process 0 is gone, from a thread of
its own that Python cannot stop. What writes the line is machine code, since Python may not run by then."""

from __future__ import annotations

import ctypes
import signal
import sys

from lanax._runtime.jit import Compiled, compile_object, link
from lanax._target import host

#: Writes the text, and does what would have been done without it, or ends the process.
_HANDLER = """
declare i64 @write(i32, ptr, i64)
declare ptr @signal(i32, ptr)
declare i32 @raise(i32)
declare void @_exit(i32)

@text = private constant [{size} x i8] c"{text}"
@before = global ptr null

define void @handler(i32 %number) {{
  %written = call i64 @write(i32 2, ptr @text, i64 {size})
  {end}
  %before = load ptr, ptr @before
  %ours = call ptr @signal(i32 %number, ptr %before)
  %again = call i32 @raise(i32 %number)
  ret void
}}
"""


class Farewell:
    """Has a text written when this process is aborted, until it is closed; with a `status` the process ends with that.
    """

    def __init__(self, text: str, status: int | None = None):
        self._code: Compiled | None = None
        if sys.platform == "win32":
            return
        data = f"{text}\n".encode()
        escaped = "".join(f"\\{byte:02x}" for byte in data)
        end = "" if status is None else f"call void @_exit(i32 {status})"
        symbols, code = compile_object(_HANDLER.format(size=len(data), text=escaped, end=end), host())
        self._code = link(code, symbols, host())
        self._before = _set_handler(self._code.address("handler"))
        ctypes.c_void_p.from_address(self._code.address("before")).value = self._before

    def keep(self) -> None:
        """Have it outlive Python."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))

    def close(self) -> None:
        """Put back what was there."""
        if self._code is not None:
            _set_handler(self._before)
            self._code = None


def _set_handler(address: int | None) -> int | None:
    """The address of the handler that was there; None for the default."""
    of_libc = ctypes.CDLL(None).signal
    of_libc.restype, of_libc.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
    return of_libc(signal.SIGABRT, address)
