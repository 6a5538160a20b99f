"""Elementwise arithmetic, with XLA's meaning of every corner: NaN, signed zeros, integer division, shifts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from lanax._llvm import types as t
from lanax._lowering.arrays import Array
from lanax._lowering.context import Context
from lanax._lowering.emitter import Emitter
from lanax._lowering.registry import register
from lanax._lowering.rules.rounding import round_to

Fn = Callable[..., ir.Value]


def elementwise(name: str, fn: Fn, cost: float = 1.0) -> None:
    """Register `fn(b, dtype, *lane_values)`, where `dtype` is that of the first operand."""

    def rule(ctx: Context, *arrays: Array, **_: Any) -> Array:
        dtype, out = arrays[0].dtype, np.dtype(ctx.avals_out[0].dtype)
        return ctx.b.map(lambda *v: round_to(ctx.b, fn(ctx.b, dtype, *v), out), out, *arrays)

    rule.__name__ = f"_{name}_rule"
    register(name, cost=cost)(rule)


def is_signed(dtype: np.dtype) -> bool:
    return np.dtype(dtype).kind == "i"


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

    def power(v: ir.Value) -> ir.Value:
        if y == 0:
            return b.like(v, 1)
        out, n = None, abs(y)
        while n:
            if n & 1:
                out = v if out is None else round_to(b, b.mul(out, v), dtype)
            n >>= 1
            if n:
                v = round_to(b, b.mul(v, v), dtype)
        assert out is not None
        return b.div(b.like(out, 1.0), out) if y < 0 else out

    return b.map(lambda v: round_to(b, power(v), dtype), dtype, x)


# -- division --------------------------------------------------------------------------------------------------------
def _div(b: Emitter, dtype: np.dtype, x: ir.Value, y: ir.Value) -> ir.Value:
    """Floats by IEEE; integers towards zero, with x / 0 = -1 (all ones) and INT_MIN / -1 = INT_MIN."""
    x, y = b.join(x, y)
    if t.is_float(x.type):
        return b.div(x, y)
    zero = b.eq(y, 0)
    if not is_signed(dtype):
        return b.select(zero, -1, b.ir.udiv(x, b.select(zero, 1, y)))
    overflow = b.eq(y, -1)
    quotient = b.ir.sdiv(x, b.select(b.or_(zero, overflow), 1, y))
    return b.select(zero, -1, b.select(overflow, b.neg(x), quotient))


def _rem(b: Emitter, dtype: np.dtype, x: ir.Value, y: ir.Value) -> ir.Value:
    """Sign of the dividend; integers: x % 0 = x and INT_MIN % -1 = 0."""
    x, y = b.join(x, y)
    if t.is_float(x.type):
        return _float_rem(b, x, y)
    zero = b.eq(y, 0)
    if not is_signed(dtype):
        return b.select(zero, x, b.ir.urem(x, b.select(zero, 1, y)))
    overflow = b.eq(y, -1)
    remainder = b.ir.srem(x, b.select(b.or_(zero, overflow), 1, y))
    return b.select(zero, x, b.select(overflow, 0, remainder))


def _float_rem(b: Emitter, x: ir.Value, y: ir.Value) -> ir.Value:
    """fmod, exactly: take off multiples of y scaled by a power of two, largest first, while any lane still has some.

    Each trip removes n = trunc(r / s) copies of s = y * 2^k, with n small enough for the product to be exact.
    """
    double = t.bit_width(x.type) == 64
    bias, digits, bits = (1023, 52, 64) if double else (127, 23, 32)
    kind = ir.IntType(bits)
    step = 20 if double else 10
    ax, ay = b.fabs(x), b.fabs(y)
    usable = b.and_(b.lt(ax, float("inf")), b.and_(b.gt(ay, 0.0), b.lt(ay, float("inf"))))
    r0 = b.select(usable, ax, 0.0)
    d = b.select(usable, ay, 1.0)

    def exponent(v: ir.Value) -> ir.Value:
        return b.lshr(b.bits(v), digits)

    def trip(values: list[ir.Value]) -> tuple[list[ir.Value], ir.Value]:
        (r,) = values
        room = b.sub(b.sub(exponent(r), exponent(d)), step)
        positive = b.gt(room, 0)
        scale = b.float_of_bits(b.shl(b.add(b.select(positive, room, 0), bias), digits))
        # The scale may be up to 2^(2 * bias): apply it in two halves, so that it is a number itself.
        half = b.ashr(b.select(positive, room, 0), 1)
        rest = b.sub(b.select(positive, room, 0), half)
        scale, scale2 = (b.float_of_bits(b.shl(b.add(h, bias), digits)) for h in (half, rest))
        s = b.mul(b.mul(d, scale), scale2)
        n = b.trunc(b.div(r, s))
        new = b.fma(b.neg(n), s, r)
        new = b.select(b.lt(new, 0.0), b.add(new, s), new)
        new = b.select(b.ge(new, s), b.sub(new, s), new)
        return [new], b.any(b.to_mask(b.ge(new, d)))

    (r,) = b.loop(b.any(b.to_mask(b.ge(r0, d))), [r0], trip)
    del kind
    out = b.select(usable, r, ax)
    bad = b.or_(b.not_(b.lt(ax, float("inf"))), b.or_(b.isnan(y), b.eq(ay, 0.0)))
    return b.select(bad, float("nan"), b.copysign(out, x))


# -- signs, order, rounding ------------------------------------------------------------------------------------------
def _abs(b: Emitter, dtype: np.dtype, x: ir.Value) -> ir.Value:
    if t.is_float(x.type):
        return b.fabs(x)
    return b.select(b.lt(x, 0), b.neg(x), x) if is_signed(dtype) else x


def _sign(b: Emitter, dtype: np.dtype, x: ir.Value) -> ir.Value:
    """-1, 0 or 1; zeros keep their sign and NaN stays NaN."""
    if t.is_float(x.type):
        return b.select(b.or_(b.isnan(x), b.eq(x, 0.0)), x, b.copysign(b.like(x, 1.0), x))
    if not is_signed(dtype):
        return b.select(b.eq(x, 0), x, 1)
    return b.select(b.eq(x, 0), x, b.select(b.lt(x, 0), b.like(x, -1), b.like(x, 1)))


def _extreme(op: str) -> Fn:
    name = {">": "maximum", "<": "minimum"}[op]

    def fn(b: Emitter, dtype: np.dtype, x: ir.Value, y: ir.Value) -> ir.Value:
        x, y = b.join(x, y)
        if dtype == np.bool_:
            return b.or_(x, y) if op == ">" else b.and_(x, y)
        if not t.is_float(x.type):
            return b.select(b.compare(op, x, y, is_signed(dtype)), x, y)
        return b.intrinsic(name, x.type, x, y)

    return fn


maximum, minimum = _extreme(">"), _extreme("<")


def _clamp(b: Emitter, dtype: np.dtype, low: ir.Value, x: ir.Value, high: ir.Value) -> ir.Value:
    return minimum(b, dtype, maximum(b, dtype, low, x), high)


@register("round", cost=2.0)
def _round_rule(ctx: Context, x: Array, *, rounding_method: Any, **_: Any) -> Array:
    b = ctx.b

    def away(v: ir.Value) -> ir.Value:
        """Halves away from zero; adding the largest number below one half keeps 0.49999997 down."""
        half = b.like(v, 0.49999999999999994 if t.bit_width(v.type) == 64 else 0.49999997)
        return b.copysign(b.trunc(b.add(v, b.copysign(half, v))), v)

    return b.map(b.roundeven if int(rounding_method) == 1 else away, x.dtype, x)


def _nextafter(b: Emitter, dtype: np.dtype, x: ir.Value, y: ir.Value) -> ir.Value:
    x, y = b.join(x, y)
    bits, ybits = b.bits(x), b.bits(y)
    width = t.bit_width(x.type)
    sign = b.like(bits, -(1 << (width - 1)))
    magnitude = b.and_(bits, b.not_(sign))
    ymagnitude = b.and_(ybits, b.not_(sign))
    from_zero = b.or_(b.and_(ybits, sign), 1)
    opposite = b.lt(b.xor(bits, ybits), 0)
    inward = b.or_(b.compare(">", magnitude, ymagnitude, signed=False), opposite)
    moved = b.add(bits, b.select(inward, b.like(bits, -1), b.like(bits, 1)))
    stay = b.or_(b.eq(bits, ybits), b.and_(b.eq(magnitude, 0), b.eq(ymagnitude, 0)))
    out = b.select(stay, ybits, b.select(b.eq(magnitude, 0), from_zero, moved))
    return b.select(b.or_(b.isnan(x), b.isnan(y)), float("nan"), b.float_of_bits(out))


# -- bits ------------------------------------------------------------------------------------------------------------
def _shift(op: str) -> Fn:
    """Past the width a shift gives 0, an arithmetic one the sign in every bit."""

    def fn(b: Emitter, dtype: np.dtype, x: ir.Value, y: ir.Value) -> ir.Value:
        x, y = b.join(x, y)
        width = t.bit_width(x.type)
        fits = b.compare("<", y, width, signed=False)
        if op == "ashr":
            return b.ashr(x, b.select(fits, y, width - 1))
        shifted = getattr(b, op)(x, b.select(fits, y, 0))
        return b.select(fits, shifted, 0)

    return fn


def _count(name: str) -> Fn:
    def fn(b: Emitter, dtype: np.dtype, x: ir.Value) -> ir.Value:
        flags = () if name == "ctpop" else (ir.Constant(t.I1, 0),)
        return b.intrinsic(name, x.type, x, *flags)

    return fn


def _mulhi(b: Emitter, dtype: np.dtype, x: ir.Value, y: ir.Value) -> ir.Value:
    x, y = b.join(x, y)
    width = t.bit_width(x.type)
    wide = ir.IntType(2 * width)
    signed = is_signed(dtype)
    product = b.mul(b.resize_int(x, wide, signed), b.resize_int(y, wide, signed))
    return b.resize_int(b.lshr(product, width), ir.IntType(width))


_TABLE: dict[str, tuple[Fn, float]] = {
    "neg": (lambda b, d, x: b.neg(x), 1),
    "div": (_div, 6),
    "rem": (_rem, 20),
    "abs": (_abs, 1),
    "sign": (_sign, 3),
    "max": (maximum, 3),
    "min": (minimum, 3),
    "clamp": (_clamp, 6),
    "floor": (lambda b, d, x: b.floor(x), 1),
    "ceil": (lambda b, d, x: b.ceil(x), 1),
    "nextafter": (_nextafter, 12),
    "not": (lambda b, d, x: b.not_(x), 1),
    "and": (lambda b, d, x, y: b.and_(x, y), 1),
    "or": (lambda b, d, x, y: b.or_(x, y), 1),
    "xor": (lambda b, d, x, y: b.xor(x, y), 1),
    "shift_left": (_shift("shl"), 3),
    "shift_right_logical": (_shift("lshr"), 3),
    "shift_right_arithmetic": (_shift("ashr"), 3),
    "population_count": (_count("ctpop"), 8),
    "clz": (_count("ctlz"), 8),
    "mulhi": (_mulhi, 6),
}
for _name, (_fn, _cost) in _TABLE.items():
    elementwise(_name, _fn, _cost)
