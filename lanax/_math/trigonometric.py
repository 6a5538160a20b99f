"""sin, cos and tan on lanes, right for every argument. Knows no other function of this folder.

|x| = n pi/2 + r with n the nearest integer, and r a sum of two. Moderate x: r by subtracting n times three parts of
pi/2 (Cody and Waite); huge x (skipped where no lane has one): by integer arithmetic (Payne and Hanek). Then sin r,
cos r and tan r by minimax polynomials, and n modulo 4 says which is wanted with which sign.
"""

from __future__ import annotations

import dataclasses
import weakref

from llvmlite import ir

from lanax._llvm import types
from lanax._llvm.lanes import Lanes
from lanax._math import common as c
from lanax._math import extended


@dataclasses.dataclass(frozen=True)
class _Constants:
    """Numbers of one format: pi/2 in three parts, 2/pi, and from which |x| on the argument is huge.

    |x| less n times the first part is exact. n times the second part is exact in float64, since it has 29 bits, and two
    floats in float32. None is negative, so that x = -0 leaves -0.
    sin r = r - r^3 S(r^2), cos r = 1 - r^2 / 2 + r^4 C(r^2), tan r = r + r^3 T(r^2).
    """

    half_pi: tuple[float, float, float]
    two_over_pi: float
    huge: float
    minus_sin: list[float]
    cos: list[float]
    tan: list[float]


_FLOAT32 = _Constants(
    half_pi=(1.570796251296997, 7.549789415861596e-08, 5.390302953474238e-15),
    two_over_pi=0.6366197466850281,
    huge=2.0**17,
    minus_sin=[1.6666654e-01, -8.332096e-03, 1.9505732e-04],
    cos=[4.166664e-02, -1.388713e-03, 2.441208e-05],
    tan=[0.33333349227905273, 0.13332673907279968, 0.05405917763710022, 0.02128450572490692, 0.01083251740783453,
         9.113801206694916e-05, 0.004376485012471676],
)
_FLOAT64 = _Constants(
    half_pi=(1.5707963267948966, 6.12323399409214e-17, 1.6446256936324258e-26),
    two_over_pi=0.6366197723675814,
    huge=2.0**24,
    minus_sin=[0.1666666666666663, -0.00833333333332184, 0.0001984126982935864, -2.7557313538592495e-06,
               2.5050734405469806e-08, -1.5895434366434606e-10],
    cos=[0.041666666666666595, -0.0013888888888873344, 2.4801587289004027e-05, -2.7557314217677613e-07,
         2.0875705486332758e-09, -1.135875387578882e-11],
    tan=[0.3333333333333277, 0.1333333333341559, 0.05396825392620319, 0.021869489620169196, 0.008863219006767693,
         0.0035922905007038527, 0.0014547493194270967, 0.0005951011835638435, 0.0002222721871989307,
         0.0001367475843231887, -2.669961977914614e-05, 8.974086185805307e-05, -4.50325675058086e-05,
         2.0900842229612156e-05],
)


def _constants(x: ir.Value) -> _Constants:
    return _FLOAT64 if c.is_double(x) else _FLOAT32


def _reduce_moderate(b: Lanes, x: ir.Value) -> list[ir.Value]:
    """The three values of `_reduce` for |x| that is not huge."""
    k, f = _constants(x), c.format_of(x)
    first, second, third = k.half_pi
    shifted = b.fma(x, k.two_over_pi, f.magic)
    n = b.sub(shifted, f.magic)
    before = b.fma(n, -first, x)
    if b.fast:  # one float is enough, since the first two parts are exact where they cancel
        return [b.fma(n, -third, b.fma(n, -second, before)), b.like(x, 0.0), b.bits(shifted)]
    product = b.mul(n, second)
    rest = b.sub(before, product)
    # exact where `before` is the smaller term too: it is a multiple of the last place of the product
    excess = b.add(b.sub(rest, before), product)
    if not c.is_double(x):
        excess = b.add(excess, b.fma(n, second, b.neg(product)))
    return [rest, b.fma(n, third, excess), b.bits(shifted)]


def _reduce_huge(b: Lanes, x: ir.Value) -> list[ir.Value]:
    """The same for huge |x|."""
    rest, low, n = extended.reduce_huge(b, b.fabs(x))
    return [c.flip_sign(b, rest, x), c.flip_sign(b, b.neg(low), x), b.select(b.lt(x, 0.0), b.neg(n), n)]


