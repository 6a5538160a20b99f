"""exp, exp2, expm1 and the logistic function on lanes. Knows no other function of this folder.

exp(x) = 2^n e^r with n the integer nearest to x / ln 2: e^r by a polynomial, minimax in relative error, and n added to
the exponent bits. A result out of range is selected at the end.
"""

from __future__ import annotations

import dataclasses
import math

from llvmlite import ir

from lanax._llvm.lanes import Lanes
from lanax._math import common as c


@dataclasses.dataclass(frozen=True)
class _Constants:
    """Numbers of exp for one format: `lowest` and `highest` x whose e^x is a normal number, and the same for 2^x."""

    ln2_high: float
    ln2_low: float
    exp: list[float]
    #: the same within 1 ULP
    exp_fast: list[float]
    #: e^r - 1 = r + r^2 E(r)
    expm1: list[float]
    exp2: list[float]
    lowest: float
    highest: float
    lowest2: float
    highest2: float
    #: below this expm1 is -1
    minus_one: float


#: e^r for |r| up to ln(2) / 2, in float32.
FLOAT32_EXP = [1.0, 1.0, 0.4999999403953552, 0.1666651964187622, 0.041668232530355453, 0.008368823677301407,
               0.0013823851477354765]

_FLOAT64_EXP = [1.0, 1.0, 0.5000000000000011, 0.16666666666666446, 0.0416666666665269,
                0.008333333333474812, 0.001388888894439363, 0.0001984126954633182, 2.480149235894926e-05,
                2.7557552489879973e-06, 2.763050214660514e-07, 2.501044556232096e-08]

# ln2_high has so few bits that n * ln2_high is exact.
_FLOAT32 = _Constants(
    ln2_high=0.693145751953125,
    ln2_low=1.428606765330187e-06,
    exp=FLOAT32_EXP,
    exp_fast=[1.0, 1.0, 0.499992311000824, 0.16667115688323975, 0.041890401393175125, 0.008312496356666088],
    expm1=[0.5, 0.1666664183139801, 0.041666530072689056, 0.008339911699295044, 0.0013928462285548449,
           0.00015983317280188203],
    exp2=[1.0, 0.6931471824645996, 0.24022647738456726, 0.05550359562039375, 0.009618503041565418,
          0.0013390996027737856, 0.0001532782189315185],
    lowest=-87.33654022216797,
    highest=88.72283172607422,
    lowest2=-126.0,
    highest2=127.99999237060547,
    minus_one=-20.0,
)
_FLOAT64 = _Constants(
    ln2_high=0.6931471803691238,
    ln2_low=1.9082149292705877e-10,
    exp=_FLOAT64_EXP,
    exp_fast=_FLOAT64_EXP,
    expm1=_FLOAT64_EXP[2:],
    exp2=[1.0, 0.6931471805599453, 0.2402265069591011, 0.055504108664821736, 0.009618129107600562,
          0.0013333558146540457, 0.00015403530450288356, 1.5252733641424277e-05, 1.3215438233937553e-06,
          1.0178156353583169e-07, 7.073333747426735e-09, 4.439491114697217e-10],
    lowest=-708.3964185322641,
    highest=709.782712893384,
    lowest2=-1022.0,
    highest2=1023.9999999999999,
    minus_one=-40.0,
)


def _constants(x: ir.Value) -> _Constants:
    return _FLOAT64 if c.is_double(x) else _FLOAT32


