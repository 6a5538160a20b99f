"""Edge values: NaN, infinities, signed zeros, subnormals, ends of ranges, and what is undefined in C.

`jit(lanax.vmap(f))` is compared with `jit(jax.vmap(f))` bit for bit, but for the payload of a NaN. Both flush subnormal
numbers to zero in arithmetic, and hand them on where nothing is computed. In a few places, each named below, XLA's own
code differs in that from version to version, or between one example and a batch; there a subnormal may stand for zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import lanax

F16, BF16, F32, F64 = np.float16, ml_dtypes.bfloat16, np.float32, np.float64
FLOATS = (F32, F64, F16, BF16)
SIGNED = (np.int8, np.int16, np.int32, np.int64)
UNSIGNED = (np.uint8, np.uint16, np.uint32, np.uint64)
INTEGERS = (*SIGNED, *UNSIGNED)
NUMBERS = (*FLOATS, *INTEGERS)
INF, NAN = math.inf, math.nan

Functions = dict[str, Callable[..., Any]]


@pytest.fixture(autouse=True)
def _64_bits() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def of_dtypes(*dtypes: Any) -> Any:
    return pytest.mark.parametrize("dtype", dtypes, ids=lambda d: np.dtype(d).name)


# ---- values ----------------------------------------------------------------------------------------------------------
def floats(dtype: Any, subnormal: bool = True) -> np.ndarray:
    """Special values of a float dtype and numbers beside them, of either sign."""
    info = jnp.finfo(dtype)
    eps, tiny, least = float(info.eps), float(info.tiny), float(info.smallest_subnormal)
    some = [0.0, tiny, 1.5 * tiny, 0.25, 0.5 - eps / 4, 0.5, 0.5 + eps, 1 - eps / 2, 1.0, 1 + eps, 1.5, 2.0, 2.5, 3.0,
            3.5, 127.0, 128.0, 255.0, 256.0, 32767.5, 65536.0, 2.0**31, 2.0**31 * (1 - eps / 2), 2.0**32, 2.0**63,
            2.0**63 * (1 - eps / 2), 2.0**64, float(info.max) / 2, float(info.max), INF]
    some += [least, tiny - least] if subnormal else []
    with np.errstate(over="ignore"):
        return np.array([*some, *(-x for x in some), NAN]).astype(dtype)


def integers(dtype: Any) -> np.ndarray:
    """Both ends of an integer dtype, numbers about zero, and amounts to shift by."""
    info = np.iinfo(dtype)
    some = {info.min, info.min + 1, -3, -2, -1, 0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, info.max // 2,
            info.max - 1, info.max}
    return np.array(sorted(x for x in some if info.min <= x <= info.max), dtype)


def values(dtype: Any) -> np.ndarray:
    return integers(dtype) if dtype in INTEGERS else floats(dtype)


def pairs(x: np.ndarray, y: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Each with each."""
    left, right = np.meshgrid(x, x if y is None else y, indexing="ij")
    return left.ravel(), right.ravel()


# ---- comparison ------------------------------------------------------------------------------------------------------
def plain(x: Any) -> np.ndarray:
    x = np.asarray(x)
    return x if x.dtype.kind in "biuf" else x.astype(F32)


def flushed(x: np.ndarray, dtype: Any) -> np.ndarray:
    """Subnormal numbers of `dtype` as zeros of their sign."""
    return np.where(np.abs(x) < float(jnp.finfo(dtype).tiny), np.copysign(0, x), x)


