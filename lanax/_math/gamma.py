"""lgamma and digamma on lanes: polynomials between poles and beyond them asymptotic forms, all fitted for this file.

Both work in float64: float32 arguments too, with shorter polynomials. Near the zeros at negative arguments, and only
there, the error is small beside the terms that cancel, not beside the result.
"""

from __future__ import annotations

import dataclasses

from llvmlite import ir

from lanax._llvm import types as t
from lanax._llvm.lanes import Lanes
from lanax._math import common as c
from lanax._math import extended, logarithm


@dataclasses.dataclass(frozen=True)
class _Constants:
    """Coefficients for one precision.

    Attributes:
      lgamma: log gamma(2 + d) = d P(d) for |d| up to 1/2.
      stirling: log gamma(x) = (x - 1/2) (log x - 1) + STIRLING + S(1/x^2) / x from 5/2 on.
      digamma: digamma(x) = (x - ROOT) D(x - CENTRE) for x from 1 to 2.
      asymptotic: digamma(x) = log x - 1 / 2x - A(1/x^2) / x^2 from 3 on.
      sin: sin(pi f) = pi f s(f^2) for |f| up to 1/2.
      cos: cos(pi f), in f^2.
    """

    lgamma: list[float]
    stirling: list[float]
    digamma: list[float]
    asymptotic: list[float]
    sin: list[float]
    cos: list[float]


_FLOAT32 = _Constants(
    lgamma=[0.4227843345084978, 0.32246701878040734, -0.0673522186406062, 0.02058160205245227, -0.007387429311051937,
            0.00287905505827883, -0.001177832787267292, 0.000569826345533423, -0.0002698638779082765],
    stirling=[0.0833332977450666, -0.0027760372252856836, 0.0007639728298377096, -0.00036764109888305066],
    digamma=[0.9444948616956419, -0.41621780181978796, 0.23372322534442386, -0.14261083513989947, 0.09028020219219896,
             -0.05835346905450688, 0.03817053505303872, -0.023796516292713375, 0.014798494527515426,
             -0.014648337597878926, 0.011118562479965056],
    asymptotic=[0.083333276697458, -0.00832876060244988, 0.0038452347191160244, -0.002733434403990225],
    sin=[0.9999999999788491, -1.6449340611395946, 0.8117421707752023, -0.19074762267659934, 0.026116205313799143,
         -0.00223522403279758],
    cos=[0.9999999997806542, -4.934802137228707, 4.058709164349544, -1.3352120567107997, 0.23493755903905086,
         -0.02439671660527728],
)
_FLOAT64 = _Constants(
    lgamma=[0.42278433509846713, 0.3224670334241133, -0.06735230105319497, 0.020580808427766172, -0.007385551028998667,
            0.0028905103317846317, -0.0011927538987744023, 0.0005096694976251192, -0.00022315501547756376,
            9.945789704808321e-05, -4.492337811752809e-05, 2.050399841980123e-05, -9.458053845185555e-06,
            4.39116284508029e-06, -1.9696979335542462e-06, 9.061601306625227e-07, -5.859966178663173e-07,
            2.910396430111265e-07],
    stirling=[0.08333333333332604, -0.0027777777751901056, 0.0007936504508265071, -0.0005952141522762776,
              0.0008407252534910445, -0.0018881177734554836, 0.005810028474301277, -0.020344699063094867,
              0.06647785588842091, -0.16991141121243877, 0.28353442882011326, -0.2245551779513526],
    digamma=[0.9444948632515843, -0.4162177324772094, 0.23372282089266866, -0.14261625041015938, 0.09029680010938695,
             -0.05823537095204774, 0.0379290500426265, -0.02483852502734324, 0.01631652643964161, -0.010737671961905516,
             0.00707366195035554, -0.004662774943750591, 0.0030757076765522526, -0.0020294644064449033,
             0.0013320388474788605, -0.000874606103089306, 0.0006083096148965666, -0.00041455897483270684,
             0.00018312122762084078, -9.740666181573958e-05, 0.00021177628145690455, -0.00015743426795883285],
    asymptotic=[0.0833333333333117, -0.00833333332285486, 0.003968252125346979, -0.004166499561014865,
                0.0075666602760318565, -0.020768702763281837, 0.07532641387413713, -0.29905931439746514,
                1.0418568921827638, -2.5268300203198297, 3.0009210439445533],
    sin=[1.0, -1.6449340668482264, 0.8117424252833462, -0.19075182412167532, 0.026147847807942708,
         -0.002346080913289645, 0.00014842791656253967, -6.9722672598017455e-06, 2.4518321931837555e-07],
    cos=[1.0, -4.934802200544677, 4.058712126416504, -1.3352627688431513, 0.23533063011951963, -0.02580688861708993,
         0.0019295555744399202, -0.0001045645650062914, 4.147345011996723e-06],
)

