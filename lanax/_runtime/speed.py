"""What one core of this machine can do, measured once by small kernels: the bounds that a program is compared with."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import time
from collections.abc import Callable

import numpy as np
from llvmlite import ir

from lanax._llvm import types as t
from lanax._llvm.control import Control
from lanax._runtime.jit import Compiled, compile_module
from lanax._target import Target, host

#: Vectors that do not wait for each other: enough to fill two units of five cycles each.
_CHAINS = 12
_TRIPS = 20_000
_REPEATS = 7
#: More than the last-level cache of a core's share.
_STREAM_BYTES = 1 << 26


@dataclasses.dataclass(frozen=True)
class Speed:
    """Of one core, for float32 in full registers.

    Attributes:
      lanes: float32 lanes of a register.
      fmas: vector instructions of a fused multiply-add in a second.
      latency: seconds from one such to the next that waits for it.
      divides: vector divisions in a second.
      bandwidth: bytes in a second to and from memory, by all cores.
    """

    lanes: int
    fmas: float
    latency: float
    divides: float
    bandwidth: float

    @property
    def flops(self) -> float:
        """Floating-point operations in a second."""
        return 2 * self.lanes * self.fmas


@functools.cache
def measured() -> Speed:
    """This machine's speed; takes some tens of milliseconds the first time."""
    target = host()
    lanes = target.native_lanes(32)
    one, many, divides = (_seconds(target, lanes, *what) for what in ((1, False), (_CHAINS, False), (_CHAINS, True)))
    return Speed(lanes, _CHAINS * _TRIPS / many, one / _TRIPS, _CHAINS * _TRIPS / divides, _bandwidth())


def _seconds(target: Target, lanes: int, chains: int, divide: bool) -> float:
    code = _kernel(target, lanes, chains, divide)
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code.address("spin"))
    memory = np.full(lanes * chains + 16, 1.0, np.float32)
    return _best(lambda: run(memory.ctypes.data))


def _best(run: Callable[[], object]) -> float:
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def _kernel(target: Target, lanes: int, chains: int, divide: bool) -> Compiled:
    """`void spin(ptr)`: `_TRIPS` operations on each of some vectors in memory."""
    module = ir.Module(name="speed", context=ir.Context())
    module.triple = target.triple
    function = ir.Function(module, ir.FunctionType(t.VOID, [t.PTR]), "spin")
    b = Control(ir.IRBuilder(function.append_basic_block("entry")), lanes, None)
    vector = ir.VectorType(t.F32, lanes)
    places = [b.ir.gep(function.args[0], [ir.Constant(t.I64, 4 * lanes * i)], source_etype=t.I8) for i in range(chains)]
    start = [b.ir.load(place, typ=vector, align=4) for place in places]
    by = b.ir.load(places[0], typ=vector, align=4)  # 1.0, which LLVM does not know

    def step(_: ir.Value, values: list[ir.Value]) -> list[ir.Value]:
        return [b.div(v, by) if divide else b.fma(v, by, by) for v in values]

    for place, value in zip(places, b.count(_TRIPS, start, step), strict=True):
        b.ir.store(value, place, align=4)
    b.ir.ret_void()
    return compile_module(str(module), target, "the machine's speed")


def _bandwidth() -> float:
    source = np.zeros(_STREAM_BYTES, np.uint8)
    to = np.zeros_like(source)
    source[:] = 1
    return 2 * _STREAM_BYTES / _best(lambda: np.copyto(to, source))
