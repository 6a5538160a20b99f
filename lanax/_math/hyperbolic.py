"""sinh, cosh, tanh and their inverses on lanes, from the reduced exponential and log(1 + x). Knows no jaxpr."""

from __future__ import annotations

import dataclasses
import math

from llvmlite import ir

from lanax._llvm.lanes import Lanes
from lanax._math import common as c
from lanax._math.exponential import FLOAT32_EXP, expm1_fraction, expm1_rest, reduce, reduce_in_parts
from lanax._math.logarithm import log1p_of_sum


@dataclasses.dataclass(frozen=True)
class _Constants:
    """Numbers for one format: cosh(r) = 1 + z C(z), sinh(r) = r + r z S(z) and, up to `asinh_middle`, asinh(r) =
    r + r z A(z), with z = r^2; `infinite`: above it sinh and cosh overflow; `one`: above it tanh is 1; `huge`: above it
    x^2 + 1 is x^2, far below where x^2 overflows."""

    cosh: list[float]
    sinh: list[float]
    asinh: list[float]
    asinh_middle: float
    infinite: float
    one: float
    huge: float


_FLOAT32 = _Constants(
    cosh=[0.5, 0.041666459292173386, 0.00139354367274791],
    sinh=[0.1666666716337204, 0.008333176374435425, 0.00019973058078903705],
    asinh=[-0.16666601598262787, 0.07496977597475052, -0.04418059438467026, 0.02720247022807598, -0.011671542190015316],
    asinh_middle=0.5625,
    infinite=89.5,
    one=9.02,
    huge=2.0**40,
)
_FLOAT64 = _Constants(
    cosh=[0.5000000000000013, 0.041666666666511226, 0.0013888888948017188, 2.4801488968640827e-05,
          2.7631612665565613e-07],
    sinh=[0.16666666666666677, 0.008333333333321426, 0.00019841269886637108, 2.7557243695960917e-06,
          2.5109216791314438e-08],
    asinh=[-0.16666666666666657, 0.07499999999989641, -0.04464285710394716, 0.030381937502335025, -0.022371492672377664,
           0.017317318812490476, -0.012975920057754478],
    asinh_middle=0.15,
    infinite=710.6,
    one=20.0,
    huge=2.0**300,
)


def _constants(x: ir.Value) -> _Constants:
    return _FLOAT64 if c.is_double(x) else _FLOAT32


@dataclasses.dataclass(frozen=True)
class _Parts:
    """|x| = n ln 2 + r with r = high + low: quarters of 2^n and 2^-n, cosh(r) - 1, high, and sinh(r) - high."""

    up: ir.Value
    down: ir.Value
    coshm1: ir.Value
    high: ir.Value
    rest: ir.Value


def _parts(b: Lanes, x: ir.Value) -> _Parts:
    k = _constants(x)
    high, low, shifted = reduce_in_parts(b, c.at_most(b, b.fabs(x), k.infinite))
    up = c.add_exponent(b, b.like(x, 0.25), shifted)
    down_bits = b.sub(b.bits(b.like(x, 0.25)), shifted)
    down = b.float_of_bits(b.select(b.gt(down_bits, 0), down_bits, 0))
    r = b.add(high, low)
    square = b.mul(r, r)
    rest = b.fma(b.mul(r, square), b.polynomial(square, k.sinh), low)
    return _Parts(up, down, b.mul(square, b.polynomial(square, k.cosh)), high, rest)


def sinh(b: Lanes, x: ir.Value) -> ir.Value:
    """Hyperbolic sine: sinh(n ln 2) cosh(r) + cosh(n ln 2) sinh(r), which needs no division and cancels nothing; what
    the sum of its leading terms loses is added last. 1.0 ULP (float32), 1.2 (float64); 2.5 where `b.fast`."""
    p = _parts(b, x)
    difference, total = b.sub(p.up, p.down), b.add(p.up, p.down)
    if b.fast:
        half = b.fma(total, b.add(p.high, p.rest), b.fma(difference, p.coshm1, difference))
        return c.keep_tiny(b, c.flip_sign(b, b.add(half, half), x), x, odd=True)
    half, error = c.fma_in_parts(b, total, p.high, difference)
    half = b.add(half, b.fma(total, p.rest, b.fma(difference, p.coshm1, error)))
    return c.keep_tiny(b, c.flip_sign(b, b.add(half, half), x), x, odd=True)


