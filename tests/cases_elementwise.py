"""Rows for arithmetic, comparisons, selections, conversions, bits and elementary functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from case import Arg, Case
from jax import lax
from jax._src.lax import lax as _lax

F32, F64, BF16, F16 = np.float32, np.float64, ml_dtypes.bfloat16, np.float16
SIGNED = (np.int8, np.int16, np.int32, np.int64)
UNSIGNED = (np.uint8, np.uint16, np.uint32, np.uint64)
FLOATS = (F32, F64, BF16, F16)
NUMBERS = (*SIGNED, *UNSIGNED, *FLOATS)


def within(low: float, high: float, dtype: Any) -> Arg:
    """Uniform numbers of an interval."""
    return lambda rng, batch: rng.uniform(low, high, batch).astype(dtype)


def rows(primitive: str, fun: Callable[..., Any], dtypes: tuple[Any, ...], count: int, **options: Any) -> list[Case]:
    """One row of scalars for each dtype."""
    return [Case(primitive, np.dtype(d).name, fun, (((), d),) * count, **options) for d in dtypes]


def _arithmetic() -> list[Case]:
    out: list[Case] = []
    for name, fun in (("add", lax.add), ("sub", lax.sub), ("mul", lax.mul), ("div", lax.div), ("rem", lax.rem),
                      ("max", lax.max), ("min", lax.min)):
        out += rows(name, fun, NUMBERS, 2)
    out += [Case("add", f"product-{np.dtype(d).name}", lambda x, y: x * y + x, (((), d), ((), d)))
            for d in (F32, F64, BF16)]
    out += [Case("add", "rank2", lambda x, y: x + y[0], (((3, 4), F32), ((3, 4), F32))),
            Case("mul", "large", lambda x, y: x * y + 2 * x, (((9, 11), F32), ((9, 11), F32))),
            Case("add_any", "", lambda x: jax.grad(lambda v: jnp.sin(v) * v)(x), (((), F32),)),
            Case("square", "", lax.square, (((3,), F32),))]
    for name, fun in (("neg", lax.neg), ("abs", lax.abs), ("sign", lax.sign)):
        out += rows(name, fun, (*SIGNED, *FLOATS), 1)
    for name, fun in (("floor", lax.floor), ("ceil", lax.ceil), ("is_finite", lax.is_finite)):
        out += rows(name, fun, FLOATS, 1)
    for method in (lax.RoundingMethod.AWAY_FROM_ZERO, lax.RoundingMethod.TO_NEAREST_EVEN):
        out += [Case("round", f"{method.name}-{np.dtype(d).name}", lambda x, m=method: lax.round(x * 2, m), (((), d),))
                for d in FLOATS]
    out += rows("nextafter", lax.nextafter, (F32, F64), 2)
    out += rows("clamp", lambda x, y: lax.clamp(jnp.minimum(x, y), x * 2, jnp.maximum(x, y)), (np.int32, F32, F64), 2)
    out += [Case("clamp", "scalar-bounds", lambda x: lax.clamp(jnp.float32(-0.5), x, jnp.float32(0.5)), (((5,), F32),))]
    for power in (-3, -1, 0, 1, 2, 3, 7, 10):
        out += [Case("integer_pow", f"{power}-{np.dtype(d).name}", lambda x, n=power: lax.integer_pow(x, n), (((), d),))
                for d in ((F32, F64, np.int32) if power >= 0 else (F32, F64))]
    return out


def _bits() -> list[Case]:
    out: list[Case] = []
    integers = (*SIGNED, *UNSIGNED)
    for name, fun in (("and", lax.bitwise_and), ("or", lax.bitwise_or), ("xor", lax.bitwise_xor)):
        out += rows(name, fun, (*integers, np.bool_), 2)
    out += rows("not", lax.bitwise_not, (*integers, np.bool_), 1)
    for name, fun in (("shift_left", lax.shift_left), ("shift_right_logical", lax.shift_right_logical),
                      ("shift_right_arithmetic", lax.shift_right_arithmetic)):
        out += rows(name, fun, integers, 2)
    out += rows("population_count", lax.population_count, integers, 1)
    out += rows("clz", lax.clz, integers, 1)
    out += rows("mulhi", lax.mulhi, (np.int32, np.uint32), 2) if hasattr(lax, "mulhi") else []
    return out


def _comparisons() -> list[Case]:
    out: list[Case] = []
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        out += rows(name, getattr(lax, name), (np.int8, np.uint8, np.int64, np.uint64, F32, F64, BF16), 2)
    for name in ("eq_to", "le_to", "lt_to"):
        primitive = getattr(_lax, f"{name}_p")
        out += [Case(name, np.dtype(d).name, primitive.bind, (((), d), ((), d))) for d in (F32, F64, np.int32)]
    out += [Case("select_n", "bool", jnp.where, (((3,), np.bool_), ((3,), F32), ((3,), F32))),
            Case("select_n", "scalar", lax.select_n, (((), np.bool_), ((3,), F32), ((3,), F32))),
            Case("select_n", "large", jnp.where, (((99,), np.bool_), ((99,), F64), ((99,), F64))),
            Case("select_n", "three", lambda i, x: lax.select_n(jnp.abs(i) % 3, x, 2 * x, 3 * x),
                 (((), np.int32), ((), F32)))]
    return out


def _conversions() -> list[Case]:
    types = (*NUMBERS, np.bool_)
    out = [Case("convert_element_type", f"{np.dtype(a).name}-{np.dtype(b).name}",
                lambda x, b=b: lax.convert_element_type(x, b), (((), a),))
           for a in types for b in types if a != b]
    for a, b in ((F32, np.int32), (np.int32, F32), (F64, np.int64), (np.uint64, F64), (F16, np.int16),
                 (BF16, np.uint16), (np.int8, np.uint8)):
        out.append(Case("bitcast_convert_type", f"{np.dtype(a).name}-{np.dtype(b).name}",
                        lambda x, b=b: lax.bitcast_convert_type(x, b), (((2,), a),), exact=True))
    for name, shape, a, b in (("split", (3,), F32, np.uint8), ("split-large", (99,), F64, np.uint16),
                              ("join", (3, 4), np.uint8, np.uint32), ("join-large", (50, 2), np.uint32, F64)):
        out.append(Case("bitcast_convert_type", name, lambda x, b=b: lax.bitcast_convert_type(x, b), ((shape, a),)))
    return out


#: Function, interval of its argument.
_MATH: dict[str, tuple[Callable[..., Any], float, float]] = {
    "exp": (lax.exp, -9, 9), "exp2": (lax.exp2, -3, 3), "expm1": (lax.expm1, -3, 3),
    "log": (lax.log, 1e-3, 1e3), "log1p": (lax.log1p, -0.9, 10), "logistic": (lax.logistic, -10, 10),
    "sin": (lax.sin, -50, 50), "cos": (lax.cos, -50, 50), "tan": (lax.tan, -1.5, 1.5),
    "asin": (lax.asin, -1, 1), "acos": (lax.acos, -1, 1), "atan": (lax.atan, -5, 5),
    "sinh": (lax.sinh, -5, 5), "cosh": (lax.cosh, -5, 5), "tanh": (lax.tanh, -3, 3),
    "asinh": (lax.asinh, -20, 20), "acosh": (lax.acosh, 1.01, 20), "atanh": (lax.atanh, -0.95, 0.95),
    "sqrt": (lax.sqrt, 0, 100), "rsqrt": (lax.rsqrt, 0.1, 100), "cbrt": (lax.cbrt, -100, 100),
    "erf": (lax.erf, -3, 3), "erfc": (lax.erfc, -3, 6), "erf_inv": (lax.erf_inv, -0.99, 0.99),
    "lgamma": (lax.lgamma, 0.1, 20), "digamma": (lax.digamma, 2, 20),
}


def _functions() -> list[Case]:
    out: list[Case] = []
    for name, (fun, low, high) in _MATH.items():
        for dtype, rtol in ((F32, 5e-6), (F64, 2e-13), (F16, 4e-3), (BF16, 2e-2)):
            # The reference for 64-bit special functions is not better than this.
            loose = 1e-6 if name in ("erfc", "erf_inv", "lgamma", "digamma") and dtype == F32 else 0
            out.append(Case(name, np.dtype(dtype).name, fun, (within(low, high, dtype),), rtol=max(rtol, 10 * loose),
                            atol=max(rtol, loose)))
    for dtype, rtol in ((F32, 5e-6), (F64, 1e-13)):
        name = np.dtype(dtype).name
        out += [Case("pow", name, lax.pow, (within(0.1, 10, dtype), within(-5, 5, dtype)), rtol=rtol),
                Case("pow", f"int-{name}", lambda x, n: lax.pow(x, n % 5), (within(-4, 4, dtype), ((), np.int32)),
                     rtol=rtol),
                Case("atan2", name, lax.atan2, (within(-5, 5, dtype), within(-5, 5, dtype)), rtol=rtol)]
    return out


CASES = [*_arithmetic(), *_bits(), *_comparisons(), *_conversions(), *_functions()]
