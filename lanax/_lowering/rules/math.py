"""Elementary and special functions: float32 and float64 by `lanax._math`, the 16-bit floats by way of float32."""

from __future__ import annotations

import importlib
from typing import Any

from llvmlite import ir

from lanax._jax import DIGAMMA_OF_ZERO
from lanax._lowering.arrays import Array
from lanax._lowering.context import Context
from lanax._lowering.families import Fn, elementwise
from lanax._lowering.lanewise.conversion import convert
from lanax._lowering.lanewise.rounding import round_to
from lanax._lowering.registry import register
from lanax._math import power
from lanax._math.gamma import digamma

#: Module of `lanax._math`, function, primitive, rough cost in vector instructions.
_TABLE = (
    ("exponential", "exp", "exp", 19),
    ("exponential", "exp2", "exp2", 17),
    ("exponential", "expm1", "expm1", 32),
    ("exponential", "logistic", "logistic", 29),
    ("logarithm", "log", "log", 25),
    ("logarithm", "log1p", "log1p", 47),
    ("power", "cbrt", "cbrt", 27),
    ("power", "rsqrt", "rsqrt", 14),
    ("hyperbolic", "sinh", "sinh", 36),
    ("hyperbolic", "cosh", "cosh", 34),
    ("hyperbolic", "tanh", "tanh", 33),
    ("hyperbolic", "asinh", "asinh", 70),
    ("hyperbolic", "acosh", "acosh", 61),
    ("hyperbolic", "atanh", "atanh", 57),
    ("trigonometric", "sin", "sin", 33),
    ("trigonometric", "cos", "cos", 33),
    ("trigonometric", "tan", "tan", 45),
    ("inverse", "asin", "asin", 31),
    ("inverse", "acos", "acos", 31),
    ("inverse", "atan", "atan", 38),
    ("inverse", "atan2", "atan2", 53),
    ("error", "erf", "erf", 37),
    ("error", "erfc", "erfc", 91),
    ("error", "erf_inv", "erf_inv", 78),
    ("gamma", "lgamma", "lgamma", 170),
)


def _register(module: str, function: str, primitive: str, cost: float) -> None:
    fn: Fn = getattr(importlib.import_module(f"lanax._math.{module}"), function)
    elementwise(primitive, lambda b, dtype, *x: fn(b, *b.join(*x)), cost)


for _row in _TABLE:
    _register(*_row)


@register("pow", cost=60.0)
def _pow_rule(ctx: Context, x: Array, y: Array, **_: Any) -> Array:
    """The exponent may be an integer: it is converted to the dtype of the base."""
    b, dtype, exponent = ctx.b, x.dtype, y.dtype
    known = y.at().constant if y.shape == () and isinstance(y.at(), ir.Constant) else None

    def fn(u: ir.Value, v: ir.Value) -> ir.Value:
        power_of = None if known is None else power.pow_known(b, u, float(known))
        if power_of is None:
            power_of = power.pow(b, *b.join(u, convert(b, v, exponent, dtype)))
        return round_to(b, power_of, dtype)

    return b.map(fn, dtype, x, y)


elementwise("sqrt", lambda b, dtype, x: b.sqrt(x), 6)
elementwise("digamma", lambda b, dtype, x: digamma(b, x, DIGAMMA_OF_ZERO), 190)
