"""Trigonometric, inverse, error and gamma functions on lanes: accuracy against mpmath, special values, and the same
bits for any number of lanes."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import math_harness
import mpmath
import numpy as np
import pytest
from llvmlite import ir
from math_harness import FLUSHES, Compiled, Range, any_bits, assert_same, hard, largest_error

from lanax._math import error, gamma, inverse, trigonometric

INF, NAN, PI = np.inf, np.nan, math.pi
DTYPES = (np.dtype(np.float32), np.dtype(np.float64))
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def log_abs_gamma(x: mpmath.mpf) -> mpmath.mpf:
    return mpmath.re(mpmath.loggamma(x))


@dataclasses.dataclass(frozen=True)
class Case(math_harness.Case):
    """Sampled over all exponents, where a row says nothing else."""

    powers: Range | None = (-1100.0, 1100.0)


BELOW_1 = (-1100.0, 0.0)
CASES = (
    Case(trigonometric.sin, mpmath.sin, ((-7, 7), (-1e5, 1e5)), limits=(1, 1.25)),
    Case(trigonometric.cos, mpmath.cos, ((-7, 7), (-1e5, 1e5)), limits=(1, 1.25)),
    Case(trigonometric.tan, mpmath.tan, ((-7, 7), (-1e5, 1e5)), limits=(1, 1.25)),
    Case(inverse.asin, mpmath.asin, ((-1, 1),), BELOW_1, limits=(1, 1.25), domain=(-1, 1)),
    Case(inverse.acos, mpmath.acos, ((-1, 1),), BELOW_1, limits=(1, 1.25), domain=(-1, 1)),
    Case(inverse.atan, mpmath.atan, ((-3, 3),), limits=(1, 1.25)),
    Case(error.erf, mpmath.erf, ((-4, 4),), (-1100, 3), limits=(1, 1.25)),
    Case(error.erfc, mpmath.erfc, ((-4, 4), (0, 9.19), (0, 26.5)), (-60, 0), limits=(1, 1.5), domain=(-30, 30)),
    Case(error.erf_inv, mpmath.erfinv, ((-1, 1), (0.99, 1)), BELOW_1, limits=(1, 1.5), domain=(-1 + 1e-7, 1 - 1e-7)),
    Case(gamma.lgamma, log_abs_gamma, ((-0.5, 4), (0.9, 1.1), (1.9, 2.1), (0, 100)), signs=(1,), limits=(1, 2.5),
         domain=(0, INF)),
    Case(gamma.digamma, mpmath.digamma, ((0, 4), (1.3, 1.6), (0, 100)), signs=(1,), limits=(1, 2.5), domain=(0, INF)),
)
FUNCTIONS = [case.function for case in CASES] + [inverse.atan2]
each_case = pytest.mark.parametrize("case", CASES, ids=str)
each_function = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)


def arity(function: Callable[..., ir.Value]) -> int:
    return 2 if function is inverse.atan2 else 1


@functools.cache
def compiled(function: Callable[..., ir.Value], dtype: np.dtype, lanes: int) -> Compiled:
    return Compiled(function, dtype, lanes, arity(function))


def check_accuracy(function: Callable[..., ir.Value], exact: Callable[..., mpmath.mpf], limit: float,
                   *args: np.ndarray) -> None:
    with mpmath.workprec(120):
        want = [exact(*map(mpmath.mpf, point)) for point in zip(*(x.tolist() for x in args), strict=True)]
        assert largest_error(compiled(function, args[0].dtype, 8)(*args), want) <= limit


@each_dtype
@each_case
def test_accuracy(case: Case, dtype: np.dtype) -> None:
    x = np.concatenate([case.samples(dtype, 120), hard(dtype, case.domain, np.random.default_rng(1), 30)])
    check_accuracy(case.function, case.exact, case.limits[DTYPES.index(dtype)], x)


@each_dtype
@pytest.mark.parametrize("exact", [mpmath.sin, mpmath.cos, mpmath.tan], ids=["sin", "cos", "tan"])
def test_near_multiples_of_half_pi(exact: Callable[..., mpmath.mpf], dtype: np.dtype) -> None:
    """Where subtracting a multiple of pi / 2 leaves little, below and beyond the change to integer arithmetic."""
    rng = np.random.default_rng(1)
    n = np.floor(2.0 ** rng.uniform(0, 40, 200))
    x = (n * (PI / 2)).astype(dtype)
    x = np.concatenate([x + np.spacing(x) * i for i in (-1, 0, 1)])
    check_accuracy(getattr(trigonometric, exact.__name__), exact, 1.0, x)


@pytest.mark.parametrize(
    ("dtype", "x"), [(DTYPES[0], 16367173.0 * 2.0**72), (DTYPES[1], 6381956970095103.0 * 2.0**797)], ids=str
)
def test_nearest_of_all_to_a_multiple_of_half_pi(dtype: np.dtype, x: float) -> None:
    """The worst case of each format."""
    check_accuracy(trigonometric.cos, mpmath.cos, 1.0, np.full(8, x, dtype))
    check_accuracy(trigonometric.tan, mpmath.tan, 1.0, np.full(8, x, dtype))


@each_dtype
def test_huge_lane_beside_small_ones(dtype: np.dtype) -> None:
    """A lane's bits do not depend on whether another lane needs the long way."""
    x = np.random.default_rng(1).uniform(-100, 100, 64).astype(dtype)
    mixed = x.copy()
    mixed[::8] = [1e30, INF, NAN, -1e20, 3e38, 1e10, -INF, 2.0**100]
    for function in (trigonometric.sin, trigonometric.cos, trigonometric.tan):
        got, want = (compiled(function, dtype, 8)(a) for a in (mixed, x))
        np.testing.assert_array_equal(np.delete(got, np.s_[::8]), np.delete(want, np.s_[::8]))


