"""asin, acos, atan and atan2 on lanes. Knows no other function of this folder.

asin s = s + s^3 P(s^2) up to 1/2; beyond it from asin sqrt((1 - |x|) / 2), whose argument is small.
atan t = t + t^3 Q(t^2) up to 1/2; beyond it the angle is turned by pi/4 or pi/2 first.
"""

from __future__ import annotations

import dataclasses

from llvmlite import ir

from lanax._llvm.lanes import Lanes
from lanax._math import common as c


@dataclasses.dataclass(frozen=True)
class _Constants:
    """Numbers of one format: pi/2 as a sum of two, coefficients of P and Q."""

    half_pi: float
    half_pi_low: float
    asin: list[float]
    atan: list[float]
    #: Q up to 1, within 1 ULP; empty where it would be longer than the way by pi/4
    atan_fast: list[float]


_FLOAT32 = _Constants(
    half_pi=1.5707963705062866,
    half_pi_low=-4.371138828673793e-08,
    asin=[1.6666752e-01, 7.4953094e-02, 4.546915e-02, 2.4184776e-02, 4.2158328e-02],
    atan=[-0.33333325386047363, 0.19999392330646515, -0.14270107448101044, 0.10923835635185242, -0.0791713073849678,
          0.03776073083281517],
    atan_fast=[-0.3333239257335663, 0.1997421383857727, -0.14041325449943542, 0.09968467056751251,
               -0.060203034430742264, 0.02473399043083191, -0.004822512157261372],
)
_FLOAT64 = _Constants(
    half_pi=1.5707963267948966,
    half_pi_low=6.123233995736766e-17,
    asin=[0.16666666666665408, 0.0750000000033714, 0.04464285682823152, 0.030381959140778125, 0.022371757960561522,
          0.017359706120620835, 0.013885221933360666, 0.012169301519584865, 0.006527582268436621, 0.01952935067458994,
          -0.01622596794832214, 0.031913450717205825],
    atan=[-0.33333333333332976, 0.19999999999901574, -0.14285714276246253, 0.11111110653456294, -0.09090896088047075,
          0.07692071438299852, -0.06663785201277792, 0.058581262480421115, -0.051212360470035884, 0.04184339512245431,
          -0.02740012398727794, 0.010092424120859646],
    atan_fast=[],
)


def _constants(x: ir.Value) -> _Constants:
    return _FLOAT64 if c.is_double(x) else _FLOAT32


