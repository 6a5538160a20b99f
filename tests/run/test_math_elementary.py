"""Elementary functions on lanes: accuracy against mpmath, special values, and the same bits for any number of lanes."""

from __future__ import annotations

import functools
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from llvmlite import ir
from math_harness import FLUSHES, Case, Compiled, any_bits, assert_same, hard, largest_error

from lanax._math import exponential, hyperbolic, logarithm, power

INF, NAN = np.inf, np.nan


def _cbrt(x: mpmath.mpf) -> mpmath.mpf:
    return mpmath.sign(x) * mpmath.cbrt(abs(x))


TINY = (-1100.0, 3.0)
POSITIVE = (0.0, INF)
CASES = (
    Case(exponential.exp, mpmath.exp, ((-1, 1), (-87, 88), (-708, 709)), limits=(1, 1)),
    Case(exponential.exp2, lambda x: mpmath.mpf(2) ** x, ((-1, 1), (-126, 128), (-1022, 1024)), limits=(1, 1)),
    Case(exponential.expm1, mpmath.expm1, ((-1, 1), (-30, 88), (-50, 709)), TINY, limits=(1, 1.25)),
    Case(exponential.logistic, lambda x: 1 / (1 + mpmath.exp(-x)), ((-3, 3), (-87, 40)), limits=(1, 1.25)),
    Case(logarithm.log, mpmath.log, ((0.5, 2), (0, 100)), (-1100, 1100), signs=(1,), limits=(1, 1.25), domain=POSITIVE),
    Case(logarithm.log1p, mpmath.log1p, ((-0.5, 1), (-1, 100)), (-1100, 1100), signs=(1,), limits=(1, 1.25),
         domain=(-1 + 1e-7, INF)),
    Case(power.cbrt, _cbrt, ((-2, 2),), (-1100, 1100), limits=(0.6, 0.6)),
    Case(power.rsqrt, lambda x: 1 / mpmath.sqrt(x), ((0.25, 4),), (-1100, 1100), signs=(1,), limits=(0.9, 0.9),
         domain=POSITIVE),
    Case(hyperbolic.sinh, mpmath.sinh, ((-1, 1), (-89, 89), (-710, 710)), TINY, limits=(1, 1.25)),
    Case(hyperbolic.cosh, mpmath.cosh, ((-1, 1), (-89, 89), (-710, 710)), TINY, limits=(1, 1.25)),
    Case(hyperbolic.tanh, mpmath.tanh, ((-1, 1), (-10, 10)), TINY),
    Case(hyperbolic.asinh, mpmath.asinh, ((-2, 2),), (-1100, 1100), limits=(1, 1.25)),
    Case(hyperbolic.acosh, mpmath.acosh, ((1, 2), (1, 100)), (-24, 1100), origin=1.0, signs=(1,), limits=(1, 1.25),
         domain=(1, INF)),
    Case(hyperbolic.atanh, mpmath.atanh, ((-0.3, 0.3), (-1, 1)), (-24, -1), origin=1.0, signs=(-1,), limits=(1, 1.25),
         domain=(-1 + 1e-7, 1 - 1e-7)),
)
FUNCTIONS = [case.function for case in CASES] + [power.pow]
DTYPES = (np.dtype(np.float32), np.dtype(np.float64))

each_case = pytest.mark.parametrize("case", CASES, ids=str)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@functools.cache
def compiled(function: Callable[..., ir.Value], dtype: np.dtype, lanes: int) -> Compiled:
    return Compiled(function, dtype, lanes, arity=2 if function is power.pow else 1)


@each_dtype
@each_case
def test_accuracy(case: Case, dtype: np.dtype) -> None:
    x = np.concatenate([case.samples(dtype, 150), hard(dtype, case.domain, np.random.default_rng(1), 40)])
    with mpmath.workprec(120):
        exact = [case.exact(mpmath.mpf(v)) for v in x.tolist()]
        error = largest_error(compiled(case.function, dtype, 8)(x), exact)
    assert error <= case.limits[DTYPES.index(dtype)]


@each_dtype
def test_accuracy_of_pow(dtype: np.dtype) -> None:
    rng = np.random.default_rng(1)
    far = 0.98 * np.finfo(dtype).maxexp
    x = np.concatenate([rng.uniform(0.1, 10, 200), rng.uniform(0.7, 1.4, 200), 1 + rng.uniform(-1, 1, 200) * 1e-3])
    y = rng.uniform(-far, far, 600) / np.log2(x)
    x, y = x.astype(dtype), y.astype(dtype)
    with mpmath.workprec(140):
        exact = [mpmath.power(mpmath.mpf(v), mpmath.mpf(w)) for v, w in zip(x.tolist(), y.tolist(), strict=True)]
        assert largest_error(compiled(power.pow, dtype, 8)(x, y), exact) <= 1


