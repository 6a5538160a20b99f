"""Registers kernels with XLA as custom calls, and says how many threads may run one. Knows nothing of what a kernel
computes."""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import functools
import hashlib
import os
import platform
import re
import struct
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lanax._errors import LanaxError, UnsupportedJaxError
from lanax._runtime.jit import Compiled, compile_module
from lanax._target import FRESH, host

#: XLA's FFI version that handler.ll follows; XLA accepts older minor versions than its own.
_MAJOR, _MINOR = 0, 3

#: The file that knows a processor, by Python's name for it.
_PROCESSORS = {"x86_64": "x86", "amd64": "x86", "aarch64": "arm64", "arm64": "arm64"}

#: What XLA calls; an attribute of the call says which kernel it means.
TARGET = "lanax_kernel"

_lock = threading.RLock()


@dataclasses.dataclass(frozen=True)
class Descriptor:
    """What the handler must know of a kernel.

    A kernel is `void (ptr buffers, i64 begin, i64 end, i64 axis_size, ptr scratch)`. `buffers` points to pointers to
    the data of the arguments, then of the results. The kernel runs the examples [begin, end), where `begin` is a
    multiple of `lanes`, and so is `end` but in the last chunk.

    Attributes:
      args, rets: numbers of arguments and results.
      axis_arg, axis_dim: an argument that has the batch axis, and where.
      lanes: examples in one step.
      scratch: bytes that each thread needs; they are aligned to 64 bytes.
      chunk: examples that a thread claims at a time; 0 for automatic.
      threads: most threads to use; 0 for as many as XLA's pool has.
      grain: least number of examples worth another thread.
      parts: chunks for each thread, where the chunk is automatic.
    """

    args: int
    rets: int
    axis_arg: int
    axis_dim: int
    lanes: int
    scratch: int = 0
    chunk: int = 0
    threads: int = 0
    grain: int = 1
    parts: int = 32

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            least = 1 if name in ("args", "lanes", "grain", "parts") else 0
            if not least <= value < 1 << 62:
                raise ValueError(f"`{name}` of a kernel must be at least {least}, got {value}")
        if self.axis_arg >= self.args:
            raise ValueError(f"`axis_arg` of a kernel must be one of its {self.args} arguments, got {self.axis_arg}")

    def pack(self, kernel_address: int) -> bytes:
        """The bytes that handler.ll reads as `%descriptor`."""
        axis = self.axis_arg, self.axis_dim
        schedule = self.lanes, self.chunk, self.threads, self.grain, self.parts
        return struct.pack("=11q", kernel_address, self.args, self.rets, self.scratch, *axis, *schedule)


class _Record(ctypes.Structure):
    """What kernels.ll knows as `%kernel`."""

    _fields_ = (("number", ctypes.c_int64), ("references", ctypes.c_int64), ("next", ctypes.c_void_p),
                ("descriptor", ctypes.c_byte * 88))


class Loaded:
    """A kernel that XLA can be told to call by its number, for as long as this object lives.

    Executables of XLA that call it keep it for themselves; it is freed when neither they nor this object are left.
    """

    def __init__(self, number: int, record: _Record, code: Compiled):
        self.number = number
        self.code = code
        weakref.finalize(self, _dropped.append, (record, code)).atexit = False

    def __reduce__(self) -> Any:
        raise LanaxError(
            "an executable that calls kernels of lanax cannot be serialized: the kernels are in this process alone. To "
            "start fast elsewhere, compile again with JAX's compilation cache and lanax's, which keep both on disk; to "
            "ship a program, use `jax.export`, whose programs hold no kernels.")


_loaded: weakref.WeakValueDictionary[int, Loaded] = weakref.WeakValueDictionary()
# Kernels whose `Loaded` is gone, which executables may still call. A finaliser may run anywhere, so it adds to a list
# and takes no lock.
_dropped: collections.deque[tuple[_Record, Compiled]] = collections.deque()


