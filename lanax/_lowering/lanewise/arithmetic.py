"""Arithmetic on lane values with XLA's meaning of every corner: NaN, signed zeros, integer division. No arrays here.

Each function is `fn(b, dtype, *lane_values)`, where `dtype` is that of the operands.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
from llvmlite import ir

from lanax._llvm import types as t
from lanax._llvm.lanes import number_of
from lanax._llvm.memory import to_lane, to_memory
from lanax._lowering.emitter import Emitter
from lanax._lowering.lanewise.rounding import round_to

Fn = Callable[..., ir.Value]

def is_signed(dtype: np.dtype) -> bool:
    """Whether a dtype is of signed integers."""
    return np.dtype(dtype).kind == "i"


def whole_power(b: Emitter, dtype: np.dtype, x: ir.Value, n: int) -> ir.Value:
    """x^n by repeated squaring, in the order in which JAX multiplies."""
    if n == 0:
        return b.like(x, 1)
    out, left = None, abs(n)
    while left:
        if left & 1:
            out = x if out is None else round_to(b, b.mul(out, x), dtype)
        left >>= 1
        if left:
            x = round_to(b, b.mul(x, x), dtype)
    assert out is not None
    return round_to(b, b.div(b.like(out, 1.0), out), dtype) if n < 0 else out


# -- division --------------------------------------------------------------------------------------------------------
def divide(b: Emitter, dtype: np.dtype, x: ir.Value, y: ir.Value) -> ir.Value:
    """Floats by IEEE; integers towards zero, with x / 0 = -1 (all ones) and INT_MIN / -1 = INT_MIN."""
    x, y = b.join(x, y)
    if t.is_float(x.type):
        number = number_of(y)
        return _divide_by_number(b, x, number) if number is not None else b.div(x, y)
    zero = b.eq(y, 0)
    if not is_signed(dtype):
        return b.select(zero, -1, b.ir.udiv(x, b.select(zero, 1, y)))
    overflow = b.eq(y, -1)
    quotient = b.ir.sdiv(x, b.select(b.or_(zero, overflow), 1, y))
    return b.select(zero, -1, b.select(overflow, b.neg(x), quotient))


def _divide_by_number(b: Emitter, x: ir.Value, number: float) -> ir.Value:
    """x / number by two products with the reciprocal, which is held in two parts: within 0.51 ULP, where XLA's single
    product is within 1. The parts have one sign, so that an infinite x does not meet its opposite."""
    kind = np.float64 if t.bit_width(x.type) == 64 else np.float32
    smallest = float(np.finfo(kind).tiny)
    if not smallest < abs(number) < 1 / smallest:
        return b.div(x, b.like(x, number))
    exact = 1 / Fraction(number)
    high = kind(float(exact))
    if abs(Fraction(float(high))) > abs(exact):
        high = np.nextafter(high, kind(0))
    low = kind(float(exact - Fraction(float(high))))
    if low == 0:
        return b.mul(x, float(high))
    if abs(low) < smallest or abs(high) < smallest:
        return b.div(x, b.like(x, number))
    return b.fma(x, float(high), b.mul(x, float(low)))


def remainder(b: Emitter, dtype: np.dtype, x: ir.Value, y: ir.Value) -> ir.Value:
    """Sign of the dividend; integers: x % 0 = x and INT_MIN % -1 = 0."""
    x, y = b.join(x, y)
    if t.is_float(x.type):
        return _float_rem(b, x, y)
    zero = b.eq(y, 0)
    if not is_signed(dtype):
        return b.select(zero, x, b.ir.urem(x, b.select(zero, 1, y)))
    overflow = b.eq(y, -1)
    rest = b.ir.srem(x, b.select(b.or_(zero, overflow), 1, y))
    return b.select(zero, x, b.select(overflow, 0, rest))


def _float_rem(b: Emitter, x: ir.Value, y: ir.Value) -> ir.Value:
    """fmod, exactly: take off multiples of y scaled by a power of two, largest first, while any lane still has some.

    Each trip removes n = trunc(r / s) copies of s = y * 2^k, with n small enough for the product to be exact. What is
    less than y is told by its bits, so that a subnormal x is handed on, as by libm.
    """
    double = t.bit_width(x.type) == 64
    bias, digits = (1023, 52) if double else (127, 23)
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
    less = b.compare("<", b.bits(ax), b.bits(ay), signed=False)
    out = b.select(less, x, b.copysign(b.select(usable, r, 0.0), x))
    bad = b.or_(b.not_(b.lt(ax, float("inf"))), b.or_(b.isnan(y), b.eq(ay, 0.0)))
    return b.select(bad, float("nan"), out)


# -- signs, order, rounding ------------------------------------------------------------------------------------------
def absolute(b: Emitter, dtype: np.dtype, x: ir.Value) -> ir.Value:
    if t.is_float(x.type):
        return b.fabs(x)
    return b.select(b.lt(x, 0), b.neg(x), x) if is_signed(dtype) else x


def sign(b: Emitter, dtype: np.dtype, x: ir.Value) -> ir.Value:
    """-1, 0 or 1; zeros keep their sign and NaN stays NaN."""
    if t.is_float(x.type):
        return b.select(b.isnan(x), x, b.copysign(b.select(b.eq(x, 0.0), b.like(x, 0.0), 1.0), x))
    if not is_signed(dtype):
        return b.select(b.eq(x, 0), x, 1)
    return b.select(b.eq(x, 0), x, b.select(b.lt(x, 0), b.like(x, -1), b.like(x, 1)))


def _extreme(op: str) -> Fn:
    def fn(b: Emitter, dtype: np.dtype, x: ir.Value, y: ir.Value) -> ir.Value:
        x, y = b.join(x, y)
        if dtype == np.bool_:
            return b.or_(x, y) if op == ">" else b.and_(x, y)
        if not t.is_float(x.type):
            return b.select(b.compare(op, x, y, is_signed(dtype)), x, y)
        return b.maximum(x, y) if op == ">" else b.minimum(x, y)

    return fn


maximum, minimum = _extreme(">"), _extreme("<")


def clamp(b: Emitter, dtype: np.dtype, low: ir.Value, x: ir.Value, high: ir.Value) -> ir.Value:
    return minimum(b, dtype, maximum(b, dtype, low, x), high)


def next_after(b: Emitter, dtype: np.dtype, x: ir.Value, y: ir.Value) -> ir.Value:
    """One step towards y, on the bits that the dtype has in memory; y itself where both are equal."""
    x, y = b.join(x, y)
    kind = t.lane_type(dtype)
    word = ir.IntType(8 * kind.itemsize)

    def raw(v: ir.Value) -> ir.Value:
        v = to_memory(b, v, kind)
        return v if kind.memory == word else b.ir.bitcast(v, t.like(word, v.type))

    bits, ybits = raw(x), raw(y)
    sign = b.like(bits, -(1 << (word.width - 1)))
    magnitude, ymagnitude = b.and_(bits, b.not_(sign)), b.and_(ybits, b.not_(sign))
    from_zero = b.or_(b.and_(ybits, sign), 1)
    opposite = b.lt(b.xor(bits, ybits), 0)
    inward = b.or_(b.compare(">", magnitude, ymagnitude, signed=False), opposite)
    moved = b.add(bits, b.select(inward, b.like(bits, -1), b.like(bits, 1)))
    out = b.select(b.eq(x, y), ybits, b.select(b.eq(magnitude, 0), from_zero, moved))
    out = to_lane(b, out if kind.memory == word else b.ir.bitcast(out, t.like(kind.memory, out.type)), kind)
    return b.select(b.or_(b.isnan(x), b.isnan(y)), float("nan"), out)


def total_order(b: Emitter, x: ir.Value) -> ir.Value:
    """An integer that orders as IEEE's total order of floats: -NaN < -inf < ... < -0 < 0 < ... < inf < NaN."""
    bits = b.bits(x)
    width = t.bit_width(x.type)
    return b.xor(bits, b.lshr(b.ashr(bits, width - 1), 1))