@each_dtype
@pytest.mark.parametrize("y", [0.1875, -0.0625, 0.9375, -0.625, -0.5, 1 / 3, -1 / 3, 2 / 3, -2 / 3])
def test_accuracy_of_known_powers(y: float, dtype: np.dtype) -> None:
    """The short ways of constant exponents, at bases of all sizes."""
    x = 2.0 ** np.random.default_rng(1).uniform(np.finfo(dtype).minexp, np.finfo(dtype).maxexp - 0.001, 2000)
    x, y = x.astype(dtype), float(dtype.type(y))
    got = Compiled(lambda b, v: power.pow_known(b, v, y), dtype, 8)(x)
    with mpmath.workprec(120):
        exact = [mpmath.power(mpmath.mpf(v), y) for v in x.tolist()]
        assert largest_error(got, exact) <= 0.9
    ends = np.array([0.0, -0.0, INF, -INF, -1.0, NAN], dtype)
    small, large = (0.0, INF) if y > 0 else (INF, 0.0)
    got = Compiled(lambda b, v: power.pow_known(b, v, y), dtype, 2)(ends)
    np.testing.assert_array_equal(got, [small, small, large, large, NAN, NAN])


@each_dtype
@pytest.mark.parametrize("y", [0.1875, -0.625, -0.5, 1 / 3, -1 / 3, 2 / 3, -2 / 3])
def test_known_powers_of_what_is_seen_not_to_be_negative(y: float, dtype: np.dtype) -> None:
    """They need not look for negative bases; NaN is still one, whatever its bits, and -0 has the power of 0."""
    bases: dict[str, Callable[..., ir.Value]] = {
        "root": lambda b, v: b.sqrt(v), "absolute": lambda b, v: b.fabs(v),
        "sum": lambda b, v: b.add(b.sqrt(v), b.mul(b.fabs(v), 0.25)), "negative": lambda b, v: b.neg(b.sqrt(v))}
    info = np.finfo(dtype)
    payloads = (np.array([0x7FF, 0xFFF] if info.bits == 64 else [0xFF, 0x1FF], f"u{info.bits // 8}")
                << info.nmant | 1).view(dtype)
    ends = np.array([0.0, -0.0, INF, -INF, -1.0, 4.0, NAN, -NAN], dtype)
    x = np.concatenate([ends, payloads, (2.0 ** np.arange(-20, 20)).astype(dtype)])
    for name, base in bases.items():
        known = Compiled(lambda b, v, base=base: power.pow_known(b, base(b, v), y), dtype, 8)(x)
        value = Compiled(base, dtype, 8)(x)
        want = Compiled(lambda b, v: power.pow_known(b, v, y), dtype, 8)(value)
        np.testing.assert_array_equal(known, want, err_msg=name)
        assert np.isnan(known[6:10]).all()


HUGE = 1e30  # beyond what any function here gives a finite result for, where it can overflow
ODD = [(0.0, 0.0), (-0.0, -0.0)]
SPECIAL = {
    exponential.exp: [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (HUGE, INF), (-HUGE, 0.0)],
    exponential.exp2: [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (HUGE, INF), (-HUGE, 0.0), (10.0, 1024.0),
                       (-3.0, 0.125), (127.0, 2.0**127), (-126.0, 2.0**-126)],
    exponential.expm1: [*ODD, (INF, INF), (-INF, -1.0), (HUGE, INF), (-HUGE, -1.0), (1e-30, 1e-30)],
    exponential.logistic: [(0.0, 0.5), (-0.0, 0.5), (INF, 1.0), (-INF, 0.0), (HUGE, 1.0), (-HUGE, 0.0)],
    logarithm.log: [(0.0, -INF), (-0.0, -INF), (1.0, 0.0), (INF, INF), (-1.0, NAN), (-INF, NAN), (-1e-30, NAN)],
    logarithm.log1p: [*ODD, (-1.0, -INF), (INF, INF), (-2.0, NAN), (-INF, NAN), (1e-30, 1e-30), (-1e-30, -1e-30)],
    power.cbrt: [*ODD, (INF, INF), (-INF, -INF), (8.0, 2.0), (-27.0, -3.0), (1.0, 1.0)],
    power.rsqrt: [(0.0, INF), (-0.0, -INF), (INF, 0.0), (4.0, 0.5), (-1.0, NAN), (-INF, NAN)],
    hyperbolic.sinh: [*ODD, (INF, INF), (-INF, -INF), (HUGE, INF), (-HUGE, -INF), (-1e-30, -1e-30)],
    hyperbolic.cosh: [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, INF), (HUGE, INF), (-HUGE, INF)],
    hyperbolic.tanh: [*ODD, (INF, 1.0), (-INF, -1.0), (HUGE, 1.0), (-HUGE, -1.0), (-1e-30, -1e-30)],
    hyperbolic.asinh: [*ODD, (INF, INF), (-INF, -INF), (-1e-30, -1e-30)],
    hyperbolic.acosh: [(1.0, 0.0), (INF, INF), (0.5, NAN), (0.0, NAN), (-1.0, NAN), (-HUGE, NAN), (-INF, NAN)],
    hyperbolic.atanh: [*ODD, (1.0, INF), (-1.0, -INF), (1.5, NAN), (-2.0, NAN), (INF, NAN), (-INF, NAN),
                       (1e-30, 1e-30)],
}


