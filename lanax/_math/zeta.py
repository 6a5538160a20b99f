"""Hurwitz zeta and polygamma on lanes: ten terms of the series and the Euler-Maclaurin formula for the rest; arguments
below 0 by reflection. float32 arguments go through float64."""

from __future__ import annotations

import math

from llvmlite import ir

from lanax._llvm import types as t
from lanax._llvm.lanes import Lanes, Operand
from lanax._math import common as c
from lanax._math import exponential, extended, gamma, power

#: Terms that are summed as they are.
TERMS = 10
#: B(2k) / (2k)! for k = 1, 2, ...: all that float64 needs after ten terms.
BERNOULLI = [
    1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000, 1 / 74724249600,
    -3617 / 10670622842880000, 43867 / 5109094217170944000, -174611 / 802857662698291200000,
]
#: Exponents up to this that are known when the kernel is built become products.
LARGEST_KNOWN = 8


def _to_minus(b: Lanes, a: ir.Value, s: Operand) -> ir.Value:
    """a^-s for a > 0."""
    if isinstance(s, ir.Value) or s not in range(1, LARGEST_KNOWN + 1):
        return power.pow(b, a, b.neg(s if isinstance(s, ir.Value) else b.like(a, s)))
    inverse = b.div(1.0, a)
    product, square, left = None, inverse, int(s)
    while left:
        if left & 1:
            product = square if product is None else b.mul(product, square)
        square, left = b.mul(square, square), left >> 1
    return product or inverse


def _right(b: Lanes, s: Operand, q: ir.Value) -> ir.Value:
    """zeta(s, q) for s > 1 and q >= 0, in float64."""
    terms = [_to_minus(b, b.add(q, float(k)), s) for k in range(TERMS)]
    total = terms[-1]
    for term in reversed(terms[:-1]):
        total = b.add(total, term)
    a = b.add(q, float(TERMS))
    last = _to_minus(b, a, s)
    s, _ = b.join(s, a)
    inverse = b.div(1.0, a)
    square = b.mul(inverse, inverse)
    series: Operand = BERNOULLI[-1]
    for k in range(len(BERNOULLI) - 1, 0, -1):
        step = b.mul(b.mul(b.add(s, 2.0 * k - 1.0), b.add(s, 2.0 * k)), square)
        series = b.fma(step, series, BERNOULLI[k - 1])
    rest = b.fma(b.mul(s, inverse), series, b.add(b.div(a, b.sub(s, 1.0)), 0.5))
    # Where the next term is nothing, so is the rest, and the formula, not made for such s, may overflow.
    return b.select(b.lt(last, b.mul(total, 2.0**-80)), total, b.fma(last, rest, total))


def _left(b: Lanes, s: Operand, q: ir.Value) -> ir.Value:
    """zeta(s, q) for q < 0 and a whole s: what lies left of 0 is a difference of two sums that start right of it."""
    fraction = b.sub(q, b.floor(q))
    right, first, last = (_right(b, s, x) for x in (fraction, b.sub(1.0, fraction), b.sub(1.0, q)))
    even = b.sub(b.add(right, first), last)
    return b.select(_is_even(b, b.join(s, q)[0]), even, b.add(b.sub(right, first), last))


def _is_even(b: Lanes, s: ir.Value) -> ir.Value:
    half = b.mul(s, 0.5)
    return b.eq(b.floor(half), half)


def _zeta(b: Lanes, s: Operand, q: ir.Value) -> ir.Value:
    value, = extended.where_rare(b, b.lt(q, 0.0), [_right(b, s, b.fabs(q))], lambda: [_left(b, s, q)])
    order, _ = b.join(s, q)
    no_right, whole = b.le(q, 0.0), b.eq(b.floor(order), order)
    outside = b.or_(b.lt(order, 1.0), b.and_(no_right, b.not_(whole)))
    value = b.select(outside, c.NAN, value)
    pole = b.and_(b.and_(no_right, b.eq(b.floor(q), q)), whole)
    value = b.select(pole, b.select(_is_even(b, order), b.like(value, c.INF), c.NAN), value)
    value = b.select(b.or_(b.eq(b.fabs(order), c.INF), b.eq(q, c.INF)), c.NAN, value)
    return b.select(b.eq(order, 1.0), c.INF, value)


def zeta(b: Lanes, s: Operand, q: ir.Value) -> ir.Value:
    """The Hurwitz zeta function: the sum of (q + k)^-s over k >= 0. A number for `s` makes shorter code."""
    order = b.resize_float(s, t.F64) if isinstance(s, ir.Value) else s
    return b.resize_float(_zeta(b, order, b.resize_float(q, t.F64)), t.element(q.type))


def polygamma(b: Lanes, n: Operand, x: ir.Value) -> ir.Value:
    """The n-th derivative of digamma; NaN where n is not a whole number from 0 on. A number for `n` makes shorter
    code."""
    wide = b.resize_float(x, t.F64)
    if not isinstance(n, ir.Value) and n in range(1, LARGEST_KNOWN):
        sign = 1.0 if n % 2 else -1.0
        return b.resize_float(b.mul(_zeta(b, n + 1.0, wide), sign * math.factorial(int(n))), t.element(x.type))
    order = b.resize_float(n if isinstance(n, ir.Value) else b.like(x, n), t.F64)
    after = b.add(order, 1.0)
    value = b.mul(_zeta(b, after, wide), exponential.exp(b, gamma.lgamma(b, after)))
    value = b.resize_float(b.select(_is_even(b, order), b.neg(value), value), t.element(x.type))
    value = b.select(b.eq(order, 0.0), gamma.digamma(b, x), value)
    return b.select(b.or_(b.ne(b.floor(order), order), b.lt(order, 0.0)), c.NAN, value)
