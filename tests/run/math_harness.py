"""Compiles a lane function into a loop over numpy arrays, flushing subnormals as kernels do. Knows no JAX."""

from __future__ import annotations

import ctypes
import dataclasses
import math
import platform
from collections.abc import Callable

import mpmath
import numpy as np
from llvmlite import ir

from lanax import _target
from lanax._llvm import types as t
from lanax._llvm.lanes import Lanes
from lanax._runtime import jit

LaneFunction = Callable[..., ir.Value]
Range = tuple[float, float]
X86 = platform.machine() in ("x86_64", "AMD64")
FLUSHES = X86 or _target.host().is_arm


def _flush_subnormals(b: Lanes) -> Callable[[], None]:
    """Switches subnormals off; the result restores what was. Does nothing where the processor is of another kind."""
    if _target.host().is_arm:
        return _flush_on_arm(b)
    return _flush_on_x86(b) if X86 else lambda: None


def _flush_on_x86(b: Lanes) -> Callable[[], None]:
    """In MXCSR: flush to zero, denormals are zero, all exceptions masked."""
    store, load = (ir.Function(b.ir.module, ir.FunctionType(t.VOID, [t.PTR]), f"llvm.x86.sse.{name}")
                   for name in ("stmxcsr", "ldmxcsr"))
    saved, slot = b.ir.alloca(t.I32), b.ir.alloca(t.I32)
    b.ir.call(store, [saved])
    b.ir.store(ir.Constant(t.I32, 0x9FC0), slot)
    b.ir.call(load, [slot])
    return lambda: b.ir.call(load, [saved])


def _flush_on_arm(b: Lanes) -> Callable[[], None]:
    """In FPCR: bit 24, of operands and results."""
    get = ir.Function(b.ir.module, ir.FunctionType(t.I64, []), "llvm.aarch64.get.fpcr")
    put = ir.Function(b.ir.module, ir.FunctionType(t.VOID, [t.I64]), "llvm.aarch64.set.fpcr")
    saved = b.ir.call(get, [])
    b.ir.call(put, [b.or_(saved, 1 << 24)])
    return lambda: b.ir.call(put, [saved])


def _loop_body(b: Lanes, function: LaneFunction, pointers: list[ir.Value], offset: ir.Value, kind: ir.Type) -> None:
    type_ = ir.VectorType(kind, b.lanes) if b.lanes > 1 else kind
    align = t.bit_width(kind) // 8
    at = [b.ir.gep(p, [offset], source_etype=kind) for p in pointers]
    values = [b.ir.load(p, align=align, typ=type_) for p in at[1:]]
    b.ir.store(b.splat(function(b, *values)), at[0], align=align)


def build_module(function: LaneFunction, dtype: np.dtype, lanes: int, arity: int, wrap: int = 0,
                 fast: bool = False) -> ir.Module:
    """`void run(out, in..., steps)`: `steps` times `lanes` values; from the first again after each `wrap` steps."""
    kind = t.lane_type(np.dtype(dtype)).lane
    module = ir.Module()
    module.triple = _target.host().triple
    main = ir.Function(module, ir.FunctionType(t.VOID, [t.PTR] * (arity + 1) + [t.I64]), "run")
    for argument in main.args[:-1]:
        argument.add_attribute("noalias")
    entry, loop, done = (main.append_basic_block(name) for name in ("entry", "loop", "done"))
    b = Lanes(ir.IRBuilder(entry), lanes)
    b.fast = fast
    restore = _flush_subnormals(b)
    b.ir.branch(loop)
    b.ir.position_at_end(loop)
    step = b.ir.phi(t.I64)
    step.add_incoming(ir.Constant(t.I64, 0), entry)
    offset = b.mul(b.and_(step, wrap - 1) if wrap else step, lanes)
    _loop_body(b, function, main.args[:-1], offset, kind)
    after = b.add(step, 1)
    step.add_incoming(after, b.ir.block)
    b.ir.cbranch(b.lt(after, main.args[-1]), loop, done)
    b.ir.position_at_end(done)
    restore()
    b.ir.ret_void()
    return module


