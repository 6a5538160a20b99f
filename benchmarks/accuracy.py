"""Largest error in units in the last place (ULP), special values, instructions and cycles of every function in
`lanax._math`, beside XLA's function on this machine.

    python benchmarks/accuracy.py [names ...] [--every N] [--points N] [--markdown] [--fast]

float32 functions of one argument are checked at every N-th float32 (`--every 1`: at all, in about an hour) against
NumPy in float64; those of two at samples, against long double. float64 is checked against mpmath at `--points` samples
of each kind: random, and next to what is hard: powers of 2, multiples of pi/2 and of ln 2, ends of domains. Cycles are
those of one core; the length of a cycle is measured. `--markdown` writes `docs/accuracy.md`, with `--fast` only its
section on the faster tier. The exit status is 1 where
an error of lanax exceeds its bound.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import functools
import math
import os
import pathlib
import re
import sys
import time
from collections.abc import Callable, Iterator

if hasattr(os, "sched_setaffinity"):  # before XLA counts the cores
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import jax
import mpmath
import numpy as np
import scipy.special
from jax import lax
from llvmlite import ir
from rich.console import Console
from rich.table import Table

import lanax
from lanax import _target
from lanax._llvm import types as t
from lanax._llvm.lanes import Lanes
from lanax._lowering.lanewise.arithmetic import whole_power
from lanax._math import error, exponential, gamma, hyperbolic, inverse, logarithm, power, trigonometric

sys.path.append(str(pathlib.Path(__file__).parents[1] / "tests" / "run"))
from math_harness import Compiled, compile_module, hard, mp_ulp_error, ulp_errors

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "accuracy.md"
INF, NAN = float("inf"), float("nan")
Range = tuple[float, float]
DTYPES = (np.dtype(np.float32), np.dtype(np.float64))


@dataclasses.dataclass(frozen=True)
class Row:
    """How to check one function.

    Attributes:
      function: the lane function.
      reference: the same for NumPy arrays, evaluated in more digits than float32 has.
      exact: the same for mpmath numbers.
      xla: the same in JAX.
      domain: for each argument, from where to where floats are taken, all exponents alike.
      cores: boxes (a range for each argument) in which numbers are taken at random, all alike.
      limits: the largest errors allowed in float32 and float64.
      fast: whether it is of the faster tier.
    """

    function: Callable[..., ir.Value]
    reference: Callable[..., np.ndarray]
    exact: Callable[..., mpmath.mpf]
    xla: Callable[..., jax.Array]
    domain: tuple[Range, ...] = ((-INF, INF),)
    cores: tuple[tuple[Range, ...], ...] = (((-1.0, 1.0),), ((-10.0, 10.0),))
    limits: tuple[float, float] = (1.0, 2.0)
    fast: bool = False

    @property
    def arity(self) -> int:
        """Number of arguments."""
        return len(self.domain)


def _mp_cbrt(x: mpmath.mpf) -> mpmath.mpf:
    return mpmath.sign(x) * mpmath.cbrt(abs(x))


def _mp_erfc(x: mpmath.mpf) -> mpmath.mpf:
    return mpmath.erfc(x) if abs(x) < 40 else mpmath.mpf(0 if x > 0 else 2)


def _mp_pow(x: mpmath.mpf, y: mpmath.mpf) -> mpmath.mpf:
    power_log = y * mpmath.log(x)
    return mpmath.exp(power_log) if abs(power_log) < 1000 else mpmath.inf if power_log > 0 else mpmath.mpf(0)


def _power(y: float) -> Row:
    """x^y for a constant y, rounded to the dtype of x."""
    rounded = float(np.float32(y))

    def function(b: Lanes, x: ir.Value) -> ir.Value:
        out = power.pow_known(b, x, y if t.bit_width(x.type) == 64 else rounded)
        assert out is not None
        return out

    return Row(function, lambda x: np.power(x, rounded), lambda x: mpmath.power(x, y), lambda x: x**y, POSITIVE,
               (((0.1, 10.0),),))


def _whole_power(n: int, limit: float) -> Row:
    """x^n by products."""

    def function(b: Lanes, x: ir.Value) -> ir.Value:
        return whole_power(b, np.dtype(f"f{t.bit_width(x.type) // 8}"), x, n)

    return Row(function, lambda x: x ** float(n), lambda x: mpmath.power(x, n), lambda x: lax.integer_pow(x, n),
               ((10.0 ** (-30 / abs(n)), 10.0 ** (30 / abs(n))),), (((0.1, 10.0),),), (limit, limit))


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
    "sqrt": Row(lambda b, x: b.sqrt(x), np.sqrt, mpmath.sqrt, lax.sqrt, POSITIVE, (((0.25, 4.0),),), (0.5, 0.5)),
    "rsqrt": Row(power.rsqrt, lambda x: 1 / np.sqrt(x), lambda x: 1 / mpmath.sqrt(x), lax.rsqrt, POSITIVE,
                 (((0.25, 4.0),),)),
    "cbrt": Row(power.cbrt, np.cbrt, _mp_cbrt, lax.cbrt),
    "pow": Row(power.pow, np.power, _mp_pow, lax.pow, ((0.0, INF), (-INF, INF)),
               (((0.1, 10.0), (-30.0, 30.0)), ((0.7, 1.4), (-240.0, 240.0)), ((0.99, 1.01), (-7e4, 7e4)))),
    "x^0.1875": _power(0.1875),
    "x^-0.875": _power(-0.875),
    "x^(-1/3)": _power(-1 / 3),
    "x^-0.5": _power(-0.5),
    "x^3": _whole_power(3, 1.5),
    "x^-2": _whole_power(-2, 2.0),
    "x^10": _whole_power(10, 7.0),
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
    "erfc": Row(error.erfc, scipy.special.erfc, _mp_erfc, lax.erfc, ((-INF, INF),),
                (((-1.0, 1.0),), ((0.0, 9.19),), ((0.0, 26.5),))),
    "erf_inv": Row(error.erf_inv, scipy.special.erfinv, mpmath.erfinv, lax.erf_inv, *BELOW_1),
    # left of 0 they have zeros, near which only the absolute error is small
    "lgamma": Row(gamma.lgamma, scipy.special.gammaln, mpmath.loggamma, lax.lgamma, POSITIVE, GAMMA, (1.0, 4.0)),
    "digamma": Row(gamma.digamma, scipy.special.digamma, mpmath.digamma, lax.digamma, POSITIVE, GAMMA, (1.0, 4.0)),
}


# -- samples -------------------------------------------------------------------------------------------------------
def ordered_ends(dtype: np.dtype, range_: Range) -> tuple[int, int]:
    """The ends of a range as integers in the order of the floats: the bits, negative ones counted down from 0."""
    integer, limit = np.dtype(f"i{dtype.itemsize}"), np.finfo(dtype).max
    low, high = (np.clip(end, -limit, limit).astype(dtype) for end in range_)
    first, last = (int(np.copysign(1, end)) * int(np.abs(end).view(integer)) for end in (low, high))
    return first, last


def floats(dtype: np.dtype, ordered: np.ndarray) -> np.ndarray:
    """The floats of such integers; subnormal ones become the least normal number."""
    integer = np.dtype(f"i{dtype.itemsize}")
    sizes = np.maximum(np.abs(ordered).astype(integer).view(dtype), np.finfo(dtype).tiny)
    return np.where(ordered < 0, -sizes, sizes)


def any_float(rng: np.random.Generator, dtype: np.dtype, range_: Range, count: int) -> np.ndarray:
    """Normal floats in a range, all bit patterns alike."""
    return floats(dtype, rng.integers(*ordered_ends(dtype, range_), count, endpoint=True))


def every(range_: Range, step: int, batch: int = 1 << 22) -> Iterator[list[np.ndarray]]:
    """Each `step`-th float32 of a range."""
    first, last = ordered_ends(DTYPES[0], range_)
    for start in range(first, last + 1, batch * step):
        yield [floats(DTYPES[0], np.arange(start, min(start + batch * step, last + 1), step))]


def samples(row: Row, dtype: np.dtype, count: int) -> Iterator[list[np.ndarray]]:
    """One batch from the whole domain, one from each core, `count` points each, and one of hard ones."""
    rng = np.random.default_rng(0)
    yield [any_float(rng, dtype, range_, count) for range_ in row.domain]
    for core in row.cores:
        yield [rng.uniform(low, high, count).astype(dtype) for low, high in core]
    if row.arity == 1:
        yield [hard(dtype, row.domain[0], rng, count // 4)]
        return
    # the second argument near the powers and logarithms that are hard for the first
    base = np.exp2(rng.uniform(-1, 1, count) * 2.0 ** -rng.integers(0, np.finfo(dtype).nmant, count))
    largest = 0.999 * np.finfo(dtype).maxexp
    with np.errstate(all="ignore"):
        exponent = np.clip(rng.choice([-1, 1], count) * largest / np.log2(base), -1e30, 1e30)
    yield [base.astype(dtype), exponent.astype(dtype)]


# -- errors --------------------------------------------------------------------------------------------------------
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
        shown = f"{self.error:.2f}" if self.error < 1000 else f"{self.error:.0e}"
        return f"{shown} at {', '.join(f'{x:.6g}' for x in self.at)}"


def errors_of(row: Row, args: list[np.ndarray], results: list[np.ndarray]) -> list[np.ndarray]:
    """ULP errors of some results for one batch."""
    if results[0].dtype == np.float32:
        wide = np.float64 if row.arity == 1 else np.longdouble
        with np.errstate(all="ignore"):
            exact = np.asarray(row.reference(*(x.astype(wide) for x in args)))
        return [ulp_errors(y, exact) for y in results]
    with mpmath.workprec(140):
        points = zip(*(x.tolist() for x in args), strict=True)
        want = [row.exact(*map(mpmath.mpf, point)) for point in points]
        return [np.array([mp_ulp_error(y, e) for y, e in zip(got.tolist(), want, strict=True)]) for got in results]


def accuracy(row: Row, dtype: np.dtype, step: int, count: int) -> tuple[Worst, Worst]:
    """The largest errors of our function and of XLA's."""
    compiled = Compiled(row.function, dtype, lanes=8, arity=row.arity, fast=row.fast)
    xla = jax.jit(row.xla)
    ours, theirs = Worst(), Worst()
    if dtype == np.float32 and row.arity == 1:
        batches = every(row.domain[0], step)
    else:
        batches = samples(row, dtype, count if dtype == np.float64 else 250 * count)
    for args in batches:
        errors = errors_of(row, args, [compiled(*args), np.asarray(xla(*args))])
        ours.update(errors[0], args)
        theirs.update(errors[1], args)
    return ours, theirs


