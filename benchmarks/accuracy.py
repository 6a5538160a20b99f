"""Largest error in units in the last place (ULP), and cycles per value, of every function in `lanax._math`, beside the
error of XLA's function on this machine.

    python benchmarks/accuracy.py [names ...] [--quick]

float32 is checked against NumPy in float64 (in long double where there are two arguments) at millions of points,
float64 against mpmath at thousands. Cycles are those of a loop over values in the first-level cache, 16 lanes of
float32 or 8 of float64 at once; the length of a cycle is measured.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import pathlib
import sys
import time
from collections.abc import Callable, Iterator

import jax
import mpmath
import numpy as np
import scipy.special
from jax import lax
from llvmlite import ir
from rich.console import Console
from rich.table import Table

from lanax._llvm import types as t
from lanax._math import error, exponential, gamma, hyperbolic, inverse, logarithm, power, trigonometric

sys.path.append(str(pathlib.Path(__file__).parents[1] / "tests" / "run"))
from math_harness import Compiled, compile_module, mp_ulp_error, ulp_errors

INF = float("inf")
Range = tuple[float, float]
#: the largest error that the documentation allows
LIMIT = 4.0


@dataclasses.dataclass(frozen=True)
class Row:
    """How to check one function.

    Attributes:
      function: the lane function.
      reference: the same for NumPy arrays, evaluated in more digits than float32 has.
      exact: the same for mpmath numbers.
      xla: the same in JAX; None where there is none.
      domain: for each argument, from where to where floats are taken at random, all exponents alike.
      cores: boxes (a range for each argument) in which numbers are taken at random, all alike.
    """

    function: Callable[..., ir.Value]
    reference: Callable[..., np.ndarray]
    exact: Callable[..., mpmath.mpf]
    xla: Callable[..., jax.Array] | None
    domain: tuple[Range, ...] = ((-INF, INF),)
    cores: tuple[tuple[Range, ...], ...] = (((-1.0, 1.0),), ((-10.0, 10.0),))

    @property
    def arity(self) -> int:
        """Number of arguments."""
        return len(self.domain)


def _mp_cbrt(x: mpmath.mpf) -> mpmath.mpf:
    return mpmath.sign(x) * mpmath.cbrt(abs(x))


def _mp_pow(x: mpmath.mpf, y: mpmath.mpf) -> mpmath.mpf:
    power_log = y * mpmath.log(x)
    return mpmath.exp(power_log) if abs(power_log) < 1000 else mpmath.inf if power_log > 0 else mpmath.mpf(0)


POSITIVE = ((0.0, INF),)
WIDE = (((-1.0, 1.0),), ((-87.0, 88.0),), ((-700.0, 700.0),))
TURNS = (((-1.0, 1.0),), ((-7.0, 7.0),), ((-1e5, 1e5),))
BELOW_1 = (((-1.0, 1.0),), (((-1.0, 1.0),), ((0.9, 1.0),)))
GAMMA = (((0.5, 4.0),), ((0.0, 100.0),))

FUNCTIONS = {
    "exp": Row(exponential.exp, np.exp, mpmath.exp, lax.exp, cores=WIDE),
    "exp2": Row(exponential.exp2, np.exp2, lambda x: mpmath.mpf(2) ** x, lax.exp2, cores=WIDE),
    "expm1": Row(exponential.expm1, np.expm1, mpmath.expm1, lax.expm1, cores=WIDE),
    "logistic": Row(exponential.logistic, scipy.special.expit, lambda x: 1 / (1 + mpmath.exp(-x)), lax.logistic,
                    cores=(((-1.0, 1.0),), ((-80.0, 40.0),))),
    "log": Row(logarithm.log, np.log, mpmath.log, lax.log, POSITIVE, (((0.5, 2.0),), ((0.0, 100.0),))),
    "log1p": Row(logarithm.log1p, np.log1p, mpmath.log1p, lax.log1p, ((-1.0, INF),),
                 (((-0.5, 1.0),), ((-1.0, 100.0),))),
    "pow": Row(power.pow, np.power, _mp_pow, lax.pow, ((0.0, INF), (-INF, INF)),
               (((0.1, 10.0), (-30.0, 30.0)), ((0.7, 1.4), (-240.0, 240.0)), ((0.99, 1.01), (-7e4, 7e4)))),
    "cbrt": Row(power.cbrt, np.cbrt, _mp_cbrt, lax.cbrt),
    "rsqrt": Row(power.rsqrt, lambda x: 1 / np.sqrt(x), lambda x: 1 / mpmath.sqrt(x), lax.rsqrt, POSITIVE,
                 (((0.25, 4.0),),)),
    "sinh": Row(hyperbolic.sinh, np.sinh, mpmath.sinh, lax.sinh, cores=WIDE),
    "cosh": Row(hyperbolic.cosh, np.cosh, mpmath.cosh, lax.cosh, cores=WIDE),
    "tanh": Row(hyperbolic.tanh, np.tanh, mpmath.tanh, lax.tanh),
    "asinh": Row(hyperbolic.asinh, np.arcsinh, mpmath.asinh, lax.asinh),
    "acosh": Row(hyperbolic.acosh, np.arccosh, mpmath.acosh, lax.acosh, ((1.0, INF),), (((1.0, 1.5),), ((1.0, 9.0),))),
    "atanh": Row(hyperbolic.atanh, np.arctanh, mpmath.atanh, lax.atanh, ((-1.0, 1.0),), (((-1.0, 1.0),),)),
    "sin": Row(trigonometric.sin, np.sin, mpmath.sin, lax.sin, cores=TURNS),
    "cos": Row(trigonometric.cos, np.cos, mpmath.cos, lax.cos, cores=TURNS),
    "tan": Row(trigonometric.tan, np.tan, mpmath.tan, lax.tan, cores=TURNS),
    "asin": Row(inverse.asin, np.arcsin, mpmath.asin, lax.asin, *BELOW_1),
    "acos": Row(inverse.acos, np.arccos, mpmath.acos, lax.acos, *BELOW_1),
    "atan": Row(inverse.atan, np.arctan, mpmath.atan, lax.atan),
    "atan2": Row(inverse.atan2, np.arctan2, mpmath.atan2, lax.atan2, ((-INF, INF), (-INF, INF)),
                 (((-1.0, 1.0), (-1.0, 1.0)), ((1.0, 1.01), (1.0, 1.01)))),
    "erf": Row(error.erf, scipy.special.erf, mpmath.erf, lax.erf, cores=(((-1.0, 1.0),), ((-4.0, 4.0),))),
    "erfc": Row(error.erfc, scipy.special.erfc, mpmath.erfc, lax.erfc, ((-5.0, 9.19),),
                (((-1.0, 1.0),), ((0.0, 9.19),), ((0.0, 26.5),))),
    "erf_inv": Row(error.erf_inv, scipy.special.erfinv, mpmath.erfinv, lax.erf_inv, *BELOW_1),
    # left of 0 they have zeros, near which only the absolute error is small
    "lgamma": Row(gamma.lgamma, scipy.special.gammaln, mpmath.loggamma, lax.lgamma, POSITIVE, GAMMA),
    "digamma": Row(gamma.digamma, scipy.special.digamma, mpmath.digamma, lax.digamma, POSITIVE, GAMMA),
}


# -- samples -------------------------------------------------------------------------------------------------------
def any_float(rng: np.random.Generator, dtype: np.dtype, range_: Range, count: int) -> np.ndarray:
    """Normal floats in a range, all bit patterns alike."""
    integer = np.dtype(f"i{dtype.itemsize}")
    limit = np.finfo(dtype).max
    low, high = (np.clip(end, -limit, limit).astype(dtype) for end in range_)
    # bits in the order of the floats: negative ones count down from -1
    first, last = (int(np.copysign(1, end)) * int(np.abs(end).view(integer)) for end in (low, high))
    ordered = rng.integers(first, last, count, endpoint=True)
    x = np.copysign(np.abs(ordered).astype(integer).view(dtype), np.where(ordered < 0, -1, 1).astype(dtype))
    return np.copysign(np.maximum(np.abs(x), np.finfo(dtype).tiny), x)


def samples(row: Row, dtype: np.dtype, count: int) -> Iterator[list[np.ndarray]]:
    """One batch from the whole domain and one from each core, `count` points each."""
    rng = np.random.default_rng(0)
    yield [any_float(rng, dtype, range_, count) for range_ in row.domain]
    for core in row.cores:
        yield [rng.uniform(low, high, count).astype(dtype) for low, high in core]


# -- measurements --------------------------------------------------------------------------------------------------
@dataclasses.dataclass
class Worst:
    """The largest error so far, and where it was."""

    error: float = -1.0
    at: tuple[float, ...] = ()

    def update(self, errors: np.ndarray, args: list[np.ndarray]) -> None:
        """Takes another batch into account."""
        i = int(errors.argmax())
        if errors[i] > self.error:
            self.error, self.at = float(errors[i]), tuple(float(x[i]) for x in args)

    def __str__(self) -> str:
        colour = "red" if self.error > LIMIT else "default"
        return f"[{colour}]{self.error:.2f}[/] at {', '.join(f'{x:.9g}' for x in self.at)}" if self.at else "-"


def errors_of(row: Row, got: np.ndarray, args: list[np.ndarray]) -> np.ndarray:
    """ULP errors of one batch of results."""
    if got.dtype == np.float32:
        wide = np.float64 if row.arity == 1 else np.longdouble
        with np.errstate(all="ignore"):
            return ulp_errors(got, row.reference(*(x.astype(wide) for x in args)))
    with mpmath.workprec(140):
        exact = (row.exact(*map(mpmath.mpf, point)) for point in zip(*(x.tolist() for x in args), strict=True))
        return np.array([mp_ulp_error(y, e) for y, e in zip(got.tolist(), exact, strict=True)])


def accuracy(row: Row, dtype: np.dtype, count: int) -> tuple[Worst, Worst]:
    """The largest errors of our function and of XLA's."""
    compiled = Compiled(row.function, dtype, lanes=8, arity=row.arity)
    xla = jax.jit(row.xla) if row.xla is not None else None
    ours, theirs = Worst(), Worst()
    for args in samples(row, dtype, count):
        ours.update(errors_of(row, compiled(*args), args), args)
        if xla is not None:
            theirs.update(errors_of(row, np.asarray(xla(*args)), args), args)
    return ours, theirs