def load(identity: str, kernel: str, code: Compiled, descriptor: Descriptor) -> Loaded:
    """The function `kernel` of some machine code as one that XLA can be told to call.

    Args:
      identity: names what it computes and how, in every process: the same identity gives the same kernel.
      kernel: the function.
      code: where it is.
      descriptor: how to call it.
    """
    # Not 0, which the handler takes for none.
    number = int.from_bytes(hashlib.sha256(f"{identity}\0{descriptor}".encode()).digest()[:8], "big", signed=True) or 1
    with _lock:
        free_dropped()
        found = _loaded.get(number)
        if found is None:
            record = _Record(number, 0, None)
            packed = descriptor.pack(code.address(kernel))
            ctypes.memmove(ctypes.addressof(record) + _Record.descriptor.offset, packed, len(packed))
            _function("lanax_add", None)(ctypes.addressof(record))
            found = _loaded[number] = Loaded(number, record, code)
        return found


def free_dropped() -> int:
    """Free the kernels that nothing can call any more; how many are left that executables alone keep."""
    with _lock:
        for _ in range(len(_dropped)):
            record, code = _dropped.popleft()
            if not _function("lanax_remove", ctypes.c_int)(ctypes.addressof(record)):
                _dropped.append((record, code))
        return len(_dropped)


def call(loaded: Loaded, shapes: Sequence[jax.ShapeDtypeStruct], args: Sequence[Any]) -> Sequence[Any]:
    """XLA's custom call of a kernel, which must live until XLA has compiled it."""
    return jax.ffi.ffi_call(TARGET, shapes)(*args, kernel=np.int64(loaded.number))


def pool_threads() -> int:
    """The threads of XLA's pool that kernels use: as many as there are cores, or as NPROC says. The pool has more where
    there are more devices."""
    given = os.environ.get("NPROC", "").strip()
    return max(1, int(given) if re.fullmatch(r"\d+", given) else host().cores)


@functools.cache
def _routine() -> Compiled:
    """The routine that all kernels share, registered with XLA; it is never unloaded."""
    routine = compile_module(_handler_text(platform.machine(), sys.platform), host(), "the handler")
    ctypes.c_int64.from_address(routine.address("lanax_cores")).value = pool_threads()
    state = {"type_id": routine.address("lanax_state_type"), "type_info": routine.address("lanax_state_info")}
    stages = {stage: routine.address(f"lanax_{stage}") for stage in ("instantiate", "execute")}
    jax.ffi.register_ffi_type(TARGET, _capsules(state), platform="cpu")
    jax.ffi.register_ffi_target(TARGET, _capsules(stages), platform="cpu")
    return routine


def _handler_text(machine: str, system: str) -> str:
    """The routine's LLVM text for a processor and a system, both by Python's names for them."""
    processor = _PROCESSORS.get(machine.lower(), "other")
    pages = "linux" if system == "linux" else "other"
    text = _text("handler.ll", "kernels.ll", "threads.ll", f"processor_{processor}.ll", f"pages_{pages}.ll")
    return f"{text}@fresh_bytes = private constant i64 {FRESH}\n"


def _capsules(addresses: dict[str, int]) -> Any:
    return {name: jax.ffi.pycapsule(address) for name, address in addresses.items()}


@functools.cache
def _function(name: str, result: Any) -> Callable[[int], Any]:
    """A function of the routine that takes a kernel's record."""
    return ctypes.CFUNCTYPE(result, ctypes.c_void_p)(_routine().address(name))


def _text(*names: str) -> str:
    folder = resources.files("lanax._runtime")
    return "\n".join((folder / name).read_text() for name in names)


def _check_version(include_dir: str) -> None:
    """Raises where jaxlib's FFI is not one that handler.ll can serve."""
    header = Path(include_dir, "xla", "ffi", "api", "c_api.h")
    found = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", header.read_text() if header.exists() else ""))
    if int(found.get("MAJOR", -1)) != _MAJOR or int(found.get("MINOR", -1)) < _MINOR:
        version = f"version {found['MAJOR']}.{found['MINOR']}" if len(found) == 2 else f"no version in {header}"
        raise UnsupportedJaxError(
            f"lanax needs version {_MAJOR}.{_MINOR} or a later {_MAJOR}.x of XLA's foreign function interface, but "
            f"jax {jax.__version__} has {version}; install a version of jax that lanax's README names"
        )


_check_version(jax.ffi.include_dir())
