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

#: ln 2 as a sum of two by bits of the mantissa; the first has so few bits that any exponent times it is exact.
LN2_PARTS = {23: (0.693145751953125, 1.428606765330187e-06), 52: (0.6931471803691238, 1.9082149292705877e-10)}

SQRT_HALF_BITS = {23: 0x3F3504F3, 52: 0x3FE6A09E667F3BCD}

# log(1 + f) = f + f^2 Q(f)
_LOG_FLOAT32 = [-0.49999988079071045, 0.33333322405815125, -0.25001609325408936, 0.20002226531505585,
                -0.16608580946922302, 0.1417616456747055, -0.1324150562286377, 0.12942899763584137,
                -0.07674812525510788]
# the same within 0.3 ULP
_LOG_FLOAT32_FAST = [-0.49999991059303284, 0.33333951234817505, -0.25001755356788635, 0.19962070882320404,
                     -0.165705144405365, 0.14917989075183868, -0.14307482540607452, 0.08734750747680664]
# the same with the least absolute error
_LOG_FLOAT32_ABSOLUTE = [-0.4999998211860657, 0.3333422541618347, -0.2500249147415161, 0.19953617453575134,
                         -0.1655232161283493, 0.1497923731803894, -0.1444196254014969, 0.08733882009983063]
# log((1 + s) / (1 - s)) = 2 s + s^3 R(s^2)
_LOG_FLOAT64 = [0.6666666666666735, 0.39999999999409347, 0.2857142874368901, 0.222221984286109, 0.18183572378639068,
                0.15313831459244723, 0.14798266686370595]


def _rest_of_log(b: Lanes, f: ir.Value, low: ir.Value) -> ir.Value:
    """log(1 + f) - f + low for f between sqrt(1/2) - 1 and sqrt(2) - 1."""
    if not c.is_double(f):
        return b.fma(b.mul(f, f), c.polynomial(b, f, _LOG_FLOAT32_FAST if b.fast else _LOG_FLOAT32), low)
    s = b.div(f, b.add(f, 2.0))
    square = b.mul(s, s)
    bracket = b.fma(b.neg(square), b.polynomial(square, _LOG_FLOAT64), f)
    return b.fma(b.neg(s), bracket, low)


def log_of_one_plus(b: Lanes, f: ir.Value) -> ir.Value:
    """log(1 + f) for f between sqrt(1/2) - 1 and sqrt(2) - 1; keeps the sign of a zero."""
    return _rest_of_log(b, f, f)


def rest_of_log_times(b: Lanes, f: ir.Value, factor: float, low: ir.Value) -> ir.Value:
    """factor (log(1 + f) - f) + low, within 2^-27 of `factor`, with little latency in float32."""
    if not c.is_double(f):
        return b.fma(b.mul(b.mul(f, f), factor), c.estrin(b, f, _LOG_FLOAT32_ABSOLUTE), low)
    return b.fma(_rest_of_log(b, f, b.like(f, 0.0)), factor, low)


def _add_exponent(b: Lanes, y: ir.Value, minus_e: ir.Value) -> ir.Value:
    """y + e ln 2. The float32 nearest to ln 2 is so near that it needs no second part."""
    if c.is_double(y) and not b.fast:
        y = b.fma(minus_e, -LN2_LOW, y)
    return b.fma(minus_e, -LN2_HIGH, y)


def _log_in_parts(b: Lanes, f: ir.Value, minus_e: ir.Value, low: ir.Value | None) -> tuple[ir.Value, ir.Value]:
    """log(1 + f + low) + e ln 2 as a sum of two, for `low` below the last place of 1."""
    head, tail = LN2_PARTS[c.format_of(f).mantissa]
    high = b.fma(minus_e, -head, f)
    error = b.add(f, b.fma(minus_e, -head, b.neg(high)))
    # log(1 + f + low) = log(1 + f) + low / (1 + f), and 1 / (1 + f) = 1 - f + f^2 - ...
    if low is not None:
        error = b.fma(low, b.fma(f, f, b.neg(f)), b.add(error, low))
    return high, _rest_of_log(b, f, b.fma(minus_e, -tail, error))


def _special(b: Lanes, x: ir.Value, y: ir.Value, zero: float) -> ir.Value:
    """y where x lies between `zero` and infinity; the ends and what is outside them as C99 wants."""
    y = b.select(b.lt(x, c.INF), y, x)
    y = b.select(b.eq(x, zero), -c.INF, y)
    return b.select(b.lt(x, zero), c.NAN, y)


def log_of_normal(b: Lanes, x: ir.Value) -> ir.Value:
    """The logarithm of a positive normal number."""
    m, minus_e, _ = c.split_exponent(b, x, SQRT_HALF_BITS[c.format_of(x).mantissa])
    return _add_exponent(b, log_of_one_plus(b, b.sub(m, 1.0)), minus_e)


def log(b: Lanes, x: ir.Value) -> ir.Value:
    """Natural logarithm. 0.93 ULP (float32), 1.1 (float64); 2.5 where `b.fast`."""
    return _special(b, x, log_of_normal(b, x), 0.0)


def log_in_parts(b: Lanes, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The logarithm of a positive normal number, and what rounding took from it."""
    m, minus_e, _ = c.split_exponent(b, x, SQRT_HALF_BITS[c.format_of(x).mantissa])
    return c.fast_two_sum(b, *_log_in_parts(b, b.sub(m, 1.0), minus_e, None))


def log1p_of_sum(b: Lanes, x: ir.Value, low: ir.Value | None = None, more: ir.Value | None = None) -> ir.Value:
    """log(1 + x + low) + more ln 2 for finite x > -1, `low` below the last place of x, and a small whole `more`.
    Accurate near 0: what rounding took from the sum is given back after scaling. Where `b.fast`, `low` is left out."""
    if b.fast:
        return _log1p_fast(b, x, more)
    f = c.format_of(x)
    total, error = c.two_sum(b, 1.0, x)
    if low is not None:
        error = b.add(error, low)
    m, minus_e, shifted = c.split_exponent(b, total, SQRT_HALF_BITS[f.mantissa])
    if more is not None:
        minus_e = b.sub(minus_e, more)
    # twice 2^-e, which is 0 for the largest e instead of out of range
    scale = b.float_of_bits(b.add(shifted, f.one_bits + (1 << f.mantissa)))
    return b.add(*_log_in_parts(b, b.sub(m, 1.0), minus_e, b.mul(b.mul(error, 0.5), scale)))


def _log1p_fast(b: Lanes, x: ir.Value, more: ir.Value | None) -> ir.Value:
    """The same with what rounding took from 1 + x as part of f; beyond 1 that is not exact, and needs not be."""
    f = c.format_of(x)
    total = b.add(x, 1.0)
    error = b.sub(x, b.sub(total, 1.0))
    m, minus_e, shifted = c.split_exponent(b, total, SQRT_HALF_BITS[f.mantissa])
    scale = b.float_of_bits(b.add(shifted, f.one_bits + (1 << f.mantissa)))
    rest = b.fma(b.mul(error, 0.5), scale, b.sub(m, 1.0))
    return _add_exponent(b, log_of_one_plus(b, rest), minus_e if more is None else b.sub(minus_e, more))


def log1p(b: Lanes, x: ir.Value) -> ir.Value:
    """log(1 + x). 0.96 ULP; 2.5 where `b.fast`."""
    return _special(b, x, c.keep_tiny(b, log1p_of_sum(b, x), x), -1.0)
