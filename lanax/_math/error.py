"""erf, erfc and the inverse of erf on lanes, by minimax approximations that were fitted for this file.

erf: an odd polynomial near 0, 1 - e^-T(|x|) beyond. erfc: 1 - erf near 0, beyond e^(-x^2) times a function of
t = (x - K) / (x + K), which takes all x >= 0 to [-1, 1] (Shepherd and Laframboise). erf_inv: one piece for the middle,
one for both tails in the square root of a logarithm (as Giles and Wichura do).
"""

from __future__ import annotations

import dataclasses

from llvmlite import ir

from lanax._llvm.lanes import Lanes
from lanax._math import common as c
from lanax._math import exponential, logarithm


@dataclasses.dataclass(frozen=True)
class _Constants:
    """Numbers of erf and erfc for one format.

    Attributes:
      near: erf x = x + x near(x^2) up to `middle`.
      far: T, so that erf x = 1 - e^-T(x) from `middle` up to `one`, after which it is 1.
      ratio: polynomial in t that gives (x + K) e^(x^2) erfc(x).
      shift: K.
      zero: erfc is less than the least normal number beyond this.
    """

    middle: float
    one: float
    near: list[float]
    far: list[float]
    shift: float
    zero: float
    ratio: list[float]


_FLOAT32 = _Constants(
    middle=0.84,
    one=3.95,
    near=[1.2837917e-01, -3.7612593e-01, 1.12829186e-01, -2.6810026e-02, 5.0629866e-03, -6.3828187e-04],
    far=[9.391622e-05, 1.1281072e00, 6.3643724e-01, 1.0460102e-01, -2.2556836e-02, 3.1277167e-03, -2.0471978e-04],
    shift=2.953125,
    zero=9.194548606872559,
    ratio=[1.0724877e00, -8.772182e-01, 5.789465e-01, -2.9787594e-01, 1.10009454e-01, -2.2033488e-02, -2.545033e-03,
           2.9435866e-03, -2.5598955e-04, -2.9834715e-04],
)
_FLOAT64 = _Constants(
    middle=1.0,
    one=5.95,
    near=[0.12837916709551256, -0.37612638903183343, 0.1128379167093695, -0.026866170641959137, 0.00522397759673582,
          -0.0008548325484995262, 0.00012055280496482831, -1.4924465638743382e-05, 1.6444150569501559e-06,
          -1.6183991242837622e-07, 1.3616699821254446e-08, -7.607813602074177e-10],
    far=[5.028731280612151e-07, 1.128374089259258, 0.6366436290243562, 0.10270343702065599, -0.018990174232969104,
         -0.000410634228535568, 0.0019159500102123052, -0.0007706487571244492, 0.00013505403848097452,
         2.0264732480359168e-05, -2.2821702503445173e-05, 8.666903821000965e-06, -2.135611641491829e-06,
         3.732901889372564e-07, -4.642108574129952e-08, 3.93408366970187e-09, -2.044857341358988e-10,
         4.928331719998546e-12],
    shift=3.46875,
    zero=26.54325845425097,
    ratio=[1.0863813567434744, -0.9349273203950509, 0.6884225607651115, -0.4280095274446117, 0.2190160164005765,
           -0.08760968049803403, 0.024070998998225186, -0.0023219448611483074, -0.001425332856428997,
           0.0006573365744490977, -7.429680376986928e-06, -7.652677209447771e-05, 1.4037202529751174e-05,
           8.357212331926323e-06, -2.8235433436367112e-06, -1.0365938619981246e-06, 4.7027592638670436e-07,
           1.578714572172816e-07, -6.941607652926391e-08, -2.6531298548484654e-08, 6.887103046773814e-09,
           3.2145823091453843e-09],
)

# float32: erf_inv x = x + x p, with w = -log(1 - x^2): p a polynomial in w - MIDDLE_SHIFT up to w = 5, else in
# sqrt(w) - TAIL_SHIFT
_MIDDLE_SHIFT, _TAIL_SHIFT = 2.0, 2.5
_MIDDLE = [3.772152e-01, 2.497681e-01, -1.9680928e-03, -1.6922149e-03, 2.158644e-04, 7.640311e-06, -4.839362e-06,
           2.941188e-07, 6.279179e-08, -8.79087e-09]
_TAIL = [1.3359454e00, 9.822729e-01, 3.519023e-02, -3.115344e-02, 1.8693103e-02, -5.230154e-03, -1.8211615e-03,
         2.35895e-03, -8.9906115e-04, 1.2896396e-04]
# float64: x + x p up to 0.825, else s + p with s = sqrt(-log(1 - |x|)): p a rational function of MIDDLE_CENTRE - x^2,
# or of s - TAIL_START
_MIDDLE_CENTRE, _TAIL_START = 0.6875, 1.3125
_MIDDLE_OVER = [0.16791142856923932, 0.8048244731041797, -0.41070377579775313, -7.712702112444853, -14.298886347468839,
                -9.830326661802161, -2.431999916401944, -0.14446019177860717]