#: What `_reduce` gave, by the block of the result and the argument: sin and cos of one argument share it.
_REDUCED: weakref.WeakKeyDictionary[ir.Block, dict[ir.Value, list[ir.Value]]] = weakref.WeakKeyDictionary()


def _reduce(b: Lanes, x: ir.Value) -> list[ir.Value]:
    """x modulo pi/2: the rest as a difference of two floats, whose second is 0 and not -0 where x is 0 or -0, and an
    integer whose low two bits are the quadrant's."""
    known = _REDUCED.get(b.ir.block, {}).get(x)
    if known is not None:
        return known
    usual = _reduce_moderate(b, x)
    huge = b.ge(b.fabs(x), _constants(x).huge)
    out = extended.where_rare(b, huge, usual, lambda: _reduce_huge(b, x))
    _REDUCED.setdefault(b.ir.block, {})[x] = out
    return out


def _odd(b: Lanes, n: ir.Value) -> ir.Value:
    """Whether n is odd, as a comparison that costs nothing where a select looks at the sign bit."""
    return b.lt(b.shl(n, types.bit_width(n.type) - 1), 0)


def _half_turns(b: Lanes, n: ir.Value) -> ir.Value:
    """The sign bit, where bit 1 of n is set."""
    width = types.bit_width(n.type)
    return b.and_(b.shl(n, width - 2), 1 << (width - 1))


def _wave(b: Lanes, rest: ir.Value, excess: ir.Value, n: ir.Value) -> ir.Value:
    """sin(rest - excess + n pi/2); of -0 where `rest` is that and the others are 0."""
    k = _constants(rest)
    if b.fast:
        square = b.mul(rest, rest)
        sine = b.mul(rest, b.fma(b.neg(square), b.polynomial(square, k.minus_sin), 1.0))
    else:  # of the difference
        square = b.fma(rest, rest, b.neg(b.mul(rest, b.add(excess, excess))))
        sine = b.sub(rest, b.fma(b.mul(rest, square), b.polynomial(square, k.minus_sin), excess))
    cosine = b.fma(square, b.fma(square, b.polynomial(square, k.cos), -0.5), 1.0)
    value = b.select(_odd(b, n), cosine, sine)
    return b.float_of_bits(b.xor(b.bits(value), _half_turns(b, n)))


def sin(b: Lanes, x: ir.Value) -> ir.Value:
    """Sine. 0.9 ULP; 2 where `b.fast`."""
    return _wave(b, *_reduce(b, x))


def cos(b: Lanes, x: ir.Value) -> ir.Value:
    """Cosine. 0.9 ULP; 2 where `b.fast`."""
    rest, excess, n = _reduce(b, x)
    return _wave(b, rest, excess, b.add(n, 1))


def tan(b: Lanes, x: ir.Value) -> ir.Value:
    """Tangent: r + r^3 T(r^2) as a sum of two, or minus its inverse. 1.0 ULP; 3 where `b.fast`, by one
    division of rounded numbers."""
    rest, excess, n = _reduce(b, x)
    if b.fast:
        return _tan_fast(b, x, rest, n)
    square, square_low = c.two_product(b, rest, rest)
    # roughly, (tan r)' = 1 + 1.55 r^2, and what the square lacks weighs 0.42 r as much as r
    low = b.fma(square_low, b.mul(rest, 0.42), b.neg(excess))
    low = b.fma(low, b.mul(square, 1.55), low)
    t, t_low = c.fast_two_sum(b, rest, b.fma(b.mul(rest, square), c.polynomial(b, square, _constants(x).tan), low))
    inverse = b.div(1.0, t)
    missing = b.fma(b.neg(inverse), t_low, b.fma(b.neg(inverse), t, 1.0))
    value = b.select(_odd(b, n), b.fma(missing, inverse, inverse), t)
    return c.flip_sign(b, value, b.float_of_bits(b.shl(n, types.bit_width(n.type) - 1)))


def _tan_fast(b: Lanes, x: ir.Value, rest: ir.Value, n: ir.Value) -> ir.Value:
    square = b.mul(rest, rest)
    t = b.fma(b.mul(rest, square), c.polynomial(b, square, _constants(x).tan), rest)
    odd = _odd(b, n)
    return b.div(b.select(odd, b.like(x, -1.0), t), b.select(odd, t, 1.0))
