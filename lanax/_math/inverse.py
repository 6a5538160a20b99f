"""asin, acos, atan and atan2 on lanes. Knows no other function of this folder.

asin s = s + s^3 P(s^2) up to 1/2; beyond it from asin sqrt((1 - |x|) / 2), whose argument is small.
atan t = t + t^3 Q(t^2) up to 1; beyond it from the atan of the reciprocal.
"""

from __future__ import annotations

import dataclasses

from llvmlite import ir

from lanax._llvm.lanes import Lanes
from lanax._math import common as c


@dataclasses.dataclass(frozen=True)
class _Constants:
    """Numbers of one format: pi/2 as a sum of two, the least normal number, coefficients of P and Q."""

    half_pi: float
    half_pi_low: float
    tiny: float
    asin: list[float]
    atan: list[float]


_FLOAT32 = _Constants(
    half_pi=1.5707963705062866,
    half_pi_low=-4.371138828673793e-08,
    tiny=2.0**-126,
    asin=[1.6666752e-01, 7.4953094e-02, 4.546915e-02, 2.4184776e-02, 4.2158328e-02],
    atan=[-3.33333e-01, 1.999853e-01, -1.4264016e-01, 1.0950881e-01, -8.3993085e-02, 5.7881344e-02, -3.1096753e-02,
          1.0868399e-02, -1.7827078e-03],
)
_FLOAT64 = _Constants(
    half_pi=1.5707963267948966,
    half_pi_low=6.123233995736766e-17,
    tiny=2.0**-1022,
    asin=[0.16666666666665408, 0.0750000000033714, 0.04464285682823152, 0.030381959140778125, 0.022371757960561522,
          0.017359706120620835, 0.013885221933360666, 0.012169301519584865, 0.006527582268436621, 0.01952935067458994,
          -0.01622596794832214, 0.031913450717205825],
    atan=[-0.3333333333333307, 0.1999999999995176, -0.1428571428258421, 0.11111111007089856, -0.09090907001143649,
          0.07692279788736736, -0.06666403442222157, 0.05880523100594921, -0.052534933702494915, 0.04722223729061535,
          -0.04218889278860212, 0.03663540760862606, -0.029892643232078332, 0.021970009760664978,
          -0.013885611252570778, 0.007185253462894378, -0.002878793426096175, 0.0008290433343935457,
          -0.00015164280847489116, 1.3170779669351488e-05],
)


def _constants(x: ir.Value) -> _Constants:
    return _FLOAT64 if c.is_double(x) else _FLOAT32


def _arcsine_parts(b: Lanes, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Whether |x| > 1/2, and as a sum of two asin |x| where it is not, asin sqrt((1 - |x|) / 2) where it is (NaN beyond
    1)."""
    size = b.fabs(x)
    outer = b.gt(size, 0.5)
    square = b.select(outer, b.fma(size, -0.5, 0.5), b.mul(size, size))
    s = b.select(outer, b.sqrt(square), size)
    return outer, s, b.mul(b.mul(s, square), c.polynomial(b, square, _constants(x).asin))


def asin(b: Lanes, x: ir.Value) -> ir.Value:
    """Inverse sine; NaN outside [-1, 1]."""
    k = _constants(x)
    outer, s, rest = _arcsine_parts(b, x)
    complement = b.sub(b.fma(s, -2.0, k.half_pi), b.fma(rest, 2.0, -k.half_pi_low))
    return c.add_sign(b, b.select(outer, complement, b.add(s, rest)), x)


def acos(b: Lanes, x: ir.Value) -> ir.Value:
    """Inverse cosine; NaN outside [-1, 1]."""
    k = _constants(x)
    outer, s, rest = _arcsine_parts(b, x)
    signed = c.flip_sign(b, b.add(s, rest), x)
    distance = b.select(outer, b.add(signed, signed), b.neg(signed))
    negative = b.lt(x, 0.0)
    base = b.select(outer, b.select(negative, b.like(x, 2.0 * k.half_pi), 0.0), k.half_pi)
    base_low = b.select(outer, b.select(negative, b.like(x, 2.0 * k.half_pi_low), 0.0), k.half_pi_low)
    return b.add(base, b.add(distance, base_low))


def _first_quadrant(b: Lanes, t: ir.Value, steep: ir.Value) -> ir.Value:
    """atan t for t from 0 to 1, its complement to pi/2 where `steep`."""
    k = _constants(t)
    square = b.mul(t, t)
    polynomial = b.fma(c.polynomial(b, square, k.atan[1:]), square, k.atan[0])
    angle = b.fma(b.mul(t, square), polynomial, t)
    complement = b.sub(k.half_pi, b.sub(angle, k.half_pi_low))
    return b.select(steep, complement, angle)


def atan(b: Lanes, x: ir.Value) -> ir.Value:
    """Inverse tangent."""
    size = b.fabs(x)
    steep = b.gt(size, 1.0)
    t = b.div(b.select(steep, b.like(x, 1.0), size), b.select(steep, size, 1.0))
    return c.add_sign(b, _first_quadrant(b, t, steep), x)


def atan2(b: Lanes, y: ir.Value, x: ir.Value) -> ir.Value:
    """The angle of the point (x, y), with the zeros, infinities and signs of C99."""
    width, height = b.fabs(x), b.fabs(y)
    steep = b.gt(height, width)
    short = b.select(steep, width, height)
    # so that 0 / 0 is 0
    long = c.at_least(b, b.select(steep, height, width), _constants(x).tiny)
    # infinity / infinity is 1
    t = b.select(b.eq(short, long), 1.0, b.div(short, long))
    angle = _first_quadrant(b, t, steep)
    k = _constants(x)
    complement = b.sub(2.0 * k.half_pi, b.sub(angle, 2.0 * k.half_pi_low))
    leftwards = b.lt(b.bits(x), 0)
    return c.add_sign(b, b.select(leftwards, complement, angle), y)
