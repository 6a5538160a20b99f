"""x^y on lanes for a constant y that is not whole: thirds, and what is small. Knows no jaxpr.

Solvers wait for such a power at each step (a step size is an error to the power of -1/3 or -1/5), so both ways are
written for latency: what can be known before the last polynomial is.
"""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import numpy as np
from llvmlite import ir

from lanax._llvm import types as t
from lanax._llvm.lanes import Lanes, is_never_less_than_zero
from lanax._math import common as c
from lanax._math.logarithm import SQRT_HALF_BITS, rest_of_log_times

_LOG2_E = Fraction(1.4426950408889634) + Fraction(2.0355273740931033e-17)

#: Exponents up to this give a normal number for every normal number.
SMALL_EXPONENT = 0.9375


@dataclasses.dataclass(frozen=True)
class _Constants:
    """Numbers for one format.

    Attributes:
      exp2: 2^r = 1 + r ln 2 + r^2 E(r) for |r| up to 0.6.
      ln2: in two parts; the first has `range_bits` bits.
      range_bits: the exponent of any normal number is less than 2 to this.
      third_bits: less a third of the bits of x (of its upper half, for float64), about those of x^(-1/3).
      short: a number of that many bits has an exact cube.
      thirds: (1 - h)^(-1/3) = 1 + h Q(h), and (1 - h)^(-2/3), for h as large as `short` leaves it.
    """

    exp2: list[float]
    ln2: tuple[float, float]
    range_bits: int
    third_bits: float
    short: int
    thirds: tuple[list[float], list[float]]


_FLOAT32 = _Constants(
    exp2=[0.24022644758224487, 0.055503301322460175, 0.009618682786822319, 0.0013406533980742097,
          0.0001532792521174997],
    ln2=(0.69140625, 0.0017409305599453094),
    range_bits=8,
    third_bits=1419930529.0,
    short=8,
    thirds=([0.3333333432674408, 0.2222222238779068, 0.17283080518245697, 0.14402493834495544, 0.12670598924160004,
             0.11268006265163422],
            [0.6666666865348816, 0.5555555820465088, 0.49379417300224304, 0.4526432752609253, 0.42961087822914124,
             0.40584319829940796]),
)
_FLOAT64 = _Constants(
    exp2=[0.24022650695910072, 0.05550410866482192, 0.009618129107627662, 0.0013333558146317256,
          0.00015403530394459794, 1.5252733929864105e-05, 1.3215486194791005e-06, 1.0178021607001731e-07,
          7.0550508526319785e-09, 4.460831878746878e-10, 2.5589712283692174e-11],
    ln2=(0.69287109375, 0.00027608680994530942),
    range_bits=11,
    third_bits=1430186361.0,
    short=17,
    thirds=([0.3333333333333333, 0.2222222222222222, 0.17283951116598092, 0.14403292624904754],
            [0.6666666666666666, 0.5555555555555555, 0.49382717739369053, 0.45267491308032365]),
)


def _constants(x: ir.Value) -> _Constants:
    return _FLOAT64 if c.is_double(x) else _FLOAT32


def _rounded(x: ir.Value, value: Fraction | float) -> float:
    """`value` in the format of `x`."""
    return float(value) if c.is_double(x) else float(np.float32(float(value)))


def with_ends(b: Lanes, x: ir.Value, y: float, power: ir.Value, has_nan: bool = True) -> ir.Value:
    """`power` where x is positive and finite; what C99 wants elsewhere. `has_nan`: `power` is NaN where x is."""
    a = b.fabs(x)
    if not (has_nan and is_never_less_than_zero(x)):
        power = b.select(b.ge(x, 0.0), power, c.NAN)
    power = b.select(b.eq(a, c.INF), b.like(x, c.INF if y > 0 else 0.0), power)
    return b.select(b.eq(a, 0.0), b.like(x, 0.0 if y > 0 else c.INF), power)