def compile_module(module: ir.Module) -> jit.Compiled:
    """The machine code of `module`, as kernels are compiled and linked."""
    target = _target.host()
    symbols, code = jit.compile_object(str(module), target)
    return jit.link(code, symbols, target)


class Compiled:
    """A lane function over arrays of one dtype: `Compiled(f, "float32", lanes=8)(x)`; `fast`: of the faster tier."""

    def __init__(self, function: LaneFunction, dtype: object, lanes: int = 1, arity: int = 1, wrap: int = 0,
                 fast: bool = False):
        self.dtype = np.dtype(dtype)  # type: ignore[arg-type]
        self.lanes = lanes
        self._module = build_module(function, self.dtype, lanes, arity, wrap, fast)
        self._code = compile_module(self._module)
        prototype = ctypes.CFUNCTYPE(None, *([ctypes.c_void_p] * (arity + 1)), ctypes.c_int64)
        self.entry = prototype(self._code.address("run"))

    @property
    def assembly(self) -> str:
        """The assembly of the loop and what is around it."""
        return jit.assembly(str(self._module), _target.host())

    def __call__(self, *arrays: np.ndarray) -> np.ndarray:
        """The function of each element; arrays are padded with ones to whole steps."""
        count = arrays[0].size
        padded = max(1, -(-count // self.lanes)) * self.lanes
        inputs = [np.ones(padded, self.dtype) for _ in arrays]
        for destination, source in zip(inputs, arrays, strict=True):
            destination[:count] = source
        out = np.empty(padded, self.dtype)
        self.entry(out.ctypes.data, *(x.ctypes.data for x in inputs), padded // self.lanes)
        return out[:count]


def _units(exact: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The last place of each number, in a format of fewer digits: of float64 by its exponent bits, which is fast."""
    info = np.finfo(dtype)
    if exact.dtype == np.float64:
        powers = (exact.view(np.int64) & (0x7FF << 52)).view(np.float64)
        return np.maximum(powers, 2.0**info.minexp) * 2.0**-info.nmant
    _, exponent = np.frexp(np.where(np.isfinite(exact) & (exact != 0), exact, 1))
    return np.ldexp(np.ones((), exact.dtype), np.maximum(exponent - 1, info.minexp) - info.nmant)


def ulp_errors(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Errors in units in the last place of the exact result (float64 or long double); 0 where both are equally
    special, infinite where only one is. Exact results that are subnormal count as what they are or as zero."""
    dtype = got.dtype
    with np.errstate(all="ignore"):
        error = (np.abs(got - exact) / _units(exact, dtype)).astype(np.float64)
        strange = ~(np.isfinite(got) & np.isfinite(exact))
        if strange.any():
            y, e = got[strange], exact[strange]
            same = (y == e.astype(dtype)) | (np.isnan(y) & np.isnan(e))
            error[strange] = np.where(same, 0.0, np.inf)
        flushed = (np.abs(exact) < np.finfo(dtype).tiny) & (got == 0)
    error[flushed] = 0.0
    return error


def mp_ulp_error(got: float, exact: mpmath.mpf) -> float:
    """The same for one float64 and an mpmath number."""
    if mpmath.isnan(exact) or math.isnan(got):
        return 0.0 if mpmath.isnan(exact) and math.isnan(got) else math.inf
    rounded = float(exact)
    if got == rounded or (got == 0 and abs(exact) < 2.0**-1022):
        return 0.0 if math.isinf(got) or got == 0 else float(abs(got - exact) / _unit(exact))
    return math.inf if math.isinf(got) or math.isinf(rounded) else float(abs(got - exact) / _unit(exact))


def _unit(exact: mpmath.mpf) -> mpmath.mpf:
    exponent = mpmath.frexp(exact)[1] - 1 if exact else -1022
    return mpmath.ldexp(1, int(max(exponent, -1022)) - 52)


def largest_error(got: np.ndarray, exact: list[mpmath.mpf]) -> float:
    """In ULP of the dtype of `got`."""
    if got.dtype == np.float32:
        return float(ulp_errors(got, np.array([float(e) for e in exact])).max())
    return max(mp_ulp_error(y, e) for y, e in zip(got.tolist(), exact, strict=True))


def assert_same(got: np.ndarray, want: np.ndarray) -> None:
    """Equal in all bits, but that any NaN is equal to any other."""
    np.testing.assert_array_equal(got, want)
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(want)[numbers])


def any_bits(dtype: np.dtype, seed: int) -> np.ndarray:
    """Floats of all kinds: any bits, numbers of moderate size, zeros, infinities, NaN."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 256, 2000 * dtype.itemsize, np.uint8).view(dtype)
    moderate = rng.normal(0, 3, 1000).astype(dtype)
    return np.concatenate([bits, moderate, np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan], dtype)])


@dataclasses.dataclass(frozen=True)
class Case:
    """A function, its reference, where to sample it evenly, over which exponents of its argument too, and its limits.

    `powers` is a range of binary exponents; the samples are `origin` plus or minus such powers. `limits` are the
    largest errors in float32 and float64, `domain` is where there is a result.
    """

    function: Callable[..., ir.Value]
    exact: Callable[..., mpmath.mpf]
    even: tuple[Range, ...]
    powers: Range | None = None
    origin: float = 0.0
    signs: tuple[int, ...] = (1, -1)
    limits: tuple[float, float] = (1.0, 2.0)
    domain: Range = (-math.inf, math.inf)

    def __str__(self) -> str:
        return self.function.__name__

    def samples(self, dtype: np.dtype, count: int) -> np.ndarray:
        """Points of the argument, half of them even and half spread over exponents."""
        rng = np.random.default_rng(1)
        parts = [rng.uniform(low, high, count) for low, high in self.even]
        if self.powers is not None:
            low, high = np.clip(self.powers, np.finfo(dtype).minexp, np.finfo(dtype).maxexp)
            parts += [self.origin + sign * 2.0 ** rng.uniform(low, high - 1e-6, count) for sign in self.signs]
        x = np.concatenate(parts).astype(dtype)
        return x[np.abs(x) >= np.finfo(dtype).tiny]


def neighbours(x: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """The floats that many places away from `x`, away from zero; 0 and the largest number are not passed."""
    integer = np.dtype(f"i{x.dtype.itemsize}")
    largest = int(np.finfo(x.dtype).max.view(integer))
    bits = np.clip(np.abs(x).view(integer) + steps.astype(integer), 0, largest)
    return np.copysign(bits.astype(integer).view(x.dtype), x)


def hard(dtype: np.dtype, domain: Range, rng: np.random.Generator, count: int) -> np.ndarray:
    """Numbers next to multiples of pi/2 and ln 2, to powers of 2, to where ways part, and to the ends of a domain."""
    info = np.finfo(dtype)
    turns = np.floor(2.0 ** rng.uniform(0, 60, count)) * (math.pi / 2)
    halvings = rng.integers(1, 2048, count) * (math.log(2) / 2)
    powers = 2.0 ** rng.integers(info.minexp, info.maxexp, count)
    middle = rng.choice([0.5, 1.0, 1.5, 2.0, 3.0, math.sqrt(0.5), math.sqrt(2.0), 2.0**17, 2.0**24], count)
    ends = rng.choice([end for end in domain if np.isfinite(end)] or [1.0], count)
    points = np.concatenate([turns, halvings, powers, middle, ends])
    points = neighbours((points * rng.choice([-1.0, 1.0], points.size)).astype(dtype), rng.integers(-4, 5, points.size))
    return points[(points >= domain[0]) & (points <= domain[1]) & (np.abs(points) >= info.tiny)]
