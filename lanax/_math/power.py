"""pow, cbrt and rsqrt on lanes. Knows no jaxpr.

pow(x, y) = 2^(y log2 |x|), with log2 as a sum of two floats, the second of which holds what rounding took from the
first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from llvmlite import ir

from lanax._llvm import types as t
from lanax._llvm.lanes import Lanes
from lanax._math import common as c
from lanax._math.constant_power import SMALL_EXPONENT, power_of_thirds, small_power, thirds, with_ends
from lanax._math.exponential import exp2_fraction
from lanax._math.logarithm import SQRT_HALF_BITS

#: An exponent y so large that x^y overflows or underflows for every x but 1.
_HUGE = 2.0**70


@dataclasses.dataclass(frozen=True)
class _Constants:
    """Numbers for one format: atanh(s) = s + s^3 / 3 + s^5 A(s^2); 1/3 and 2 / ln 2 in two parts; `far`: well above any
    exponent; `cbrt_bits`: less a third of the bits of x (of its upper half, for float64), about those of x^(-1/3)."""

    atanh: list[float]
    third: tuple[float, float]
    two_over_ln2: tuple[float, float]
    far: float
    cbrt_bits: float


_FLOAT32 = _Constants(
    atanh=[0.20000076293945312, 0.14273546636104584, 0.11709750443696976],
    third=(0.3333333432674408, -9.934107758624577e-09),
    two_over_ln2=(2.885390043258667, 3.851926067000022e-08),
    far=160.0,
    cbrt_bits=1419900529.0,
)
_FLOAT64 = _Constants(
    atanh=[0.20000000000001128, 0.14285714285049791, 0.11111111259962221, 0.09090892183424701, 0.07693378673511363,
           0.06628408668534813, 0.06598166391870024],
    third=(0.3333333333333333, 1.850371707708594e-17),
    two_over_ln2=(2.8853900817779268, 4.0710547481862066e-17),
    far=1100.0,
    cbrt_bits=1430186361.0,
)


def _constants(x: ir.Value) -> _Constants:
    return _FLOAT64 if c.is_double(x) else _FLOAT32


def pow(b: Lanes, x: ir.Value, y: ir.Value) -> ir.Value:
    """x^y. 0.9 ULP; in float32 2.5 where `b.fast`."""
    return _pow_special(b, x, y, _pow_of_positive(b, b.fabs(x), y))


def pow_known(b: Lanes, x: ir.Value, y: float) -> ir.Value | None:
    """x^y for an exponent known when the kernel is built, in half the instructions; None where `pow` must do it."""
    simple: dict[float, Callable[[], ir.Value]] = {
        1.0: lambda: x,
        2.0: lambda: b.mul(x, x),
        -1.0: lambda: b.div(1.0, x),
        0.5: lambda: b.select(b.eq(x, -c.INF), c.INF, b.fabs(b.sqrt(x))),
        -0.5: lambda: with_ends(b, x, y, rsqrt(b, x)),
    }
    if y in simple:
        return simple[y]()
    n = thirds(x, y)
    if n is not None:
        return power_of_thirds(b, x, y, n)
    return small_power(b, x, y) if 0.0 < abs(y) <= SMALL_EXPONENT else None


def _pow_special(b: Lanes, x: ir.Value, y: ir.Value, magnitude: ir.Value) -> ir.Value:
    """C99's table of cases, given |x|^y for |x| neither 0 nor infinite."""
    a = b.fabs(x)
    whole = b.eq(b.floor(y), y)
    half = b.mul(y, 0.5)
    odd = b.and_(whole, b.ne(b.floor(half), half))
    falling = b.lt(y, 0.0)
    result = b.select(b.and_(b.lt(x, 0.0), b.not_(whole)), c.NAN, magnitude)
    result = b.select(b.eq(a, 0.0), b.select(falling, b.like(x, c.INF), 0.0), result)
    result = b.select(b.eq(a, c.INF), b.select(falling, b.like(x, 0.0), c.INF), result)
    result = b.select(odd, b.copysign(result, x), result)
    result = b.select(b.ir.fcmp_unordered("uno", x, y), c.NAN, result)
    return b.select(b.or_(b.eq(x, 1.0), b.eq(y, 0.0)), 1.0, result)


def _pow_of_positive(b: Lanes, a: ir.Value, y: ir.Value) -> ir.Value:
    """a^y for positive and finite a."""
    far = _constants(a).far
    high, low = _log2_two_parts(b, a)
    # an infinite y times log2(1) would be NaN
    y = c.at_least(b, c.at_most(b, y, _HUGE), -_HUGE)
    product, rest = c.two_product(b, y, high)
    rest = c.at_least(b, c.at_most(b, b.fma(y, low, rest), 1.0), -1.0)
    product = c.at_least(b, c.at_most(b, product, far), -far)
    n, shifted = c.round_to_integer(b, product, 1.0)
    power = exp2_fraction(b, b.add(b.sub(product, n), rest))
    # 2^n in two factors, for n may be one beyond either end
    _, half_shifted = c.round_to_integer(b, n, 0.5)
    one = b.like(a, 1.0)
    power = b.mul(power, c.add_exponent(b, one, half_shifted))
    return b.mul(power, c.add_exponent(b, one, b.sub(shifted, half_shifted)))


