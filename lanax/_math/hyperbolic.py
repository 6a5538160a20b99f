"""sinh, cosh, tanh and their inverses on lanes, from the reduced exponential and log(1 + x). Knows no jaxpr."""

from __future__ import annotations

import dataclasses

from llvmlite import ir

from lanax._llvm.lanes import Lanes
from lanax._math import common as c
from lanax._math.exponential import expm1_fraction, reduce
from lanax._math.logarithm import LN2_HIGH, log1p_of_sum


@dataclasses.dataclass(frozen=True)
class _Constants:
    """Numbers for one format: cosh(r) = 1 + z C(z) and sinh(r) = r + r z S(z) with z = r^2; `infinite`: above it sinh
    and cosh overflow; `one`: above it tanh is 1; `huge`: above it x^2 + 1 is x^2, far below where x^2 overflows."""

    cosh: list[float]
    sinh: list[float]
    infinite: float
    one: float
    huge: float


_FLOAT32 = _Constants(
    cosh=[0.5, 0.041666459292173386, 0.00139354367274791],
    sinh=[0.1666666716337204, 0.008333176374435425, 0.00019973058078903705],
    infinite=89.5,
    one=9.02,
    huge=2.0**40,
)
_FLOAT64 = _Constants(
    cosh=[0.5000000000000013, 0.041666666666511226, 0.0013888888948017188, 2.4801488968640827e-05,
          2.7631612665565613e-07],
    sinh=[0.16666666666666677, 0.008333333333321426, 0.00019841269886637108, 2.7557243695960917e-06,
          2.5109216791314438e-08],
    infinite=710.6,
    one=20.0,
    huge=2.0**300,
)

def _constants(x: ir.Value) -> _Constants:
    return _FLOAT64 if c.is_double(x) else _FLOAT32


@dataclasses.dataclass(frozen=True)
class _Parts:
    """|x| = n ln 2 + r: quarters of 2^n - 2^-n and of 2^n + 2^-n, cosh(r) - 1, and sinh(r)."""

    difference: ir.Value
    total: ir.Value
    coshm1: ir.Value
    sinh: ir.Value


def _parts(b: Lanes, x: ir.Value) -> _Parts:
    k = _constants(x)
    r, shifted = reduce(b, c.at_most(b, b.fabs(x), k.infinite))
    up = c.add_exponent(b, b.like(x, 0.25), shifted)
    down_bits = b.sub(b.bits(b.like(x, 0.25)), shifted)
    down = b.float_of_bits(b.select(b.gt(down_bits, 0), down_bits, 0))
    square = b.mul(r, r)
    sinh_r = b.fma(b.mul(r, square), b.polynomial(square, k.sinh), r)
    return _Parts(b.sub(up, down), b.add(up, down), b.mul(square, b.polynomial(square, k.cosh)), sinh_r)


def sinh(b: Lanes, x: ir.Value) -> ir.Value:
    """Hyperbolic sine: sinh(n ln 2) cosh(r) + cosh(n ln 2) sinh(r), which needs no division and cancels nothing."""
    p = _parts(b, x)
    half = b.add(p.difference, b.fma(p.difference, p.coshm1, b.mul(p.total, p.sinh)))
    return c.keep_tiny(b, c.flip_sign(b, b.add(half, half), x), x)


def cosh(b: Lanes, x: ir.Value) -> ir.Value:
    """Hyperbolic cosine: cosh(n ln 2) cosh(r) + sinh(n ln 2) sinh(r)."""
    p = _parts(b, x)
    half = b.add(p.total, b.fma(p.total, p.coshm1, b.mul(p.difference, p.sinh)))
    return b.add(half, half)


def tanh(b: Lanes, x: ir.Value) -> ir.Value:
    """Hyperbolic tangent: (e^2x - 1) / (e^2x + 1), each of which is 2^n (e^r - 1) + (2^n -+ 1)."""
    a = c.at_most(b, b.fabs(x), _constants(x).one)
    r, shifted = reduce(b, b.add(a, a))
    power = c.add_exponent(b, b.like(x, 1.0), shifted)
    fraction = expm1_fraction(b, r)
    numerator = b.fma(power, fraction, b.sub(power, 1.0))
    return c.flip_sign(b, b.div(numerator, b.fma(power, fraction, b.add(power, 1.0))), x)


def asinh(b: Lanes, x: ir.Value) -> ir.Value:
    """Inverse hyperbolic sine: log(1 + |x| + x^2 / (1 + sqrt(1 + x^2)))."""
    k = _constants(x)
    a = b.fabs(x)
    moderate = b.lt(a, k.huge)
    square = b.mul(a, a)
    rest = b.div(square, b.add(b.sqrt(b.add(square, 1.0)), 1.0))
    high, low = c.fast_two_sum(b, a, b.select(moderate, rest, 0.0))
    y = b.add(log1p_of_sum(b, high, low), b.select(moderate, b.like(x, 0.0), LN2_HIGH))
    y = c.flip_sign(b, b.select(b.lt(a, c.INF), y, a), x)
    return c.keep_tiny(b, y, x)


def acosh(b: Lanes, x: ir.Value) -> ir.Value:
    """Inverse hyperbolic cosine: log(1 + t + sqrt(2 t + t^2)) with t = x - 1."""
    k = _constants(x)
    t = b.sub(x, 1.0)
    moderate = b.lt(x, k.huge)
    root = b.sqrt(b.fma(t, t, b.add(t, t)))
    high, low = c.fast_two_sum(b, b.select(moderate, root, 0.0), t)
    y = b.add(log1p_of_sum(b, high, low), b.select(moderate, b.like(x, 0.0), LN2_HIGH))
    y = b.select(b.lt(x, c.INF), y, x)
    return b.select(b.lt(x, 1.0), c.NAN, y)


def atanh(b: Lanes, x: ir.Value) -> ir.Value:
    """Inverse hyperbolic tangent: log(1 + q) / 2 with q = 2|x| / (1 - |x|) in two parts."""
    a = b.fabs(x)
    twice = b.add(a, a)
    d, d_low = c.fast_two_sum(b, 1.0, b.neg(a))
    reciprocal = b.div(1.0, d)
    q = b.mul(twice, reciprocal)
    rest = b.fma(b.neg(q), d_low, b.fma(b.neg(q), d, twice))
    y = b.mul(log1p_of_sum(b, q, b.mul(rest, reciprocal)), 0.5)
    outside = b.select(b.eq(a, 1.0), b.like(x, c.INF), c.NAN)
    y = c.flip_sign(b, b.select(b.lt(a, 1.0), y, outside), x)
    return c.keep_tiny(b, y, x)