def small_power(b: Lanes, x: ir.Value, y: float) -> ir.Value:
    """x^y for |y| up to `SMALL_EXPONENT`. 0.9 ULP.

    x = 2^e (1 + f), so the result is 2^(n + s + low) with n + s = e y + f y log2(e) rounded to so few places, by adding
    a large number, that n and s are in its bits, and that s times the first part of ln 2 is exact. What the rounding
    took and the rest of the logarithm are `low`.
    """
    k, f = _constants(x), c.format_of(x)
    slope = _rounded(x, Fraction(y) * _LOG2_E)
    places = f.mantissa - k.range_bits
    large, large_bits = 1.5 * 2.0**k.range_bits, (f.bias + k.range_bits << f.mantissa) + (1 << f.mantissa - 1)
    m, minus_e, _ = c.split_exponent(b, b.fabs(x), SQRT_HALF_BITS[f.mantissa])
    fraction = b.sub(m, 1.0)
    first = b.fma(minus_e, -y, large)
    both = b.fma(fraction, slope, first)
    low = b.fma(fraction, slope, b.sub(first, both))
    if (y * 2.0**places) % 1:
        low = b.add(b.fma(minus_e, -y, b.sub(large, first)), low)
    slope_low = float(Fraction(y) * _LOG2_E - Fraction(slope))
    if abs(slope_low) > 2.0 ** (-f.mantissa - 3):
        low = b.fma(fraction, slope_low, low)
    bits = b.add(b.bits(both), (1 << places - 1) - large_bits)
    shifted = b.shl(b.and_(bits, -1 << places), k.range_bits)
    s = b.sub(b.float_of_bits(b.or_(b.and_(bits, (1 << places) - 1), large_bits)), large + 0.5)
    low = rest_of_log_times(b, fraction, slope, low)
    r = b.add(s, low)
    polynomial = c.polynomial if c.is_double(x) else c.estrin
    rest = b.fma(b.mul(r, r), polynomial(b, r, k.exp2), b.fma(low, k.ln2[0], b.mul(r, k.ln2[1])))
    power = c.add_exponent(b, b.add(b.fma(s, k.ln2[0], 1.0), rest), shifted)
    return with_ends(b, x, y, power, has_nan=False)


def thirds(x: ir.Value, y: float) -> int | None:
    """3 y where that is -2, -1, 1 or 2, but for the rounding of y to the format of `x`."""
    n = round(3 * y)
    return n if abs(n) in (1, 2) and _rounded(x, y) == _rounded(x, Fraction(n, 3)) else None


def power_of_thirds(b: Lanes, x: ir.Value, y: float, n: int) -> ir.Value:
    """x^y, where y is about n / 3 for an n of -2, -1, 1 or 2. 0.6 ULP, in half the instructions of `small_power`.

    r is x^(-1/3) to so few places that h = 1 - x r^3 is as good as exact; x^(-1/3) = r (1 - h)^(-1/3). What y lacks to
    n / 3, for which a rough logarithm will do, goes into h as h + lacking (1 - h).
    """
    k = _constants(x)
    a = b.fabs(x)
    power = 2 / 3 if n in (-2, 1) else 1 / 3
    lacks = float(Fraction(_rounded(x, y)) - Fraction(n, 3))
    r, lacking = _short_inverse_root(b, a, lacks * math.log(2) / power)
    square = b.mul(r, r)
    root, root_low = c.two_product(b, a, square)
    minus_r = b.neg(r)  # of a product, LLVM would negate a factor; of this, it negates in each multiply-add
    h = b.fma(root, minus_r, 1.0)
    h = b.fma(b.neg(h), lacking, b.add(h, b.fma(root_low, minus_r, lacking)))
    rest = b.mul(h, b.polynomial(h, k.thirds[n in (-2, 1)]))
    if n < 0:
        first = r if n == -1 else square
        return with_ends(b, x, y, b.fma(first, rest, first))
    first, first_low = (root, root_low) if n == 1 else c.two_product(b, a, r)
    return with_ends(b, x, y, b.add(first, b.fma(first, rest, first_low)))


def _short_inverse_root(b: Lanes, a: ir.Value, factor: float) -> tuple[ir.Value, ir.Value]:
    """a^(-1/3) in `short` places, and log2(a) within 0.05, times `factor`."""
    k, f = _constants(a), c.format_of(a)
    bits = b.bits(a)
    if c.is_double(a):
        upper = c.integer_as_float(b, b.lshr(bits, 32))
        guess = b.float_of_bits(b.shl(b.bits(b.fma(upper, -1 / 3, k.third_bits + f.magic)), 32))
        h = b.fma(b.neg(b.mul(b.mul(a, guess), guess)), guess, 1.0)
        guess = b.bits(b.fma(b.mul(guess, h), b.polynomial(h, [1 / 3, 2 / 9, 14 / 81]), guess))
    else:
        upper = b.to_float(bits, t.F32)
        guess = b.to_int(b.fma(upper, -1 / 3, k.third_bits), t.I32)
    r = b.float_of_bits(b.and_(guess, -1 << f.mantissa + 1 - k.short))
    unit = 20 if c.is_double(a) else f.mantissa
    return r, b.fma(upper, 2.0**-unit * factor, (0.043 - f.bias) * factor)