def _log2_two_parts(b: Lanes, a: ir.Value) -> tuple[ir.Value, ir.Value]:
    """log2(a) as a sum of two floats."""
    k = _constants(a)
    m, minus_e, _ = c.split_exponent(b, a, SQRT_HALF_BITS[c.format_of(a).mantissa])
    high, low = _atanh_two_parts(b, b.sub(m, 1.0))
    scaled, scaled_low = c.two_product(b, high, k.two_over_ln2[0])
    scaled_low = b.fma(low, k.two_over_ln2[0], b.fma(high, k.two_over_ln2[1], scaled_low))
    total, total_low = c.fast_two_sum(b, b.neg(minus_e), scaled)
    return total, b.add(total_low, scaled_low)


def _atanh_two_parts(b: Lanes, f: ir.Value) -> tuple[ir.Value, ir.Value]:
    """log(1 + f) / 2 = atanh(s), s = f / (2 + f), as a sum of two floats; the first is the larger one."""
    k = _constants(f)
    d, d_low = c.fast_two_sum(b, 2.0, f)
    reciprocal = b.div(1.0, d)
    s = b.mul(f, reciprocal)
    minus_s = b.neg(s)
    s_low = b.mul(b.fma(minus_s, d_low, b.fma(minus_s, d, f)), reciprocal)
    if b.fast and not c.is_double(f):  # a hundredth of s needs no second part
        z = b.mul(s, s)
        high, low = c.fast_two_sum(b, s, b.mul(b.mul(s, z), b.fma(z, c.polynomial(b, z, k.atanh), k.third[0])))
        return high, b.add(low, b.fma(s_low, z, s_low))
    z, z_low = c.two_product(b, s, s)
    z_low = b.fma(b.add(s, s), s_low, z_low)
    # 1/3 + z T(z)
    bracket, bracket_low = c.fast_two_sum(b, k.third[0], b.mul(z, c.polynomial(b, z, k.atanh)))
    bracket_low = b.add(bracket_low, k.third[1])
    # z times it, then s times that
    u, u_low = c.two_product(b, z, bracket)
    u_low = b.fma(z, bracket_low, b.fma(z_low, bracket, u_low))
    v, v_low = c.two_product(b, s, u)
    v_low = b.fma(s, u_low, b.fma(s_low, u, v_low))
    high, low = c.fast_two_sum(b, s, v)
    return high, b.add(low, b.add(s_low, v_low))


def cbrt(b: Lanes, x: ir.Value) -> ir.Value:
    """Cube root: r near |x|^(-1/3) from the bits and series of (1 - h)^(-1/3) with h = 1 - |x| r^3; the result is
    |x| r^2 in two parts, corrected by the last h. 0.53 ULP; 2 where `b.fast`, with |x| r^2 rounded."""
    a = b.fabs(x)
    r = _cbrt_guess(b, a)
    h = b.fma(b.neg(b.mul(b.mul(a, r), r)), r, 1.0)
    r = b.fma(b.mul(r, h), b.polynomial(h, [1 / 3, 2 / 9, 14 / 81]), r)
    if c.is_double(x):
        h = b.fma(b.neg(b.mul(b.mul(a, r), r)), r, 1.0)
        r = b.fma(b.mul(r, h), 1 / 3, r)
    if b.fast:
        y = b.mul(b.mul(a, r), r)
        y = b.fma(b.mul(y, b.fma(b.neg(y), r, 1.0)), 2 / 3, y)
        return b.select(b.lt(a, c.INF), c.add_sign(b, y, x), x)
    p, p_low = c.two_product(b, a, r)
    y, y_low = c.two_product(b, p, r)
    y_low = b.fma(p_low, r, y_low)
    h = b.fma(b.neg(y_low), r, b.fma(b.neg(y), r, 1.0))
    y = b.add(y, b.fma(b.mul(y, h), 2 / 3, y_low))
    return b.select(b.lt(a, c.INF), c.add_sign(b, y, x), x)


def _cbrt_guess(b: Lanes, a: ir.Value) -> ir.Value:
    """a^(-1/3) to about 3 percent."""
    start = _constants(a).cbrt_bits
    bits = b.bits(a)
    if c.is_double(a):
        upper = c.integer_as_float(b, b.lshr(bits, 32))
        magic = b.fma(upper, -1 / 3, start + c.FLOAT64.magic)
        return b.float_of_bits(b.shl(b.bits(magic), 32))
    third = b.fma(b.to_float(bits, t.F32), -1 / 3, start)
    return b.float_of_bits(b.to_int(third, t.I32))


def rsqrt(b: Lanes, x: ir.Value) -> ir.Value:
    """1 / sqrt(x) as sqrt(4 / x) / 2: the root halves the error of the division, and 4 keeps it in range but for the
    least normal number. 0.86 ULP; 1.5 where `b.fast`."""
    if b.fast:
        return b.div(1.0, b.sqrt(x))
    f = c.format_of(x)
    # a quotient by minus infinity would have a root
    quotient = b.div(4.0, c.at_least(b, x, -f.largest))
    y = b.mul(b.sqrt(quotient), 0.5)
    y = b.select(b.eq(x, f.least), f.least**-0.5, y)
    return b.select(b.eq(x, 0.0), quotient, y)