@each_dtype
def test_accuracy_of_atan2(dtype: np.dtype) -> None:
    rng = np.random.default_rng(1)
    wide = np.finfo(dtype).maxexp - 2
    y, x = (np.concatenate([rng.normal(size=200), rng.choice([-1, 1], 200) * 2.0 ** rng.uniform(-wide, wide, 200),
                            rng.uniform(1, 1.001, 100), rng.choice([0.5, 1, 2], 100) * rng.choice([0.9999999, 1], 100),
                            2.0 ** rng.choice([-wide, 0, wide], 100) * rng.uniform(1, 2, 100)]).astype(dtype)
            for _ in range(2))
    check_accuracy(inverse.atan2, mpmath.atan2, 1.0, y, x)


@each_dtype
def test_sine_and_cosine_of_one_argument(dtype: np.dtype) -> None:
    """They share the reduction: the same bits as each by itself."""
    x = np.random.default_rng(1).uniform(-1e6, 1e6, 1000).astype(dtype)
    both = Compiled(lambda b, v: b.add(trigonometric.sin(b, v), trigonometric.cos(b, v)), dtype, 8)(x)
    sine, cosine = compiled(trigonometric.sin, dtype, 8)(x), compiled(trigonometric.cos, dtype, 8)(x)
    np.testing.assert_array_equal(both, sine + cosine)


@each_dtype
@pytest.mark.parametrize("case", [case for case in CASES if case.function in (gamma.lgamma, gamma.digamma)], ids=str)
def test_negative_gamma(case: Case, dtype: np.dtype) -> None:
    """Left of 0 terms cancel near the zeros: there the error is bounded absolutely."""
    x = np.random.default_rng(1).uniform(-30, 0, 400).astype(dtype)
    got = compiled(case.function, dtype, 8)(x)
    with mpmath.workprec(120):
        errors = [(y - w) / (1 + abs(w)) for y, w in zip(got.tolist(), map(case.exact, x.tolist()), strict=True)]
    assert max(map(abs, errors)) <= 8 * np.finfo(dtype).eps