def _arcsine_parts(b: Lanes, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Whether |x| > 1/2, and as a sum of two asin |x| where it is not, asin sqrt((1 - |x|) / 2) where it is (NaN beyond
    1); the second part holds what rounding took from the root, but not where `b.fast`."""
    size = b.fabs(x)
    outer = b.gt(size, 0.5)
    square = b.select(outer, b.fma(size, -0.5, 0.5), b.mul(size, size))
    root = b.sqrt(square)
    s = b.select(outer, root, size)
    rest = b.mul(b.mul(s, square), c.polynomial(b, square, _constants(x).asin))
    if b.fast:
        return outer, s, rest
    root_low = b.mul(b.mul(b.fma(b.neg(root), root, square), 0.5), c.rough_inverse(b, root))
    return outer, s, b.add(rest, b.select(outer, root_low, 0.0))


def asin(b: Lanes, x: ir.Value) -> ir.Value:
    """Inverse sine; NaN outside [-1, 1]. 0.8 ULP; 2 where `b.fast`."""
    k = _constants(x)
    outer, s, rest = _arcsine_parts(b, x)
    half_pi = b.like(x, k.half_pi)
    if b.fast:
        y = b.add(s, rest)
        return c.add_sign(b, b.select(outer, b.fma(y, -2.0, half_pi), y), x)
    high, error = c.fma_in_parts(b, s, b.like(x, -2.0), half_pi)
    complement = b.add(high, b.add(error, b.fma(rest, -2.0, k.half_pi_low)))
    return c.add_sign(b, b.select(outer, complement, b.add(s, rest)), x)


def acos(b: Lanes, x: ir.Value) -> ir.Value:
    """Inverse cosine; NaN outside [-1, 1]. 1.0 ULP; 2 where `b.fast`."""
    k = _constants(x)
    outer, s, rest = _arcsine_parts(b, x)
    signed = c.flip_sign(b, b.add(s, rest), x)
    distance = b.select(outer, b.add(signed, signed), b.neg(signed))
    negative = b.lt(x, 0.0)
    base = b.select(outer, b.select(negative, b.like(x, 2.0 * k.half_pi), 0.0), k.half_pi)
    if b.fast:
        return b.add(base, distance)
    base_low = b.select(outer, b.select(negative, b.like(x, 2.0 * k.half_pi_low), 0.0), k.half_pi_low)
    return b.add(base, b.add(distance, base_low))


def _angle(b: Lanes, height: ir.Value, width: ir.Value) -> ir.Value:
    """atan(height / width) for sides of which neither is negative, too large for a sum, or 0 with the other.

    The tangent t is height / width up to 1/2, from 2 on -width / height, with pi/2 to add, and between these
    (height - width) / (height + width), with pi/4 to add: at most 1/2. What rounding takes from it is given back, but
    not where `b.fast`.
    """
    k = _constants(width)
    if b.fast and k.atan_fast:
        return _angle_fast(b, height, width)
    flat, steep = b.le(height, b.mul(width, 0.5)), b.ge(height, b.mul(width, 2.0))
    one, zero = b.like(width, 1.0), b.like(width, 0.0)
    over = b.sub(b.select(steep, zero, height), b.select(flat, zero, width))
    part, other = b.select(flat, zero, height), b.select(steep, zero, width)
    under, under_low = c.fast_two_sum(b, other, part)
    t = b.div(over, under)
    if b.fast:
        eighths = b.select(flat, zero, b.select(steep, b.like(width, k.half_pi), 0.5 * k.half_pi))
        square = b.mul(t, t)
        return b.add(eighths, b.fma(b.mul(t, square), c.polynomial(b, square, k.atan), t))
    missing = b.fma(b.neg(t), under_low, b.fma(b.neg(t), under, over))
    # a quotient below the least normal number became 0
    missing = b.select(b.eq(t, 0.0), zero, missing)
    eighths = b.select(flat, zero, b.select(steep, b.like(width, 2.0), one))
    low = b.fma(missing, c.rough_inverse(b, under), b.mul(eighths, 0.5 * k.half_pi_low))
    high, error = c.fast_two_sum(b, b.mul(eighths, 0.5 * k.half_pi), t)
    square = b.mul(t, t)
    return b.add(high, b.fma(b.mul(t, square), c.polynomial(b, square, k.atan), b.add(error, low)))


def _angle_fast(b: Lanes, height: ir.Value, width: ir.Value) -> ir.Value:
    """The same from the quotient of the shorter side by the longer, up to 1."""
    k = _constants(width)
    steep = b.gt(height, width)
    t = b.div(b.select(steep, width, height), b.select(steep, height, width))
    square = b.mul(t, t)
    angle = b.fma(b.mul(t, square), c.polynomial(b, square, k.atan_fast), t)
    return b.select(steep, b.sub(k.half_pi, angle), angle)


def atan(b: Lanes, x: ir.Value) -> ir.Value:
    """Inverse tangent. 0.8 ULP; 3 where `b.fast`."""
    size = c.at_most(b, b.fabs(x), 2.0**60)
    return c.add_sign(b, _angle(b, size, b.like(x, 1.0)), x)


def atan2(b: Lanes, y: ir.Value, x: ir.Value) -> ir.Value:
    """The angle of the point (x, y), with the zeros, infinities and signs of C99. 1.0 ULP; 3 where `b.fast`.

    The larger side is scaled to between 2 and 4, an infinite one to 4, and what is infinitely smaller to 0.
    """
    k, f = _constants(x), c.format_of(x)
    width, height = b.fabs(x), b.fabs(y)
    long = c.at_least(b, b.select(b.gt(height, width), height, width), f.least)
    infinity = f.exponent_bits & (f.sign_bit - 1)
    power = b.float_of_bits(b.sub(infinity, b.and_(b.bits(long), infinity)))
    width, height = b.mul(width, power), b.mul(height, power)
    # infinity times 0 is NaN
    width, height = b.select(b.lt(width, 4.0), width, 4.0), b.select(b.lt(height, 4.0), height, 4.0)
    angle = _angle(b, height, b.select(b.gt(width, 2.0**-100), width, 2.0**-100))
    complement = b.sub(2.0 * k.half_pi, b.sub(angle, 2.0 * k.half_pi_low))
    angle = b.select(b.lt(b.bits(x), 0), complement, angle)
    return b.select(b.ir.fcmp_unordered("uno", x, y), c.NAN, c.add_sign(b, angle, y))