def unequal(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype.kind in "biu":
        return x != y
    same = (x == y) & (np.signbit(x) == np.signbit(y))
    return ~(same | (np.isnan(x) & np.isnan(y)))


def run(functions: Functions, args: tuple[np.ndarray, ...], mapper: Any) -> dict[str, Any]:
    """Each function of the whole batch, all in one program."""
    return jax.jit(mapper(lambda *a: {name: fun(*a) for name, fun in functions.items()}))(*args)


def in_lanes(fun: Any, in_axes: Any = 0) -> Any:
    return lanax.vmap(fun, in_axes, plan=lanax.Plan(route="lanes"))


def check(functions: Functions, args: tuple[np.ndarray, ...], flushing: tuple[str, ...] = (),
          signed_zeros: bool = True) -> None:
    """Equal results; those of the functions named in `flushing` up to a flush of subnormal ones."""
    got, want = (run(functions, args, mapper) for mapper in (in_lanes, jax.vmap))
    wrong = []
    for name in functions:
        assert (got[name].dtype, got[name].shape) == (want[name].dtype, want[name].shape)
        x, y = plain(got[name]), plain(want[name])
        if name in flushing and x.dtype.kind == "f":
            x, y = flushed(x, got[name].dtype), flushed(y, got[name].dtype)
        off = unequal(x, y) & (signed_zeros | (x != 0) | (y != 0))
        wrong += [f"{name}({', '.join(str(a[i]) for a in args)}) is {x[i]}, by XLA {y[i]}"
                  for i in np.flatnonzero(off)[:3]]
    assert not wrong, "\n".join(wrong)


# ---- primitives ------------------------------------------------------------------------------------------------------
ARITHMETIC: Functions = {name: getattr(lax, name) for name in ("add", "sub", "mul", "div", "rem", "max", "min")}
COMPARISONS: Functions = {name: getattr(lax, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
CHOICES: Functions = {
    "select_n": lambda x, y: lax.select_n(x > y, x, y),
    "clamp": lambda x, y: lax.clamp(jnp.minimum(x, y), y * 2, jnp.maximum(x, y)),
    "clamp within nothing": lambda x, y: lax.clamp(jnp.maximum(x, y), x, jnp.minimum(x, y)),
}
BITS: Functions = {
    "and": lax.bitwise_and, "or": lax.bitwise_or, "xor": lax.bitwise_xor, "shift_left": lax.shift_left,
    "shift_right_logical": lax.shift_right_logical, "shift_right_arithmetic": lax.shift_right_arithmetic,
    "floor_divide": jnp.floor_divide, "mod": jnp.mod,
}


def powers(*exponents: int) -> Functions:
    return {f"integer_pow {n}": lambda x, n=n: lax.integer_pow(x, n) for n in exponents}


@of_dtypes(*FLOATS)
def test_two_floats(dtype: Any) -> None:
    # rem: XLA calls fmod, which does not flush its result. select_n: a choice by `x > y` may become `max(x, y)`, which
    # flushes; XLA's code for one example does so, its code for a batch does not.
    functions = {**ARITHMETIC, **COMPARISONS, **CHOICES, "nextafter": lax.nextafter}
    if dtype is BF16:
        # Where they hand on a subnormal one, jax 0.12 does not flush it, older versions do.
        extremes = {name: functions.pop(name) for name in ("max", "min", "clamp", "clamp within nothing")}
        check(extremes, pairs(floats(dtype, subnormal=False)))
    check(functions, pairs(floats(dtype)), flushing=("rem", "select_n"))


@of_dtypes(*FLOATS)
def test_one_float(dtype: Any) -> None:
    bits = {2: np.uint16, 4: np.uint32, 8: np.uint64}[np.dtype(dtype).itemsize]
    away, even = lax.RoundingMethod.AWAY_FROM_ZERO, lax.RoundingMethod.TO_NEAREST_EVEN
    check({
        "neg": lax.neg, "abs": lax.abs, "sign": lax.sign, "floor": lax.floor, "ceil": lax.ceil, "sqrt": lax.sqrt,
        "round": lambda x: lax.round(x, away), "round to even": lambda x: lax.round(x, even),
        "is_finite": lax.is_finite, "reciprocal": lambda x: 1 / x, "square": lax.square,
        "bits": lambda x: lax.bitcast_convert_type(x, bits),
        "reduce_precision": lambda x: lax.reduce_precision(x, 5, 10),
        **powers(-3, -2, -1, 0, 1, 2, 3, 4, 7, 10),
    }, (floats(dtype),))


@of_dtypes(*INTEGERS)
def test_two_integers(dtype: Any) -> None:
    """Among them x / 0, x % 0, INT_MIN / -1, and shifts by the width, past it, and by negative amounts."""
    check({**ARITHMETIC, **COMPARISONS, **CHOICES, **BITS}, pairs(integers(dtype)))


@of_dtypes(*INTEGERS)
def test_one_integer(dtype: Any) -> None:
    signed: Functions = {"neg": lax.neg, "abs": lax.abs} if dtype in SIGNED else {"minus": lambda x: -x}
    check({"sign": lax.sign, "not": lax.bitwise_not, "population_count": lax.population_count, "clz": lax.clz,
           **signed, **powers(0, 1, 2, 3, 4, 7, 10)}, (integers(dtype),))


@of_dtypes(*NUMBERS)
def test_conversions(dtype: Any) -> None:
    """Floats to integers out of range and of NaN too."""
    others = [d for d in (*NUMBERS, np.bool_) if d != dtype]
    given = values(dtype)
    if dtype == BF16:  # XLA takes a subnormal bfloat16 for True, though a subnormal float32 for False
        check({"bool": lambda x: lax.convert_element_type(x, np.bool_)}, (floats(dtype, subnormal=False),))
        others.remove(np.bool_)
    check({f"to {np.dtype(d).name}": lambda x, d=d: lax.convert_element_type(x, d) for d in others}, (given,))


def test_bools() -> None:
    check({**COMPARISONS, "and": lax.bitwise_and, "or": lax.bitwise_or, "xor": lax.bitwise_xor, "max": lax.max,
           "min": lax.min}, pairs(np.array([False, True])))
    check({"not": lax.bitwise_not, **{f"to {np.dtype(d).name}": lambda x, d=d: lax.convert_element_type(x, d)
                                      for d in NUMBERS}}, (np.array([False, True]),))


@of_dtypes(np.int32, np.uint8, F32)
def test_a_uniform_operand(dtype: Any) -> None:
    """What is the same for all examples is computed with as a scalar, whose code is another. It is an argument here: of
    `x + 0.0` with a constant XLA makes `x`, so that -0.0 stays."""
    given = values(dtype)
    right: Functions = {name: lambda x, v, fun=fun: fun(x, v) for name, fun in ARITHMETIC.items()}
    left: Functions = {f"{name} of": lambda x, v, fun=fun: fun(v, x) for name, fun in ARITHMETIC.items()}
    run_both = [jax.jit(mapper(lambda x, v: {name: fun(x, v) for name, fun in {**right, **left}.items()}, (0, None)))
                for mapper in (in_lanes, jax.vmap)]
    for value in given[::2]:
        got, want = (run(given, value) for run in run_both)
        for name in got:
            x, y = plain(got[name]), plain(want[name])
            if "rem" in name and x.dtype.kind == "f":
                x, y = flushed(x, dtype), flushed(y, dtype)
            assert not unequal(x, y).any(), f"{name} {value}"


@of_dtypes(np.int32, np.int64)
def test_integer_division_by_zero_in_a_lane_that_is_off(dtype: Any) -> None:
    def fun(x: Any, y: Any) -> Any:
        return lax.cond(y == 0, lambda: x, lambda: x // y), lax.while_loop(
            lambda c: (c[0] > 0) & (c[1] != 0), lambda c: (c[0] // c[1] - 1, c[1] - 1), (x, y))

    check({"first": lambda x, y: fun(x, y)[0], "second": lambda x, y: fun(x, y)[1][0]}, pairs(integers(dtype)))


@of_dtypes(F32, F64, F16)  # of bfloat16, min([0, NaN]) is 0 by XLA in jax 0.12
def test_reductions_of_two(dtype: Any) -> None:
    """Up to signs of zeros: which of 0.0 and -0.0 is larger depends on XLA's order, and a sum starts from its 0.0."""
    x = np.stack(pairs(floats(dtype, subnormal=False)), -1)
    check({"max": jnp.max, "min": jnp.min, "sum": jnp.sum, "prod": jnp.prod, "argmax": jnp.argmax,
           "argmin": jnp.argmin, "cummax": lambda v: lax.cummax(v)[1], "any": lambda v: (v != 0).any(),
           "sort": lambda v: jnp.sort(v)[0]}, (x,), signed_zeros=False)


# ---- elementary functions --------------------------------------------------------------------------------------------
UNARY = ("exp", "exp2", "log", "log1p", "expm1", "sin", "cos", "tan", "tanh", "sinh", "cosh", "asin", "acos", "atan",
         "asinh", "acosh", "atanh", "sqrt", "rsqrt", "cbrt", "logistic", "erf", "erfc", "erf_inv", "lgamma", "digamma")

#: Where XLA is not to be followed: name and dtype (None: any) -> arguments that are left out.
XLA_IS_WRONG: dict[tuple[str, Any], Callable[[np.ndarray], np.ndarray]] = {
    ("exp2", BF16): lambda x: x > 120,  # computed as exp(x log 2) with a log 2 of 8 bits
    ("asin", None): lambda x: np.abs(x) < 1e-4,  # up to jax 0.10 the smallest numbers give 0
    ("lgamma", None): lambda x: np.abs(x - 1) < 1e-2,  # beside its zero it is off by more than its value
    ("digamma", None): lambda x: x == 0,  # NaN in jax 0.10, -inf in 0.12
}


def check_special(functions: Functions, args: tuple[np.ndarray, ...], dtype: Any) -> None:
    """Where either result is zero, infinite or NaN both are; others agree roughly, since accuracy has its own tests."""
    got, want = (run(functions, args, mapper) for mapper in (in_lanes, jax.vmap))
    rough = 40 * float(jnp.finfo(dtype).eps)
    wrong = []
    for name in functions:
        x, y = plain(got[name]).astype(F64), plain(want[name]).astype(F64)
        special = ~np.isfinite(x) | ~np.isfinite(y) | (x == 0) | (y == 0)
        with np.errstate(invalid="ignore", over="ignore"):
            bad = np.where(special, unequal(x, y), np.abs(x - y) > rough * np.maximum(np.abs(y), 0.2))
        for (left_out, only), where in XLA_IS_WRONG.items():
            if left_out == name and only in (None, dtype):
                bad &= ~where(plain(args[0]).astype(F64))
        wrong += [f"{name}({', '.join(str(a[i]) for a in args)}) is {x[i]}, by XLA {y[i]}"
                  for i in np.flatnonzero(bad)[:3]]
    assert not wrong, "\n".join(wrong)


@of_dtypes(*FLOATS)
def test_elementary_functions(dtype: Any) -> None:
    check_special({name: getattr(lax, name) for name in UNARY}, (floats(dtype, subnormal=False),), dtype)


@of_dtypes(*FLOATS)
def test_elementary_functions_of_two(dtype: Any) -> None:
    x = floats(dtype, subnormal=False)
    check_special({"pow": lax.pow, "atan2": lax.atan2}, pairs(x), dtype)
    exponents = np.array([-(2**31), -3, -2, -1, 0, 1, 2, 3, 5, 2**31 - 1], np.int32)
    check_special({"pow by an int": lax.pow}, pairs(x, exponents), dtype)


#: What Annex F of C99 says, and for the functions that C lacks the limits.
C99: list[tuple[str, list[tuple[float, float]]]] = [
    ("exp", [(0.0, 1), (-0.0, 1), (INF, INF), (-INF, 0.0), (1e4, INF), (-1e4, 0.0)]),
    ("exp2", [(0.0, 1), (-0.0, 1), (INF, INF), (-INF, 0.0), (10, 1024), (-3, 0.125)]),
    ("expm1", [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -1)]),
    ("log", [(0.0, -INF), (-0.0, -INF), (1, 0.0), (-1, NAN), (INF, INF), (-INF, NAN)]),
    ("log1p", [(0.0, 0.0), (-0.0, -0.0), (-1, -INF), (-2, NAN), (INF, INF)]),
    ("sin", [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN)]),
    ("cos", [(0.0, 1), (-0.0, 1), (INF, NAN), (-INF, NAN)]),
    ("tan", [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN)]),
    ("tanh", [(0.0, 0.0), (-0.0, -0.0), (INF, 1), (-INF, -1), (100, 1)]),
    ("sinh", [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF)]),
    ("cosh", [(0.0, 1), (-0.0, 1), (INF, INF), (-INF, INF)]),
    ("asin", [(0.0, 0.0), (-0.0, -0.0), (1.5, NAN), (-1.5, NAN), (INF, NAN)]),
    ("acos", [(1, 0.0), (1.5, NAN), (-1.5, NAN), (INF, NAN)]),
    ("atan", [(0.0, 0.0), (-0.0, -0.0), (INF, math.pi / 2), (-INF, -math.pi / 2)]),
    ("asinh", [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF)]),
    ("acosh", [(1, 0.0), (0.5, NAN), (-INF, NAN), (INF, INF)]),
    ("atanh", [(0.0, 0.0), (-0.0, -0.0), (1, INF), (-1, -INF), (2, NAN), (INF, NAN)]),
    ("sqrt", [(0.0, 0.0), (-0.0, -0.0), (-1, NAN), (INF, INF), (-INF, NAN)]),
    ("rsqrt", [(0.0, INF), (-0.0, -INF), (-1, NAN), (INF, 0.0), (4, 0.5)]),
    ("cbrt", [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (-8, -2)]),
    ("logistic", [(0.0, 0.5), (-INF, 0.0), (INF, 1)]),
    ("erf", [(0.0, 0.0), (-0.0, -0.0), (INF, 1), (-INF, -1)]),
    ("erfc", [(0.0, 1), (INF, 0.0), (-INF, 2)]),
    ("erf_inv", [(0.0, 0.0), (-0.0, -0.0), (1, INF), (-1, -INF), (2, NAN)]),
    ("lgamma", [(1, 0.0), (2, 0.0), (0.0, INF), (-0.0, INF), (-1, INF), (INF, INF), (-INF, INF)]),
    ("digamma", [(INF, INF), (-1, NAN)]),
]