@each_dtype
@pytest.mark.parametrize("function", SPECIAL)
def test_special_values(function: Callable[..., ir.Value], dtype: np.dtype) -> None:
    x, want = (np.array(column, dtype) for column in zip(*SPECIAL[function], (NAN, NAN), (-NAN, NAN), strict=True))
    assert_same(compiled(function, dtype, 8)(x), want)


@each_dtype
@each_case
def test_nan_payload(case: Case, dtype: np.dtype) -> None:
    """A NaN stays one, whatever its bits: exponents are put together by integer additions."""
    info = np.finfo(dtype)
    quiet = (2 ** (info.bits - info.nmant - 1) - 1) << info.nmant | 1 << (info.nmant - 1)
    payloads = np.random.default_rng(1).integers(0, 1 << (info.nmant - 1), 64)
    x = (payloads | quiet).astype(f"i{dtype.itemsize}").view(dtype)
    assert np.isnan(compiled(case.function, dtype, 8)(x)).all()


#: functions that overflow (and underflow, where the inverse of a tiny number is not tiny), with their inverses
ENDS = [
    (exponential.exp, mpmath.exp, np.log),
    (exponential.exp2, lambda x: mpmath.mpf(2) ** x, np.log2),
    (exponential.expm1, mpmath.expm1, np.log1p),
    (hyperbolic.sinh, mpmath.sinh, np.arcsinh),
    (hyperbolic.cosh, mpmath.cosh, np.arccosh),
]


@each_dtype
@pytest.mark.parametrize(("function", "exact", "inverse"), ENDS)
def test_ends(function: Callable[..., ir.Value], exact: Callable[..., mpmath.mpf], inverse: np.ufunc,
              dtype: np.dtype) -> None:
    """Overflow and underflow begin where they should; one ULP beyond the largest number may be either."""
    info = np.finfo(dtype)
    with np.errstate(all="ignore"):
        edges = inverse(np.array([info.max, info.tiny], np.longdouble)).astype(dtype)
    edges = edges[np.isfinite(edges) & (np.abs(edges) > 1)]
    x = np.concatenate([edges + np.spacing(edges) * i for i in range(-8, 9)]).astype(dtype)
    largest, eps = mpmath.mpf(float(info.max)), float(info.eps)
    with mpmath.workprec(120):
        for y, e in zip(compiled(function, dtype, 8)(x).tolist(), map(exact, x.tolist()), strict=True):
            if y == INF:
                assert e > largest * (1 - eps)
            elif y == 0:
                assert e < float(info.tiny) * (1 + eps)
            else:
                assert float(info.tiny) <= y <= largest
                assert abs(y - e) <= 2 * eps * e


@each_dtype
def test_pow_table(dtype: np.dtype) -> None:
    """C99's cases, as NumPy has them."""
    odd_limit = 2.0 ** (np.finfo(dtype).nmant + 1)
    values = [0, 1, 2, 3, 0.5, 1.5, 2.5, 1e-30, 1e30, INF, NAN, odd_limit - 1, odd_limit, odd_limit + 2,
              odd_limit / 2 + 0.5, 1 + np.finfo(dtype).eps, 1 - np.finfo(dtype).epsneg, np.finfo(dtype).max]
    values = np.array([*values, *(-v for v in values)], dtype)
    x, y = (a.ravel() for a in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        want = np.power(x, y)
    want[np.abs(want) < np.finfo(dtype).tiny] *= 0
    got = compiled(power.pow, dtype, 8)(x, y)
    ordinary = np.isfinite(want) & (want != 0)
    np.testing.assert_allclose(got[ordinary], want[ordinary], rtol=2 * np.finfo(dtype).eps)
    assert_same(got[~ordinary], want[~ordinary])


@each_dtype
@pytest.mark.parametrize("function", FUNCTIONS)
def test_bits_do_not_depend_on_lanes(function: Callable[..., ir.Value], dtype: np.dtype) -> None:
    args = [any_bits(dtype, seed) for seed in range(2 if function is power.pow else 1)]
    scalar = compiled(function, dtype, 1)(*args)
    for lanes in (4, 8, 16):
        assert_same(compiled(function, dtype, lanes)(*args), scalar)


@pytest.mark.skipif(not FLUSHES, reason="the harness flushes subnormals on x86 and arm64 only")
@each_dtype
@pytest.mark.parametrize("function", FUNCTIONS)
def test_subnormal_is_zero(function: Callable[..., ir.Value], dtype: np.dtype) -> None:
    tiny = np.finfo(dtype).tiny
    subnormal = np.array([tiny / 2, -tiny / 2, tiny / 1000, -tiny / 1000], dtype)
    zero = np.copysign(np.zeros(4, dtype), subnormal)
    rest = [np.array([0.5, 3, 0.5, 3], dtype)] if function is power.pow else []
    got, want = (compiled(function, dtype, 8)(x, *rest) for x in (subnormal, zero))
    assert_same(got, want)
