"""Elementwise arithmetic. What the operations mean stands in `lanewise`; here are the primitives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from lanax._llvm import types as t
from lanax._lowering.arrays import Array
from lanax._lowering.context import Context
from lanax._lowering.families import Fn, elementwise
from lanax._lowering.lanewise.arithmetic import (
    absolute,
    clamp,
    divide,
    maximum,
    minimum,
    next_after,
    remainder,
    sign,
    whole_power,
)
from lanax._lowering.lanewise.bits import count_bits, multiply_high, shift
from lanax._lowering.lanewise.rounding import round_to
from lanax._lowering.registry import register


# -- sums and products -----------------------------------------------------------------------------------------------
def _fuses(x: Array, dtype: np.dtype) -> bool:
    return x.factors is not None and dtype in (np.float32, np.float64)


def _sum_rule(negate: bool) -> Callable[..., Array]:
    """x + y or x - y. Where an operand is a product, one FMA: formed here, so that it is the same for all lanes."""

    def rule(ctx: Context, x: Array, y: Array, **_: Any) -> Array:
        b, dtype = ctx.b, np.dtype(ctx.avals_out[0].dtype)
        if _fuses(y, dtype):
            p, q = y.factors  # type: ignore[misc]
            return b.map(lambda u, v, w: b.fma(b.neg(u) if negate else u, v, w), dtype, p, q, x)
        if _fuses(x, dtype):
            p, q = x.factors  # type: ignore[misc]
            return b.map(lambda u, v, w: b.fma(u, v, b.neg(w) if negate else w), dtype, p, q, y)
        op = b.sub if negate else b.add
        return b.map(lambda u, v: round_to(b, op(u, v), dtype), dtype, x, y)

    return rule


register("add")(_sum_rule(False))
register("add_any")(_sum_rule(False))
register("sub")(_sum_rule(True))


@register("mul")
def _mul_rule(ctx: Context, x: Array, y: Array, **_: Any) -> Array:
    b, dtype = ctx.b, np.dtype(ctx.avals_out[0].dtype)
    if dtype == np.bool_:
        return b.map(b.and_, dtype, x, y)
    out = b.map(lambda u, v: round_to(b, b.mul(u, v), dtype), dtype, x, y)
    out.factors = (x, y)
    return out


@register("square")
def _square_rule(ctx: Context, x: Array, **_: Any) -> Array:
    return _mul_rule(ctx, x, x)


@register("integer_pow", cost=3.0)
def _integer_pow_rule(ctx: Context, x: Array, *, y: int, **_: Any) -> Array:
    """By repeated squaring, in the order in which JAX multiplies."""
    b, dtype = ctx.b, np.dtype(ctx.avals_out[0].dtype)
    if y == 2:
        return _mul_rule(ctx, x, x)
    return b.map(lambda v: whole_power(b, dtype, v, y), dtype, x)


@register("round", cost=2.0)
def _round_rule(ctx: Context, x: Array, *, rounding_method: Any, **_: Any) -> Array:
    b = ctx.b

    def away(v: ir.Value) -> ir.Value:
        """Halves away from zero; adding the largest number below one half keeps 0.49999997 down."""
        half = b.like(v, 0.49999999999999994 if t.bit_width(v.type) == 64 else 0.49999997)
        return b.copysign(b.trunc(b.add(v, b.copysign(half, v))), v)

    return b.map(b.roundeven if int(rounding_method) == 1 else away, x.dtype, x)


_TABLE: dict[str, tuple[Fn, float]] = {
    "neg": (lambda b, d, x: b.neg(x), 1),
    "div": (divide, 6),
    "rem": (remainder, 20),
    "abs": (absolute, 1),
    "sign": (sign, 3),
    "max": (maximum, 3),
    "min": (minimum, 3),
    "clamp": (clamp, 6),
    "floor": (lambda b, d, x: b.floor(x), 1),
    "ceil": (lambda b, d, x: b.ceil(x), 1),
    "nextafter": (next_after, 12),
    "not": (lambda b, d, x: b.not_(x), 1),
    "and": (lambda b, d, x, y: b.and_(x, y), 1),
    "or": (lambda b, d, x, y: b.or_(x, y), 1),
    "xor": (lambda b, d, x, y: b.xor(x, y), 1),
    "shift_left": (shift("shl"), 3),
    "shift_right_logical": (shift("lshr"), 3),
    "shift_right_arithmetic": (shift("ashr"), 3),
    "population_count": (count_bits("ctpop"), 8),
    "clz": (count_bits("ctlz"), 8),
    "mulhi": (multiply_high, 6),
}
for _name, (_fn, _cost) in _TABLE.items():
    elementwise(_name, _fn, _cost)