def assert_close(name: str, args: tuple[np.ndarray, ...], want: np.ndarray) -> None:
    """Numbers within 4 units in the last place; zeros, infinities and NaN equal."""
    got = np.asarray(in_lanes(getattr(lax, name))(*args))
    with np.errstate(invalid="ignore"):
        near = np.isfinite(want) & (want != 0) & (np.abs(got - want) <= 4 * np.spacing(np.abs(want)))
    off = unequal(got, want) & ~near
    assert not off.any(), f"{name}({', '.join(str(a[off]) for a in args)}) is {got[off]}"


@of_dtypes(F32, F64)
def test_special_values_of_c99(dtype: Any) -> None:
    for name, table in C99:
        x, want = np.array([*table, (NAN, NAN)], dtype).T
        assert_close(name, (x,), want)


#: The same for functions of two arguments.
C99_OF_TWO: list[tuple[str, list[tuple[float, float, float]]]] = [
    ("pow", [(0.0, -3, INF), (-0.0, -3, -INF), (0.0, -2, INF), (-0.0, -2.5, INF), (0.0, -INF, INF), (-0.0, 3, -0.0),
             (-0.0, 2, 0.0), (-1, INF, 1), (-1, -INF, 1), (1, NAN, 1), (NAN, 0.0, 1), (NAN, -0.0, 1), (-2, 0.5, NAN),
             (0.5, -INF, INF), (2, -INF, 0.0), (0.5, INF, 0.0), (2, INF, INF), (-INF, -3, -0.0), (-INF, -2, 0.0),
             (-INF, 3, -INF), (-INF, 2, INF), (INF, -1, 0.0), (INF, 1, INF), (-2, 3, -8), (-2, 2, 4)]),
    ("atan2", [(0.0, -0.0, math.pi), (-0.0, -0.0, -math.pi), (0.0, 0.0, 0.0), (-0.0, 0.0, -0.0), (0.0, -1, math.pi),
               (-0.0, 1, -0.0), (-1, 0.0, -math.pi / 2), (1, -0.0, math.pi / 2), (1, -INF, math.pi), (-1, INF, -0.0),
               (INF, 1, math.pi / 2), (-INF, -1, -math.pi / 2), (INF, -INF, 3 * math.pi / 4), (INF, INF, math.pi / 4),
               (NAN, 1, NAN), (1, NAN, NAN)]),
    ("rem", [(0.0, 1, 0.0), (-0.0, 1, -0.0), (1, 0.0, NAN), (INF, 1, NAN), (1, INF, 1), (-1, -INF, -1), (5.5, 2, 1.5),
             (-5.5, 2, -1.5), (1e20, 3, math.fmod(1e20, 3)), (NAN, 1, NAN), (1, NAN, NAN)]),
    ("max", [(0.0, -0.0, 0.0), (-0.0, 0.0, 0.0), (NAN, 1, NAN), (1, NAN, NAN), (-INF, INF, INF)]),
    ("min", [(0.0, -0.0, -0.0), (-0.0, 0.0, -0.0), (NAN, 1, NAN), (1, NAN, NAN), (-INF, INF, -INF)]),
]


@of_dtypes(F32, F64)
def test_special_values_of_two_arguments(dtype: Any) -> None:
    for name, table in C99_OF_TWO:
        x, y, want = np.array(table, dtype).T
        if name == "rem":
            want = np.fmod(x, y, where=np.isfinite(x) & (y != 0), out=np.full_like(x, NAN))
        assert_close(name, (x, y), want)