def cosh(b: Lanes, x: ir.Value) -> ir.Value:
    """Hyperbolic cosine: cosh(n ln 2) cosh(r) + sinh(n ln 2) sinh(r), summed as in `sinh`. 0.8 ULP; 2.5 where
    `b.fast`."""
    p = _parts(b, x)
    difference = b.sub(p.up, p.down)
    if b.fast:
        total = b.add(p.up, p.down)
        half = b.fma(difference, b.add(p.high, p.rest), b.fma(total, p.coshm1, total))
        return b.add(half, half)
    total, total_low = c.fast_two_sum(b, p.up, p.down)
    half, error = c.fma_in_parts(b, difference, p.high, total)
    half = b.add(half, b.fma(difference, p.rest, b.fma(total, p.coshm1, b.add(error, total_low))))
    return b.add(half, half)


def tanh(b: Lanes, x: ir.Value) -> ir.Value:
    """Hyperbolic tangent. 1.0 ULP (float32), 1.2 (float64); 3.5 where `b.fast`."""
    a = c.at_most(b, b.fabs(x), _constants(x).one)
    if b.fast:
        return c.flip_sign(b, _tanh_fast(b, a), x)
    return c.flip_sign(b, _tanh_float64(b, a) if c.is_double(x) else _tanh_float32(b, a), x)


# (e^2r - 1) / 2 = r + r^2 E(r), and tanh r = r + r^3 T(r^2) up to TANH_MIDDLE
_HALF_EXPM1 = [value * 2.0**i for i, value in enumerate(FLOAT32_EXP[2:], 1)]
_TANH = [-0.33333295583724976, 0.13332346081733704, -0.05387984216213226, 0.021486647427082062, -0.007945936173200607,
         0.0023011392913758755, -0.00035836099414154887]
_TANH_MIDDLE = 1.0


def _tanh_float32(b: Lanes, a: ir.Value) -> ir.Value:
    """By T, or beyond it 1 - 2 / (e^2a + 1), where that is small beside 1."""
    square = b.mul(a, a)
    near = b.fma(b.mul(a, square), c.polynomial(b, square, _TANH), a)
    n, shifted = c.round_to_integer(b, a, 2.0 / math.log(2.0))
    r = b.fma(n, -0.5 * math.log(2.0), a)
    power = c.add_exponent(b, b.like(a, 1.0), shifted)
    half = b.fma(b.mul(r, r), c.polynomial(b, r, _HALF_EXPM1), r)
    far = b.sub(1.0, b.div(1.0, b.fma(power, half, b.fma(power, 0.5, 0.5))))
    return b.select(b.gt(a, _TANH_MIDDLE), far, near)


def _tanh_fast(b: Lanes, a: ir.Value) -> ir.Value:
    """(e^2a - 1) / (e^2a + 1)."""
    r, shifted = reduce(b, b.add(a, a))
    power = c.add_exponent(b, b.like(a, 1.0), shifted)
    over = b.fma(power, expm1_fraction(b, r), b.sub(power, 1.0))
    return b.div(over, b.add(over, 2.0))


def _tanh_float64(b: Lanes, a: ir.Value) -> ir.Value:
    """(e^2a - 1) / (e^2a + 1), each of which is 2^n (e^r - 1) + (2^n -+ 1); what rounding takes from them is added
    last."""
    high, low, shifted = reduce_in_parts(b, b.add(a, a))
    power = c.add_exponent(b, b.like(a, 1.0), shifted)
    rest = expm1_rest(b, b.add(high, low), low)
    over, over_low = c.fma_in_parts(b, power, rest, b.fma(power, high, b.sub(power, 1.0)))
    under = b.add(over, 2.0)
    under_low = b.add(b.sub(over, b.sub(under, 2.0)), over_low)
    y = b.div(over, under)
    return b.fma(b.fma(b.neg(y), under_low, over_low), c.rough_inverse(b, under), y)


