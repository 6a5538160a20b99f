"""log and log1p on lanes. Knows no other function of this folder.

x = 2^e m with m between sqrt(1/2) and sqrt(2); log(m) by a polynomial in f = m - 1 (float32) or in s = f / (2 + f)
(float64, where one division is cheaper than the ten more terms of the former).
"""

from __future__ import annotations

from llvmlite import ir

from lanax._llvm.lanes import Lanes
from lanax._math import common as c

LN2_HIGH = 0.6931471805599453
LN2_LOW = 2.3190468138462996e-17

SQRT_HALF_BITS = {23: 0x3F3504F3, 52: 0x3FE6A09E667F3BCD}

# log(1 + f) = f + f^2 Q(f)
_LOG_FLOAT32 = [-0.5, 0.3333333134651184, -0.250008225440979, 0.2000124603509903, -0.16623325645923615,
                0.1420144885778427, -0.13160206377506256, 0.1276317983865738, -0.07636045664548874]
# log((1 + s) / (1 - s)) = 2 s + s^3 R(s^2)
_LOG_FLOAT64 = [0.6666666666666735, 0.39999999999409347, 0.2857142874368901, 0.222221984286109, 0.18183572378639068,
                0.15313831459244723, 0.14798266686370595]


def log_of_one_plus(b: Lanes, f: ir.Value) -> ir.Value:
    """log(1 + f) for f between sqrt(1/2) - 1 and sqrt(2) - 1; keeps the sign of a zero."""
    if not c.is_double(f):
        return b.fma(b.mul(f, f), c.polynomial(b, f, _LOG_FLOAT32), f)
    s = b.div(f, b.add(f, 2.0))
    square = b.mul(s, s)
    bracket = b.fma(b.neg(square), b.polynomial(square, _LOG_FLOAT64), f)
    return b.fma(b.neg(s), bracket, f)


def log_of_one_plus_soon(b: Lanes, f: ir.Value) -> ir.Value:
    """The same with less latency in float32, for more instructions."""
    return log_of_one_plus(b, f) if c.is_double(f) else b.fma(b.mul(f, f), c.estrin(b, f, _LOG_FLOAT32), f)


def _add_exponent(b: Lanes, y: ir.Value, minus_e: ir.Value) -> ir.Value:
    """y + e ln 2. The float32 nearest to ln 2 is so near that it needs no second part."""
    if c.is_double(y):
        y = b.fma(minus_e, -LN2_LOW, y)
    return b.fma(minus_e, -LN2_HIGH, y)


def _special(b: Lanes, x: ir.Value, y: ir.Value, zero: float) -> ir.Value:
    """y where x lies between `zero` and infinity; the ends and what is outside them as C99 wants."""
    y = b.select(b.lt(x, c.INF), y, x)
    y = b.select(b.eq(x, zero), -c.INF, y)
    return b.select(b.lt(x, zero), c.NAN, y)


def log(b: Lanes, x: ir.Value) -> ir.Value:
    """Natural logarithm."""
    m, minus_e, _ = c.split_exponent(b, x, SQRT_HALF_BITS[c.format_of(x).mantissa])
    y = _add_exponent(b, log_of_one_plus(b, b.sub(m, 1.0)), minus_e)
    return _special(b, x, y, 0.0)


def log1p_of_sum(b: Lanes, x: ir.Value, low: ir.Value | None = None) -> ir.Value:
    """log(1 + x + low) for finite x > -1 and `low` below the last place of x. Accurate near 0: what rounding took from
    the sum is given back after scaling."""
    f = c.format_of(x)
    total, error = c.two_sum(b, 1.0, x)
    if low is not None:
        error = b.add(error, low)
    m, minus_e, shifted = c.split_exponent(b, total, SQRT_HALF_BITS[f.mantissa])
    # twice 2^-e, which is 0 for the largest e instead of out of range
    scale = b.float_of_bits(b.add(shifted, f.one_bits + (1 << f.mantissa)))
    return _add_exponent(b, log_of_one_plus(b, b.fma(b.mul(error, 0.5), scale, b.sub(m, 1.0))), minus_e)


def log1p(b: Lanes, x: ir.Value) -> ir.Value:
    """log(1 + x)."""
    return _special(b, x, c.keep_tiny(b, log1p_of_sum(b, x), x), -1.0)
