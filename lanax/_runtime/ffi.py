"""Registers kernels with XLA as custom calls, and says how many threads may run one. Knows nothing of what a kernel
computes."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import os
import platform
import re
import struct
import threading
from importlib import resources
from pathlib import Path

import jax

from lanax._errors import UnsupportedJaxError
from lanax._runtime.jit import Compiled, compile_module, link
from lanax._target import host

#: XLA's FFI version that handler.ll follows; XLA accepts older minor versions than its own.
_MAJOR, _MINOR = 0, 3

#: The file that knows a processor, by Python's name for it.
_PROCESSORS = {"x86_64": "x86", "amd64": "x86", "aarch64": "arm64", "arm64": "arm64"}

_lock = threading.RLock()

# XLA keeps a target for as long as the process lives, so what a target needs is never let go.
_registered: dict[str, tuple[Compiled, object]] = {}


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

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            least = 1 if name in ("args", "lanes", "grain") else 0
            if not least <= value < 1 << 62:
                raise ValueError(f"`{name}` of a kernel must be at least {least}, got {value}")
        if self.axis_arg >= self.args:
            raise ValueError(f"`axis_arg` of a kernel must be one of its {self.args} arguments, got {self.axis_arg}")

    def pack(self, kernel_address: int) -> bytes:
        """The bytes that handler.ll reads as `%descriptor`."""
        axis = self.axis_arg, self.axis_dim
        schedule = self.lanes, self.chunk, self.threads, self.grain
        return struct.pack("=10q", kernel_address, self.args, self.rets, self.scratch, *axis, *schedule)


def register(name: str, kernel_address: int, descriptor: Descriptor, owner: object = None) -> None:
    """Makes a kernel the target `name` of XLA's custom calls on CPU, for as long as the process lives.

    `owner` is what keeps the kernel's code alive (a `Compiled`). Raises ValueError where `name` is taken.
    """
    with _lock:
        if name in _registered:
            raise ValueError(f"a custom call target named `{name}` is registered already")
        handler = link(_thunk().object_code, _thunk().symbols, host())
        packed = descriptor.pack(kernel_address)
        ctypes.memmove(handler.address("lanax_descriptor"), packed, len(packed))
        ctypes.c_void_p.from_address(handler.address("lanax_routine")).value = _routine().address("lanax_execute")
        capsule = jax.ffi.pycapsule(handler.address("lanax_handler"))
        jax.ffi.register_ffi_target(name, capsule, platform="cpu")
        _registered[name] = handler, owner


def pool_threads() -> int:
    """The threads of the pool that XLA's CPU client runs its work on, as far as Python can tell."""
    try:
        devices = len(jax.local_devices(backend="cpu"))
    except RuntimeError:  # JAX_PLATFORMS leaves the CPU out
        devices = 1
    given = os.environ.get("NPROC", "").strip()
    return max(int(given) if re.fullmatch(r"\d+", given) else host().cores, devices)


@functools.cache
def _routine() -> Compiled:
    """The routine that all handlers share."""
    processor = _PROCESSORS.get(platform.machine().lower(), "other")
    return compile_module(_text("handler.ll", "threads.ll", f"processor_{processor}.ll"), host())


@functools.cache
def _thunk() -> Compiled:
    return compile_module(_text("thunk.ll"), host())


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