def _root_in_parts(b: Lanes, x: ir.Value, low: ir.Value) -> tuple[ir.Value, ir.Value]:
    """sqrt(x + low) as a sum of two; where `b.fast` the second is 0."""
    root = b.sqrt(x)
    if b.fast:
        return root, b.like(x, 0.0)
    missing = b.add(b.fma(b.neg(root), root, x), low)
    return root, b.mul(b.mul(missing, 0.5), c.rough_inverse(b, root))


def asinh(b: Lanes, x: ir.Value) -> ir.Value:
    """Inverse hyperbolic sine: x + x^3 A(x^2) up to `asinh_middle`, log(1 + |x| + (sqrt(1 + x^2) - 1)) with the root in
    two parts beyond it, log(2 |x|) for huge x. 0.8 ULP; 3 where `b.fast`."""
    k = _constants(x)
    a = b.fabs(x)
    square = b.mul(a, a)
    near = b.fma(b.mul(a, square), c.polynomial(b, square, k.asinh), a)
    moderate = b.lt(a, k.huge)
    root, root_low = _root_in_parts(b, *c.fma_in_parts(b, a, a, b.like(x, 1.0)))
    # float64 comes here for smaller x
    above_1 = b.div(square, b.add(root, 1.0)) if b.fast and c.is_double(x) else b.sub(root, 1.0)
    high, low = c.fast_two_sum(b, a, b.select(moderate, above_1, 0.0))
    low = b.add(low, b.select(moderate, root_low, 0.0))
    far = log1p_of_sum(b, high, low, b.select(moderate, b.like(x, 0.0), 1.0))
    y = b.select(b.lt(a, k.asinh_middle), near, b.select(b.lt(a, c.INF), far, a))
    return c.flip_sign(b, y, x)


def acosh(b: Lanes, x: ir.Value) -> ir.Value:
    """Inverse hyperbolic cosine: log(1 + t + sqrt(2 t + t^2)) with t = x - 1 and the root in two parts, log(2 x) for
    huge x. 0.9 ULP; 3.5 where `b.fast`."""
    k = _constants(x)
    t = b.sub(x, 1.0)
    moderate = b.lt(x, k.huge)
    root, root_low = _root_in_parts(b, *c.fma_in_parts(b, t, t, b.add(t, t)))
    zero = b.like(x, 0.0)
    high, low = c.fast_two_sum(b, b.select(moderate, root, 0.0), t)
    y = log1p_of_sum(b, high, b.add(low, b.select(moderate, root_low, 0.0)), b.select(moderate, zero, 1.0))
    y = b.select(b.lt(x, c.INF), y, x)
    return b.select(b.lt(x, 1.0), c.NAN, y)


def atanh(b: Lanes, x: ir.Value) -> ir.Value:
    """Inverse hyperbolic tangent: log(1 + q) / 2 with q = 2|x| / (1 - |x|) in two parts. 1.0 ULP; 3 where `b.fast`."""
    a = b.fabs(x)
    twice = b.add(a, a)
    d, d_low = c.fast_two_sum(b, 1.0, b.neg(a))
    reciprocal = b.div(1.0, d)
    q = b.mul(twice, reciprocal)
    rest = b.fma(b.neg(q), d_low, b.fma(b.neg(q), d, twice))
    y = b.mul(log1p_of_sum(b, q, b.mul(rest, reciprocal)), 0.5)
    outside = b.select(b.eq(a, 1.0), b.like(x, c.INF), c.NAN)
    y = c.flip_sign(b, b.select(b.lt(a, 1.0), y, outside), x)
    return c.keep_tiny(b, y, x, odd=True)