_MIDDLE_UNDER = [1.0, 9.539117488402999, 35.043478966321366, 62.49638366870526, 56.152491126332876, 23.938949992775324,
                 4.060113072864842, 0.17312233430152815]
_TAIL_OVER = [-0.36136670788712777, -0.90941373275762, -0.9361089961671684, -0.500337733444207, -0.1434875332954714,
              -0.020937515855617445, -0.001337003833377901, -2.5925613005606826e-05, -2.5870058744418388e-08]
_TAIL_UNDER = [1.0, 2.590331305334471, 2.9091137913770875, 1.792909790337658, 0.6420148547399973, 0.13084040141522885,
               0.014004098802509985, 0.0006589439828108046, 8.956967121899693e-06]


def _constants(x: ir.Value) -> _Constants:
    return _FLOAT64 if c.is_double(x) else _FLOAT32


def _near(b: Lanes, size: ir.Value) -> ir.Value:
    """erf of |x| up to `middle`."""
    return b.fma(size, c.polynomial(b, b.mul(size, size), _constants(size).near), size)


def erf(b: Lanes, x: ir.Value) -> ir.Value:
    """The error function."""
    k = _constants(x)
    size = b.fabs(x)
    exponent = c.polynomial(b, c.at_most(b, size, k.one), k.far)
    far = b.sub(1.0, exponential.exp_normal(b, b.neg(exponent)))
    return c.add_sign(b, b.select(b.gt(size, k.middle), far, _near(b, size)), x)


def _ratio(b: Lanes, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """e^(x^2) erfc(x) for x >= 0, in two parts."""
    k = _constants(x)
    under = b.add(x, k.shift)
    # exact, since the shift has few bits
    under_low = b.sub(x, b.sub(under, k.shift))
    inverse = b.div(1.0, under)
    t = b.mul(b.sub(x, k.shift), inverse)
    # what t lacks: x - K (1 + t) - x t
    missing = b.fma(b.neg(x), t, b.fma(b.add(t, 1.0), -k.shift, x))
    t = b.fma(inverse, missing, t)
    slope = c.polynomial(b, t, k.ratio[1:])
    over = b.fma(t, slope, k.ratio[0])
    over_low = b.fma(t, slope, b.sub(k.ratio[0], over))
    ratio = b.mul(over, inverse)
    rest = b.fma(b.neg(ratio), under_low, b.add(b.fma(b.neg(ratio), under, over), over_low))
    return ratio, b.mul(rest, inverse)


def erfc(b: Lanes, x: ir.Value) -> ir.Value:
    """1 - erf(x), accurate where that is small."""
    k = _constants(x)
    size = c.at_most(b, b.fabs(x), 2.0 * k.zero)
    square, error = c.two_product(b, size, size)
    r, shifted = exponential.reduce(b, b.neg(square))
    power = exponential.expm1_fraction(b, b.sub(r, error))
    ratio, ratio_low = _ratio(b, size)
    far = c.add_exponent(b, b.add(ratio, b.fma(power, ratio, ratio_low)), shifted)
    far = b.select(b.le(size, k.zero), far, b.mul(size, 0.0))
    far = b.select(b.lt(x, 0.0), b.sub(2.0, far), far)
    near = b.sub(1.0, c.flip_sign(b, _near(b, size), x))
    return b.select(b.lt(size, 0.375), near, far)


def _erf_inv_float32(b: Lanes, x: ir.Value) -> ir.Value:
    w = b.neg(logarithm.log(b, b.fma(b.neg(x), x, 1.0)))
    middle = c.polynomial(b, b.sub(w, _MIDDLE_SHIFT), _MIDDLE)
    tail = c.polynomial(b, b.sub(b.sqrt(w), _TAIL_SHIFT), _TAIL)
    size = b.fabs(x)
    return b.fma(size, b.select(b.lt(w, 5.0), middle, tail), size)


def _erf_inv_float64(b: Lanes, x: ir.Value) -> ir.Value:
    size = b.fabs(x)
    middle = b.lt(size, 0.825)
    u = b.fma(b.neg(x), x, _MIDDLE_CENTRE)
    s = b.sqrt(b.neg(logarithm.log(b, b.sub(1.0, size))))
    v = b.sub(s, _TAIL_START)
    over = b.select(middle, c.polynomial(b, u, _MIDDLE_OVER), c.polynomial(b, v, _TAIL_OVER))
    under = b.select(middle, c.polynomial(b, u, _MIDDLE_UNDER), c.polynomial(b, v, _TAIL_UNDER))
    return b.fma(b.select(middle, size, 1.0), b.div(over, under), b.select(middle, size, s))


def erf_inv(b: Lanes, x: ir.Value) -> ir.Value:
    """The y with erf(y) = x: infinite at 1 and -1, NaN beyond."""
    y = b.copysign(_erf_inv_float64(b, x) if c.is_double(x) else _erf_inv_float32(b, x), x)
    return b.select(b.eq(b.fabs(x), 1.0), b.mul(x, c.INF), y)
