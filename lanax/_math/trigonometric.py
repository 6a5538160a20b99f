"""sin, cos and tan on lanes, right for every argument. Knows no other function of this folder.

|x| = n pi/2 + r with n the nearest integer. Moderate x: r by subtracting n times three parts of pi/2, whose first
product is exact; huge x (skipped where no lane has one): by integer arithmetic. Then sin r and cos r by minimax
polynomials, and n modulo 4 says which is wanted with which sign.
"""

from __future__ import annotations

import dataclasses

from llvmlite import ir

from lanax._llvm import types as t
from lanax._llvm.lanes import Lanes
from lanax._math import common as c
from lanax._math import extended


@dataclasses.dataclass(frozen=True)
class _Constants:
    """Numbers of one format: pi/2 in three parts, 2/pi, and from which |x| on the argument is huge.

    n times the first part is exact after the subtraction. So is n times the second part: in float64 since it has 29
    bits; in float32 where the difference is small, since the first part has 16 bits.
    sin r = r + r^3 S(r^2), cos r = 1 - r^2 / 2 + r^4 C(r^2).
    """

    half_pi: tuple[float, float, float]
    two_over_pi: float
    huge: float
    sin: list[float]
    cos: list[float]


_FLOAT32 = _Constants(
    half_pi=(1.57080078125, -4.454454938240815e-06, -1.6513995574653217e-13),
    two_over_pi=0.6366197466850281,
    huge=2.0**17,
    sin=[-1.6666654e-01, 8.332096e-03, -1.9505732e-04],
    cos=[4.166664e-02, -1.388713e-03, 2.441208e-05],
)
_FLOAT64 = _Constants(
    half_pi=(1.5707963267948966, 6.12323399409214e-17, 1.6446256936324258e-26),
    two_over_pi=0.6366197723675814,
    huge=2.0**24,
    sin=[-0.1666666666666663, 0.00833333333332184, -0.0001984126982935864, 2.7557313538592495e-06,
         -2.5050734405469806e-08, 1.5895434366434606e-10],
    cos=[0.041666666666666595, -0.0013888888888873344, 2.4801587289004027e-05, -2.7557314217677613e-07,
         2.0875705486332758e-09, -1.135875387578882e-11],
)


def _constants(x: ir.Value) -> _Constants:
    return _FLOAT64 if c.is_double(x) else _FLOAT32


def _reduce_moderate(b: Lanes, size: ir.Value) -> list[ir.Value]:
    """The three values of `_reduce` for |x| that is not huge."""
    k, f = _constants(size), c.format_of(size)
    first, second, third = k.half_pi
    shifted = b.fma(size, k.two_over_pi, f.magic)
    n = b.sub(shifted, f.magic)
    rest = b.fma(n, -first, size)
    if c.is_double(size):
        rest, error = c.fast_two_sum(b, rest, b.mul(n, -second))
        return [rest, b.fma(n, -third, error), b.bits(shifted)]
    rest = b.fma(n, -second, rest)
    return [*c.fast_two_sum(b, rest, b.mul(n, -third)), b.bits(shifted)]


def _reduce(b: Lanes, x: ir.Value) -> list[ir.Value]:
    """|x| modulo pi/2: the rest as a sum of two floats, and an integer whose low two bits are the quadrant's."""
    size = b.fabs(x)
    usual = _reduce_moderate(b, size)
    huge = b.ge(size, _constants(x).huge)
    return extended.where_rare(b, huge, usual, lambda: extended.reduce_huge(b, size))


def _sin_part(b: Lanes, r: ir.Value, low: ir.Value, square: ir.Value) -> ir.Value:
    """sin(r + low) - r."""
    return b.fma(b.mul(r, square), b.polynomial(square, _constants(r).sin), low)


def _cos_part(b: Lanes, square: ir.Value) -> ir.Value:
    """(cos r - 1) / r^2."""
    return b.fma(square, b.polynomial(square, _constants(square).cos), -0.5)


def _odd(b: Lanes, n: ir.Value) -> ir.Value:
    """Whether n is odd, as a comparison that costs nothing where a select looks at the sign bit."""
    return b.lt(b.shl(n, t.bit_width(n.type) - 1), 0)


def _half_turns(b: Lanes, n: ir.Value) -> ir.Value:
    """The sign bit, where bit 1 of n is set."""
    width = t.bit_width(n.type)
    return b.and_(b.shl(n, width - 2), 1 << (width - 1))


def _wave(b: Lanes, rest: ir.Value, low: ir.Value, n: ir.Value) -> ir.Value:
    """sin(rest + low + n pi/2)."""
    square = b.mul(rest, rest)
    sine = b.add(rest, _sin_part(b, rest, low, square))
    cosine = b.fma(square, _cos_part(b, square), 1.0)
    value = b.select(_odd(b, n), cosine, sine)
    return b.float_of_bits(b.xor(b.bits(value), _half_turns(b, n)))


def sin(b: Lanes, x: ir.Value) -> ir.Value:
    """Sine."""
    return c.flip_sign(b, _wave(b, *_reduce(b, x)), x)


def cos(b: Lanes, x: ir.Value) -> ir.Value:
    """Cosine."""
    rest, low, n = _reduce(b, x)
    return _wave(b, rest, low, b.add(n, 1))


def tan(b: Lanes, x: ir.Value) -> ir.Value:
    """Tangent: sine over cosine or minus cosine over sine, each in two parts."""
    rest, low, n = _reduce(b, x)
    square = b.mul(rest, rest)
    odd = _odd(b, n)
    sine, sine_low = c.fast_two_sum(b, rest, _sin_part(b, rest, low, square))
    cosine, cosine_low = c.fast_two_sum(b, 1.0, b.mul(square, _cos_part(b, square)))
    over, over_low = b.select(odd, cosine, sine), b.select(odd, cosine_low, sine_low)
    under, under_low = b.select(odd, sine, cosine), b.select(odd, sine_low, cosine_low)
    inverse = b.div(1.0, under)
    quotient = b.mul(over, inverse)
    missing = b.add(b.fma(b.neg(quotient), under, over), b.fma(b.neg(quotient), under_low, over_low))
    value = b.fma(missing, inverse, quotient)
    return c.flip_sign(b, c.flip_sign(b, value, x), b.float_of_bits(b.shl(n, t.bit_width(n.type) - 1)))