def nanoseconds(function: Callable[..., ir.Value], dtype: np.dtype, lanes: int, args: list[np.ndarray]) -> float:
    """Nanoseconds per value of a loop over `args`, which fit in the first-level cache."""
    count, repeats = args[0].size, 200
    compiled = Compiled(function, dtype, lanes, len(args), wrap=count // lanes)
    out = np.empty_like(args[0])
    best = INF
    for _ in range(15):
        start = time.perf_counter_ns()
        compiled.entry(out.ctypes.data, *(x.ctypes.data for x in args), repeats * count // lanes)
        best = min(best, (time.perf_counter_ns() - start) / (repeats * count))
    return best


def nanoseconds_per_cycle() -> float:
    """From a loop whose every instruction waits for the one before and takes a cycle."""
    steps = 100_000
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(t.I64, [t.I64]), "chain")
    entry, loop, done = (function.append_basic_block() for _ in range(3))
    builder = ir.IRBuilder(entry)
    builder.branch(loop)
    builder.position_at_end(loop)
    step, start = builder.phi(t.I64), builder.phi(t.I64)
    x: ir.Value = start
    for _ in range(64):
        x = builder.add(x, builder.lshr(x, ir.Constant(t.I64, 7)))
    after = builder.add(step, ir.Constant(t.I64, 1))
    for phi, first, next_ in ((step, ir.Constant(t.I64, 0), after), (start, function.args[0], x)):
        phi.add_incoming(first, entry)
        phi.add_incoming(next_, loop)
    builder.cbranch(builder.icmp_signed("<", after, ir.Constant(t.I64, steps)), loop, done)
    builder.position_at_end(done)
    builder.ret(x)
    engine, _ = compile_module(module)
    chain = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(engine.get_function_address("chain"))
    best = INF
    for _ in range(10):
        begin = time.perf_counter_ns()
        chain(1)
        best = min(best, time.perf_counter_ns() - begin)
    return best / (128 * steps)


def cycles(row: Row, dtype: np.dtype, cycle: float) -> float:
    """Cycles per value, on numbers of the first core."""
    rng = np.random.default_rng(0)
    args = [rng.uniform(low, high, 1024).astype(dtype) for low, high in row.cores[0]]
    return nanoseconds(row.function, dtype, 64 // dtype.itemsize, args) / cycle


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="functions to measure; all by default")
    parser.add_argument("--quick", action="store_true", help="a hundredth of the points")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    cycle = nanoseconds_per_cycle()
    table = Table("function", "dtype", "largest error (ULP)", "XLA's", "cycles", title=f"{1 / cycle:.2f} GHz")
    failed = False
    for name in options.names or FUNCTIONS:
        row = FUNCTIONS[name]
        for dtype, count in ((np.dtype(np.float32), 2_000_000), (np.dtype(np.float64), 10_000)):
            ours, theirs = accuracy(row, dtype, count // 100 if options.quick else count)
            failed |= ours.error > LIMIT
            table.add_row(name, dtype.name, str(ours), str(theirs), f"{cycles(row, dtype, cycle):.2f}")
    Console().print(table)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