STIRLING = 0.4189385332046727
CENTRE = 1.515625
#: The zero of digamma at 1.46, less 1, itself and plus 1, each as a sum of two.
ROOTS = ((0.46163214496836236, -1.5522348162858677e-17), (1.4616321449683622, 9.549995429965697e-17),
         (2.4616321449683625, -1.2654465062537432e-16))
LN2_HIGH, LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10
# log((1 + s) / (1 - s)) = 2 s + s^3 L(s^2)
_LOG = [0.6666666666666734, 0.3999999999941468, 0.28571428742387156, 0.2222219857323065, 0.18183564323777943,
        0.15314050611173852, 0.14795949114164617]


def _log_two_parts(b: Lanes, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The logarithm of a positive normal float64 as a sum of two, right to 2^-56."""
    m, minus_e, _ = c.split_exponent(b, x, logarithm.SQRT_HALF_BITS[c.FLOAT64.mantissa])
    f = b.sub(m, 1.0)
    s = b.div(f, b.add(f, 2.0))
    square = b.mul(s, s)
    half = b.mul(b.mul(f, 0.5), f)
    rest = b.fma(s, b.fma(b.polynomial(square, _LOG), square, half), b.neg(half))
    high, error = c.fast_two_sum(b, b.mul(minus_e, -LN2_HIGH), f)
    return c.fast_two_sum(b, high, b.add(error, b.fma(minus_e, -LN2_LOW, rest)))


def _polynomial_two_parts(b: Lanes, x: ir.Value, coefficients: list[float]) -> tuple[ir.Value, ir.Value]:
    """A polynomial and what the last rounding took from it, where its value is near its first coefficient."""
    slope = c.polynomial(b, x, coefficients[1:])
    value = b.fma(x, slope, coefficients[0])
    return value, b.fma(x, slope, b.sub(coefficients[0], value))


def _is_pole(b: Lanes, x: ir.Value) -> ir.Value:
    """Whether x, not positive, is an integer or infinite."""
    return b.eq(b.floor(x), x)


def _lgamma_right(b: Lanes, k: _Constants, x: ir.Value) -> ir.Value:
    """lgamma for x >= -1/2: about 2 for x up to 5/2, with one factor or two taken out, else Stirling's formula."""
    below_half, below_three_halves, near = b.lt(x, 0.5), b.lt(x, 1.5), b.le(x, 2.5)
    d = b.sub(x, b.select(below_half, b.like(x, 0.0), b.select(below_three_halves, b.like(x, 1.0), 2.0)))
    factor = b.select(below_half, b.fabs(b.fma(x, x, x)), b.select(below_three_halves, x, 1.0))
    log, log_low = _log_two_parts(b, b.select(near, factor, x))
    ratio, ratio_low = _polynomial_two_parts(b, d, k.lgamma)
    from_two = b.add(b.fma(d, ratio, b.neg(log)), b.fma(d, ratio_low, b.neg(log_low)))
    inverse = b.div(1.0, x)
    series = b.fma(inverse, c.polynomial(b, b.mul(inverse, inverse), k.stirling), STIRLING)
    before = b.sub(x, 0.5)
    stirling = b.fma(before, b.sub(log, 1.0), b.fma(before, log_low, series))
    value = b.select(b.eq(x, 0.0), c.INF, b.select(near, from_two, stirling))
    return b.select(b.lt(x, c.INF), value, x)


def _lgamma_reflected(b: Lanes, k: _Constants, size: ir.Value, right: ir.Value) -> ir.Value:
    """lgamma(-size) from that of `size`."""
    f = b.fabs(b.sub(size, b.roundeven(size)))
    sine = b.mul(f, c.polynomial(b, b.mul(f, f), k.sin))
    value = b.neg(b.add(logarithm.log(b, b.mul(size, sine)), right))
    return b.select(_is_pole(b, size), c.INF, value)


def lgamma(b: Lanes, x: ir.Value) -> ir.Value:
    """log |gamma(x)|; infinity at the poles 0, -1, -2, ..."""
    k = _FLOAT64 if c.is_double(x) else _FLOAT32
    wide = b.resize_float(x, t.F64)
    negative = b.lt(wide, -0.5)
    size = b.select(negative, b.neg(wide), wide)
    right = _lgamma_right(b, k, size)
    value, = extended.where_rare(b, negative, [right], lambda: [_lgamma_reflected(b, k, size, right)])
    return b.resize_float(value, t.element(x.type))


def _digamma_right(b: Lanes, k: _Constants, x: ir.Value) -> ir.Value:
    """digamma for x > 0: from between 1 and 2 for x up to 3, with 1/x or 1/(x - 1) taken out, else asymptotic."""
    below_one, to_two, near = b.lt(x, 1.0), b.le(x, 2.0), b.le(x, 3.0)

    def by_interval(lowest: float, middle: float, highest: float) -> ir.Value:
        return b.select(below_one, b.like(x, lowest), b.select(to_two, b.like(x, middle), highest))

    less_root = b.sub(b.sub(x, by_interval(*(high for high, _ in ROOTS))), by_interval(*(low for _, low in ROOTS)))
    u = b.sub(x, by_interval(CENTRE - 1.0, CENTRE, CENTRE + 1.0))
    under = b.select(below_one, b.neg(x), b.select(near, b.sub(x, 1.0), x))
    inverse = b.div(1.0, under)
    inverse_low = b.mul(inverse, b.fma(b.neg(inverse), under, 1.0))
    direct = b.and_(to_two, b.not_(below_one))
    step, step_low = b.select(direct, 0.0, inverse), b.select(direct, 0.0, inverse_low)
    ratio, ratio_low = _polynomial_two_parts(b, u, k.digamma)
    between = b.add(b.fma(less_root, ratio, step), b.fma(less_root, ratio_low, step_low))
    square = b.mul(inverse, inverse)
    rest = b.fma(square, c.polynomial(b, square, k.asymptotic), b.mul(inverse, 0.5))
    return b.select(near, between, b.sub(logarithm.log(b, x), rest))


def _digamma_reflected(b: Lanes, k: _Constants, x: ir.Value, right: ir.Value, at_zero: float) -> ir.Value:
    """digamma(x) for x <= 0 from that of -x."""
    size = b.fabs(x)
    f = b.sub(size, b.roundeven(size))
    square = b.mul(f, f)
    cotangent = b.div(c.polynomial(b, square, k.cos), b.mul(f, c.polynomial(b, square, k.sin)))
    value = b.add(b.add(right, b.div(1.0, size)), cotangent)
    return b.select(_is_pole(b, x), b.select(b.eq(x, 0.0), b.like(x, at_zero), c.NAN), value)


def digamma(b: Lanes, x: ir.Value, at_zero: float = c.NAN) -> ir.Value:
    """The derivative of lgamma; NaN at the poles 0, -1, -2, ..., or `at_zero` at the first of them."""
    k = _FLOAT64 if c.is_double(x) else _FLOAT32
    wide = b.resize_float(x, t.F64)
    right = _digamma_right(b, k, b.fabs(wide))
    value, = extended.where_rare(
        b, b.le(wide, 0.0), [right], lambda: [_digamma_reflected(b, k, wide, right, at_zero)]
    )
    return b.resize_float(value, t.element(x.type))