# -- costs ---------------------------------------------------------------------------------------------------------
def instructions(row: Row, dtype: np.dtype) -> int:
    """Vector instructions of the loop over registers of values, less its load and store; not those that are skipped
    where no lane needs them."""
    compiled = Compiled(row.function, dtype, _target.host().native_lanes(dtype.itemsize * 8), row.arity, fast=row.fast)
    lines = compiled.assembly.splitlines()
    labels = {line.split(":")[0]: i for i, line in enumerate(lines) if re.match(r"\.?\w+:", line)}
    for end, line in enumerate(lines):
        jump = re.match(r"\s+j\w+\s+(\.\w+)", line)
        if jump and labels.get(jump[1], end) < end:
            body = lines[labels[jump[1]]:end]
            return max(1, sum(bool(re.match(r"\s+v", x)) for x in body) - row.arity - 1)
    raise ValueError("no loop")


def best_time(function: Callable[[], object], repeats: int) -> float:
    """Nanoseconds of the fastest call."""
    best = INF
    for _ in range(repeats):
        start = time.perf_counter_ns()
        function()
        best = min(best, time.perf_counter_ns() - start)
    return best


def nanoseconds(row: Row, dtype: np.dtype, args: list[np.ndarray]) -> float:
    """Nanoseconds per value of a loop over `args`, which fit in the first-level cache."""
    count, repeats, lanes = args[0].size, 100, 64 // dtype.itemsize
    compiled = Compiled(row.function, dtype, lanes, row.arity, wrap=count // lanes, fast=row.fast)
    out = np.empty_like(args[0])
    pointers = [out.ctypes.data, *(x.ctypes.data for x in args)]
    return best_time(lambda: compiled.entry(*pointers, repeats * count // lanes), 30) / (repeats * count)


def xla_nanoseconds(row: Row, args: list[np.ndarray]) -> float:
    """The same for XLA's function, on more values, less the time of a negation."""
    arrays = [jax.device_put(np.tile(x, 16)) for x in args]
    nothing, function = jax.jit(lambda *xs: -xs[0]), jax.jit(row.xla)
    times = []
    for f in (nothing, function):
        f(*arrays).block_until_ready()
        times.append(best_time(lambda f=f: f(*arrays).block_until_ready(), 200))
    return max(times[1] - times[0], 0.0) / arrays[0].size


@functools.cache
def nanoseconds_per_cycle() -> float:
    """From a loop whose every instruction waits for the one before and takes a cycle."""
    steps = 1000  # short, so that nothing comes between
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
    code = compile_module(module)
    chain = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(code.address("chain"))
    return best_time(lambda: chain(1), 500) / (128 * steps)


def cycles(row: Row, dtype: np.dtype) -> tuple[float, float]:
    """Cycles per value of ours and of XLA's, on numbers of the first core."""
    rng = np.random.default_rng(0)
    args = [rng.uniform(low, high, 1024).astype(dtype) for low, high in row.cores[0]]
    return (nanoseconds(row, dtype, args) / nanoseconds_per_cycle(),
            xla_nanoseconds(row, args) / nanoseconds_per_cycle())


# -- special values ------------------------------------------------------------------------------------------------
SUBNORMAL = 1e-40
POINTS = (0.0, -0.0, SUBNORMAL, -SUBNORMAL, 1.0, -1.0, 2.0, -2.0, INF, -INF, NAN)
PAIRS = ((0.0, 0.0), (0.0, -0.0), (-0.0, 0.0), (-0.0, -0.0), (0.0, -1.0), (-0.0, -1.0), (-0.0, -2.0), (1.0, 0.0),
         (-1.0, 0.0), (-1.0, 0.5), (INF, INF), (-INF, INF), (INF, -INF), (-INF, 3.0), (-1.0, INF), (2.0, -INF),
         (1.0, NAN), (NAN, 0.0), (SUBNORMAL, 0.5), (2.0, SUBNORMAL))


def shown(x: float) -> str:
    """A number in a cell."""
    return "NaN" if math.isnan(x) else f"{x:.5g}"


def special_values(row: Row) -> list[str]:
    """What lanax gives in float32 at the points, and XLA in brackets where that is another number."""
    columns = np.array(PAIRS if row.arity == 2 else [(x,) for x in POINTS], np.float32).T
    got, want = (np.asarray(f(row.xla)(*columns)) for f in (lanax.vmap, lambda g: jax.jit(jax.vmap(g))))
    cells = []
    for y, z in zip(got.tolist(), want.tolist(), strict=True):
        close = (math.isnan(y) and math.isnan(z)) or (
            math.copysign(1, y) == math.copysign(1, z) and math.isclose(y, z, rel_tol=1e-5))
        cells.append(shown(y) if close else f"{shown(y)} ({shown(z)})")
    return cells


# -- output --------------------------------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True)
class Result:
    """One row of the table."""

    name: str
    dtype: np.dtype
    ours: Worst
    theirs: Worst
    instructions: int
    cycles: tuple[float, float]

    @property
    def failed(self) -> bool:
        """Whether the error exceeds what is allowed."""
        return self.ours.error > FUNCTIONS[self.name].limits[DTYPES.index(self.dtype)]

    def cells(self) -> list[str]:
        """As text."""
        return [self.name, self.dtype.name, str(self.ours), str(self.theirs), str(self.instructions),
                *(f"{c:.1f}" if c >= 0.5 else "< 0.5" for c in self.cycles)]


HEADER = ("function", "dtype", "largest error of lanax (ULP)", "of XLA", "instructions", "cycles", "cycles of XLA")
INTRODUCTION = """# Accuracy of functions

<!-- Written by `python benchmarks/accuracy.py --markdown`. Do not edit. -->

Kernels compute elementary and special functions by code of lanax's own, which is inlined and has no tables. Its bounds
are **1 ULP in float32 and 2 ULP in float64**, for every argument whose result is a normal number, but for:

- lgamma and digamma: 4 ULP in float64, and left of 0, near their zeros, a bound on the absolute error only;
- x**n for a whole n is multiplied in JAX's order, and divided once for n < 0, so it has the bits that XLA gives: 1.5
  ULP for x^3 and x^-2, 3.5 for x^6, 6.5 for x^10. `jnp.power(x, y)` with y an array is within the bounds.

`lanax.Plan(accuracy="fast")` has [a bound of its own](#the-faster-tier), [linear algebra](accuracy_linalg.md) a page.

A ULP is the distance of neighbouring floats about the exact result. float32 functions of one argument were checked at
{density} float32 against float64, others at samples against long double or mpmath, among them numbers next to powers of
2, to multiples of pi/2 and of ln 2, and to the ends of domains. XLA's functions are those of `jax.jit` on this machine,
at the same points: {machine}, jax {jax}.

*Instructions* are vector instructions for a register of values; those that no lane needs are left out. *Cycles* are
per value on one core, with arguments about 1, where all is in cache; of XLA's, those of a negation are taken off.

sin, cos and tan of |x| from 2^17 (float32) or 2^24 (float64) on take a second way, for all lanes of a step where one
needs it: {slow} cycles per value. Without a branch each value would cost
that. lgamma and digamma have one for x < 0.

    python benchmarks/accuracy.py              # each 997th float32, in minutes
    python benchmarks/accuracy.py --every 1    # all, in about an hour
"""


SPECIAL = f"""## Special values

float32, by `lanax.vmap`; in brackets by `jax.jit(jax.vmap(f))`, where it is another number. {SUBNORMAL:g} is subnormal:
kernels take it for 0 and give 0 where it is the result; XLA hands some subnormal arguments through, and makes something
else of others. A sum of nothing but -0.0 is -0.0; XLA's starts from 0.0, but for that of a product in jax 0.10.
"""


def markdown_table(header: tuple[str, ...], rows: list[list[str]]) -> str:
    """A table of Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def page(results: list[Result], step: int) -> str:
    """docs/accuracy.md."""
    times = [nanoseconds(FUNCTIONS["sin"], dtype, [np.full(1024, 1e30, dtype)]) for dtype in DTYPES]
    huge = [f"{time / nanoseconds_per_cycle():.0f} ({dtype})" for time, dtype in zip(times, DTYPES, strict=True)]
    ordinal = {1: "every"}.get(step, f"each {step}th")
    text = INTRODUCTION.format(density=ordinal, slow=" and ".join(huge), jax=jax.__version__,
                               machine=f"{_target.host().cpu}, {_target.host().instruction_set}")
    unary = [[name, *special_values(row)] for name, row in FUNCTIONS.items() if row.arity == 1]
    pairs = zip(map(str, PAIRS), *(special_values(FUNCTIONS[name]) for name in ("pow", "atan2")), strict=True)
    return "\n".join((
        text, markdown_table(HEADER, [result.cells() for result in results]),
        SPECIAL,
        markdown_table(("function", *(shown(x) for x in POINTS)), unary),
        markdown_table(("(x, y)", "pow(x, y)", "atan2(x, y)"), [list(pair) for pair in pairs])))


FASTER = ("exp", "expm1", "logistic", "log", "log1p", "rsqrt", "cbrt", "pow", "sinh", "cosh", "tanh", "asinh", "acosh",
          "atanh", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "erfc", "erf_inv")
FAST_LIMITS = (4.0, 4.0)
FAST_HEADER = ("function", "dtype", "largest error (ULP)", "instructions", "cycles", "times as fast as the default")
FAST_TITLE = "## The faster tier"
FAST_TEXT = """\
`lanax.Plan(accuracy="fast")` leaves out the steps that carry what rounding took: **at most 4 ULP**, in both
dtypes. Special values are the same, and so is the promise that the bits do not depend on lanes, threads or chunk. What
is not in the table is as fast either way. Functions that are computed from these, such as complex ones or the
incomplete gamma functions, lose as much. Nothing else changes: sums, products and linear algebra are the same bits.
"""


def measure_fast(name: str, step: int, count: int) -> Iterator[tuple[bool, list[str]]]:
    """Whether it is within its bound, and the cells of its rows."""
    usual = FUNCTIONS[name]
    row = dataclasses.replace(usual, fast=True, limits=FAST_LIMITS)
    rng = np.random.default_rng(0)
    for dtype, limit in zip(DTYPES, FAST_LIMITS, strict=True):
        ours, _ = accuracy(row, dtype, step, count)
        counts = [instructions(r, dtype) for r in (usual, row)]
        if counts[0] == counts[1]:
            continue
        args = [rng.uniform(low, high, 1024).astype(dtype) for low, high in row.cores[0]]
        before, after = (nanoseconds(r, dtype, args) / nanoseconds_per_cycle() for r in (usual, row))
        yield ours.error <= limit, [name, dtype.name, str(ours), f"{counts[1]} (default: {counts[0]})", f"{after:.1f}",
                                    f"{before / after:.2f}"]


def fast_section(rows: list[list[str]]) -> str:
    """The section of the page."""
    return "\n".join((FAST_TITLE, "", FAST_TEXT, markdown_table(FAST_HEADER, rows)))


def main_fast(names: list[str], step: int, count: int, markdown: bool) -> int:
    """Measures the faster tier."""
    found = [row for name in names or FASTER for row in measure_fast(name, step, count)]
    table = Table(*FAST_HEADER)
    for sound, cells in found:
        table.add_row(*cells, style=None if sound else "red")
    Console().print(table)
    if markdown:
        before = PAGE.read_text().partition(FAST_TITLE)[0].rstrip()
        PAGE.write_text(f"{before}\n\n{fast_section([cells for _, cells in found])}")
    return int(not all(sound for sound, _ in found))


def measure(name: str, step: int, count: int) -> Iterator[Result]:
    """The rows of one function."""
    row = FUNCTIONS[name]
    for dtype in DTYPES:
        yield Result(name, dtype, *accuracy(row, dtype, step, count), instructions(row, dtype), cycles(row, dtype))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="functions to measure; all by default")
    parser.add_argument("--every", type=int, default=997, metavar="N", help="check each N-th float32 (default 997)")
    parser.add_argument("--points", type=int, default=4000, metavar="N", help="float64 samples of a kind (4000)")
    parser.add_argument("--markdown", action="store_true", help="write docs/accuracy.md")
    parser.add_argument("--fast", action="store_true", help="measure the faster tier instead")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if options.fast:
        return main_fast(options.names, options.every, options.points, options.markdown)
    table = Table(*HEADER, title=f"{1 / nanoseconds_per_cycle():.2f} GHz")
    results = []
    for name in options.names or FUNCTIONS:
        for result in measure(name, options.every, options.points):
            results.append(result)
            table.add_row(*result.cells(), style="red" if result.failed else None)
    Console().print(table)
    if options.markdown:
        fast = [cells for name in FASTER for _, cells in measure_fast(name, options.every, options.points)]
        PAGE.write_text(page(results, options.every) + "\n" + fast_section(fast))
    return int(any(result.failed for result in results))


if __name__ == "__main__":
    sys.exit(main())