ODD = [(0.0, 0.0), (-0.0, -0.0)]
OUTSIDE_1 = [(1.5, NAN), (-1.5, NAN), (1e30, NAN), (INF, NAN), (-INF, NAN)]
NO_LIMIT = [(INF, NAN), (-INF, NAN)]
SPECIAL = {
    trigonometric.sin: [*ODD, *NO_LIMIT, (1e-30, 1e-30)],
    trigonometric.cos: [(0.0, 1.0), (-0.0, 1.0), *NO_LIMIT, (1e-30, 1.0)],
    trigonometric.tan: [*ODD, *NO_LIMIT, (1e-30, 1e-30)],
    inverse.asin: [*ODD, (1.0, PI / 2), (-1.0, -PI / 2), (1e-30, 1e-30), *OUTSIDE_1],
    inverse.acos: [(0.0, PI / 2), (-0.0, PI / 2), (1.0, 0.0), (-1.0, PI), *OUTSIDE_1],
    inverse.atan: [*ODD, (INF, PI / 2), (-INF, -PI / 2), (1e30, PI / 2), (1e-30, 1e-30)],
    error.erf: [*ODD, (INF, 1.0), (-INF, -1.0), (1e30, 1.0), (-30.0, -1.0)],
    error.erfc: [(0.0, 1.0), (-0.0, 1.0), (INF, 0.0), (-INF, 2.0), (30.0, 0.0), (-30.0, 2.0)],
    error.erf_inv: [*ODD, (1.0, INF), (-1.0, -INF), *OUTSIDE_1],
    gamma.lgamma: [(0.0, INF), (-0.0, INF), (-1.0, INF), (-2.0, INF), (1.0, 0.0), (2.0, 0.0), (INF, INF), (-INF, INF),
                   (-1e30, INF)],
    gamma.digamma: [(0.0, NAN), (-0.0, NAN), (-1.0, NAN), (-1e30, NAN), (INF, INF), (-INF, NAN)],
}


@each_dtype
@pytest.mark.parametrize("function", SPECIAL, ids=lambda f: f.__name__)
def test_special_values(function: Callable[..., ir.Value], dtype: np.dtype) -> None:
    x, want = (np.array(column, dtype) for column in zip(*SPECIAL[function], (NAN, NAN), (-NAN, NAN), strict=True))
    assert_same(compiled(function, dtype, 8)(x), want)


@each_dtype
def test_lgamma_overflows(dtype: np.dtype) -> None:
    x = np.array([np.finfo(dtype).max, np.finfo(dtype).max / 4], dtype)
    assert_same(compiled(gamma.lgamma, dtype, 8)(x), np.array([INF, INF], dtype))


@each_dtype
def test_atan2_table(dtype: np.dtype) -> None:
    """C99's cases, as NumPy has them."""
    info = np.finfo(dtype)
    values = np.array([0, 1, 3, 1e-10, info.tiny, info.max, INF, NAN], dtype)
    values = np.concatenate([values, -values])
    y, x = (a.ravel() for a in np.meshgrid(values, values))
    want = np.arctan2(y, x)
    want[np.abs(want) < info.tiny] *= 0
    got = compiled(inverse.atan2, dtype, 8)(y, x)
    np.testing.assert_allclose(got, want, rtol=2 * info.eps)
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(want)[numbers])


@each_dtype
@each_function
def test_nan_payload(function: Callable[..., ir.Value], dtype: np.dtype) -> None:
    """A NaN stays one, whatever its bits: exponents are put together by integer additions."""
    info = np.finfo(dtype)
    quiet = (2 ** (info.bits - info.nmant - 1) - 1) << info.nmant | 1 << (info.nmant - 1)
    payloads = np.random.default_rng(1).integers(0, 1 << (info.nmant - 1), 64)
    x = (payloads | quiet).astype(f"i{dtype.itemsize}").view(dtype)
    rest = [np.ones_like(x)] * (arity(function) - 1)
    assert np.isnan(compiled(function, dtype, 8)(x, *rest)).all()


@each_dtype
@each_function
def test_bits_do_not_depend_on_lanes(function: Callable[..., ir.Value], dtype: np.dtype) -> None:
    args = [any_bits(dtype, seed) for seed in range(arity(function))]
    scalar = compiled(function, dtype, 1)(*args)
    for lanes in (8, 16) if dtype.itemsize == 4 else (4, 8):
        assert_same(compiled(function, dtype, lanes)(*args), scalar)


@pytest.mark.skipif(not FLUSHES, reason="the harness flushes subnormals on x86 and arm64 only")
@each_dtype
@each_function
def test_subnormal_is_zero(function: Callable[..., ir.Value], dtype: np.dtype) -> None:
    tiny = np.finfo(dtype).tiny
    subnormal = np.array([tiny / 2, -tiny / 2, tiny / 1000, -tiny / 1000], dtype)
    zero = np.copysign(np.zeros(4, dtype), subnormal)
    rest = [np.array([0.5, 3, -0.5, 0], dtype)] * (arity(function) - 1)
    got, want = (compiled(function, dtype, 8)(x, *rest) for x in (subnormal, zero))
    assert_same(got, want)