def reduce(b: Lanes, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """x = n ln 2 + r: r and n << mantissa."""
    k = _constants(x)
    n, shifted = c.round_to_integer(b, x, 1.0 / math.log(2.0))
    return b.fma(n, -k.ln2_low, b.fma(n, -k.ln2_high, x)), shifted


def reduce_in_parts(b: Lanes, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """x = n ln 2 + high + low: `high` is exact, `low` is below its last places; and n << mantissa."""
    k = _constants(x)
    n, shifted = c.round_to_integer(b, x, 1.0 / math.log(2.0))
    return b.fma(n, -k.ln2_high, x), b.mul(n, -k.ln2_low), shifted


def _in_range(b: Lanes, x: ir.Value, y: ir.Value, lowest: float, highest: float) -> ir.Value:
    """y where x is between the limits; 0 below, infinity above, NaN for NaN."""
    y = b.select(b.lt(x, lowest), 0.0, y)
    return b.select(b.le(x, highest), y, b.mul(x, c.INF))


def exp_normal(b: Lanes, x: ir.Value) -> ir.Value:
    """e^x for x that gives a normal number; arbitrary elsewhere."""
    k = _constants(x)
    r, shifted = reduce(b, x)
    return c.add_exponent(b, c.polynomial(b, r, k.exp_fast if b.fast else k.exp), shifted)


def exp_of_product(b: Lanes, x: ir.Value, y: ir.Value) -> ir.Value:
    """e^(x y) that is a normal number; the product is not rounded."""
    k = _constants(x)
    n, shifted = c.round_to_integer(b, b.mul(x, y), 1.0 / math.log(2.0))
    r = b.fma(n, -k.ln2_low, b.fma(x, y, b.mul(n, -k.ln2_high)))
    return c.add_exponent(b, c.polynomial(b, r, k.exp), shifted)


def exp(b: Lanes, x: ir.Value) -> ir.Value:
    """e^x. 0.9 ULP; 2 where `b.fast`."""
    k = _constants(x)
    return _in_range(b, x, exp_normal(b, x), k.lowest, k.highest)


def exp2_fraction(b: Lanes, r: ir.Value) -> ir.Value:
    """2^r for |r| up to 1/2."""
    return c.polynomial(b, r, _constants(r).exp2)


def exp2(b: Lanes, x: ir.Value) -> ir.Value:
    """2^x. 0.8 ULP."""
    k = _constants(x)
    n, shifted = c.round_to_integer(b, x, 1.0)
    y = c.add_exponent(b, exp2_fraction(b, b.sub(x, n)), shifted)
    return _in_range(b, x, y, k.lowest2, k.highest2)


def expm1_fraction(b: Lanes, r: ir.Value) -> ir.Value:
    """e^r - 1 for |r| up to ln(2) / 2."""
    return expm1_rest(b, r, r)


def expm1_rest(b: Lanes, r: ir.Value, low: ir.Value) -> ir.Value:
    """e^r - 1 - r + low for |r| up to ln(2) / 2."""
    return b.fma(b.mul(r, r), c.polynomial(b, r, _constants(r).expm1), low)


def expm1(b: Lanes, x: ir.Value) -> ir.Value:
    """e^x - 1, accurate near 0: 2 (2^(n-1) (e^r - 1) + (2^(n-1) - 1/2)), halved so that n may be one too large; what
    the first sum loses is added last, but not where `b.fast`. 0.95 ULP; 2 where `b.fast`."""
    k = _constants(x)
    high, low, shifted = reduce_in_parts(b, c.at_least(b, c.at_most(b, x, k.highest + 0.05), k.minus_one))
    power = c.add_exponent(b, b.like(x, 0.5), shifted)
    base = b.sub(power, 0.5)
    if b.fast:
        y = b.fma(power, expm1_fraction(b, b.add(high, low)), base)
        return c.keep_tiny(b, b.add(y, y), x)
    y, error = c.fma_in_parts(b, power, high, base)
    error = b.add(error, b.sub(b.sub(power, base), 0.5))
    y = b.add(y, b.fma(power, expm1_rest(b, b.add(high, low), low), error))
    return c.keep_tiny(b, b.add(y, y), x)


def logistic(b: Lanes, x: ir.Value) -> ir.Value:
    """1 / (1 + e^-x), with the denominator 1 + 2^n + 2^n (e^r - 1) as a sum of two. 0.97 ULP; 3.5 where
    `b.fast`, with e^-x rounded."""
    k = _constants(x)
    limit = k.highest - 0.7
    limited = c.at_least(b, c.at_most(b, b.neg(x), limit), -limit)
    if b.fast:
        return b.div(1.0, b.add(exp_normal(b, limited), 1.0))
    r, shifted = reduce(b, limited)
    power = c.add_exponent(b, b.like(x, 1.0), shifted)
    base = b.add(power, 1.0)
    base_low = b.sub(1.0, b.sub(base, power))
    under, under_low = c.fma_in_parts(b, power, expm1_fraction(b, r), base)
    under_low = b.add(under_low, base_low)
    y = b.div(1.0, under)
    missing = b.fma(b.neg(y), under_low, b.fma(b.neg(y), under, 1.0))
    return b.fma(missing, y, y)
