"""erf, erfc and the inverse of erf on lanes, by minimax approximations that were fitted for this file.

erf: an odd polynomial near 0, 1 - e^(-|x| T(|x|)) beyond. erfc: 1 - erf near 0, beyond e^(-x^2) times a function of
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
      far: T, so that erf x = 1 - e^(-x T(x)) from `middle` up to `one`, after which it is 1.
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
    middle=1.0,
    one=3.95,
    near=[0.12837916612625122, -0.3761262595653534, 0.11283578723669052, -0.026853347197175026, 0.005187164526432753,
          -0.0007997883367352188, 7.807041401974857e-05],
    far=[1.128480076789856, 0.635831356048584, 0.10511628538370132, -0.02279854379594326, 0.003186967223882675,
         -0.00021064507018309087],
    shift=2.953125,
    zero=9.194548606872559,
    ratio=[1.072487711906433, -0.8772180676460266, 0.5789462327957153, -0.2978801429271698, 0.11001541465520859,
           -0.021990623325109482, -0.002583408961072564, 0.002777536166831851, -0.00018446210015099496,
           -7.652206841157749e-05],
)
_FLOAT64 = _Constants(
    middle=1.0,
    one=5.95,
    near=[0.12837916709551256, -0.37612638903183343, 0.1128379167093695, -0.026866170641959137, 0.00522397759673582,
          -0.0008548325484995262, 0.00012055280496482831, -1.4924465638743382e-05, 1.6444150569501559e-06,
          -1.6183991242837622e-07, 1.3616699821254446e-08, -7.607813602074177e-10],
    far=[1.1283791203637599, 0.636620168817378, 0.10277116724459308, -0.019125805146396255, -0.00021062436964308371,
         0.0016909037374652103, -0.0005731389422129628, -1.9870120258487987e-06, 9.598685418960834e-05,
         -5.6216195864467506e-05, 2.039228472363487e-05, -5.388769172851973e-06, 1.0767731921645245e-06,
         -1.623788492812354e-07, 1.7992373203827943e-08, -1.3849828275081762e-09, 6.620049790249924e-11,
         -1.4795295441931852e-12],
    shift=3.46875,
    zero=26.54325845425097,
    ratio=[1.0863813567434744, -0.9349273203950509, 0.6884225607651115, -0.4280095274446117, 0.2190160164005765,
           -0.08760968049803403, 0.024070998998225186, -0.0023219448611483074, -0.001425332856428997,
           0.0006573365744490977, -7.429680376986928e-06, -7.652677209447771e-05, 1.4037202529751174e-05,
           8.357212331926323e-06, -2.8235433436367112e-06, -1.0365938619981246e-06, 4.7027592638670436e-07,
           1.578714572172816e-07, -6.941607652926391e-08, -2.6531298548484654e-08, 6.887103046773814e-09,
           3.2145823091453843e-09],
)

# float32: erf_inv x = x + x p, with w = -log(1 - x^2) and p a polynomial in w - MIDDLE_SHIFT, up to w = TAIL_FROM, else
# s + p, with s = sqrt(w) and p in s - TAIL_SHIFT
_TAIL_FROM, _MIDDLE_SHIFT, _TAIL_SHIFT = 2.45, 0.5, 3.0
_MIDDLE = [0.00482268399, 0.241762489, 0.00791410916, -0.0024718144, -8.47250703e-06, 4.71461717e-05,
           -1.3096809e-06, -1.12785938e-06, 1.36078967e-07]
_TAIL = [-0.16719801723957062, 0.002662294078618288, 0.0068437401205301285, -0.0034438639413565397,
         0.0011422160314396024, -0.00022561324294656515, -3.615965397330001e-05, 6.299250526353717e-05,
         -2.4608181774965487e-05, -3.0562550819013268e-06, 3.661778009700356e-06]
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


def _near(b: Lanes, x: ir.Value) -> ir.Value:
    """erf(x) / x - 1 up to `middle`."""
    return c.polynomial(b, b.mul(x, x), _constants(x).near)


def erf(b: Lanes, x: ir.Value) -> ir.Value:
    """The error function. 1.0 ULP."""
    k = _constants(x)
    size = b.fabs(x)
    limited = c.at_most(b, size, k.one)
    far = b.sub(1.0, exponential.exp_of_product(b, b.neg(limited), c.polynomial(b, limited, k.far)))
    return c.add_sign(b, b.select(b.gt(size, k.middle), far, b.fma(size, _near(b, size), size)), x)


def _ratio(b: Lanes, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """e^(x^2) erfc(x) for x >= 0, in two parts; where `b.fast` the second is 0."""
    k = _constants(x)
    under = b.add(x, k.shift)
    if b.fast:
        t = b.div(b.sub(x, k.shift), under)
        return b.div(c.polynomial(b, t, k.ratio), under), b.like(x, 0.0)
    # exact, since the shift has few bits
    under_low = b.sub(x, b.sub(under, k.shift))
    inverse = b.div(1.0, under)
    distance = b.sub(x, k.shift)
    distance_low = b.sub(x, b.add(distance, k.shift))
    t = b.mul(distance, inverse)
    missing = b.fma(b.neg(t), under_low, b.add(b.fma(b.neg(t), under, distance), distance_low))
    t_low = b.mul(missing, inverse)
    t, t_low = c.fast_two_sum(b, t, t_low)
    slope, slope_low = _horner_step(b, t, c.polynomial(b, t, k.ratio[2:]), k.ratio[1])
    over, over_low = _horner_step(b, t, slope, k.ratio[0])
    over_low = b.fma(t_low, slope, b.fma(t, slope_low, over_low))
    ratio = b.mul(over, inverse)
    rest = b.fma(b.neg(ratio), under_low, b.add(b.fma(b.neg(ratio), under, over), over_low))
    return ratio, b.mul(rest, inverse)


def _horner_step(b: Lanes, x: ir.Value, slope: ir.Value, start: float) -> tuple[ir.Value, ir.Value]:
    """start + x * slope and its error, where the terms do not cancel."""
    return c.fma_in_parts(b, x, slope, b.like(x, start))


def erfc(b: Lanes, x: ir.Value) -> ir.Value:
    """1 - erf(x), accurate where that is small. 1.0 ULP (float32), 1.2 (float64); 4 where `b.fast`."""
    k = _constants(x)
    size = c.at_most(b, b.fabs(x), 2.0 * k.zero)
    square, error = c.two_product(b, size, size)
    high, low, shifted = exponential.reduce_in_parts(b, b.neg(square))
    low = b.sub(low, error)
    rest = exponential.expm1_rest(b, b.add(high, low), low)
    ratio, ratio_low = _ratio(b, size)
    if b.fast:
        far = b.fma(ratio, b.add(high, rest), ratio)
    else:
        far, far_low = c.fma_in_parts(b, ratio, high, ratio)
        far = b.add(far, b.fma(rest, ratio, b.add(far_low, b.fma(ratio_low, high, ratio_low))))
    far = c.add_exponent(b, far, shifted)
    far = b.select(b.le(size, k.zero), far, b.mul(size, 0.0))
    far = b.select(b.lt(x, 0.0), b.sub(2.0, far), far)
    high, error = c.fast_two_sum(b, 1.0, b.neg(x))
    near = b.add(high, b.fma(b.neg(x), _near(b, x), error))
    return b.select(b.lt(size, 0.65), near, far)


def _root_of_log(b: Lanes, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value]:
    """w = -log x for a normal x below 1, and its root, each as a sum of two; where `b.fast` the second is 0."""
    if b.fast:
        zero, w = b.like(x, 0.0), b.neg(logarithm.log_of_normal(b, x))
        return w, zero, b.sqrt(w), zero
    log, log_low = logarithm.log_in_parts(b, x)
    root = b.sqrt(b.neg(log))
    missing = b.add(b.fma(root, root, log), log_low)
    return b.neg(log), b.neg(log_low), root, b.mul(b.mul(missing, -0.5), c.rough_inverse(b, root))


def _erf_inv_float32(b: Lanes, x: ir.Value) -> ir.Value:
    size = b.fabs(x)
    w, w_low, root, root_low = _root_of_log(b, b.fma(b.neg(x), x, 1.0))
    middle = b.fma(w_low, _MIDDLE[1], c.polynomial(b, b.sub(w, _MIDDLE_SHIFT), _MIDDLE))
    tail = b.add(c.polynomial(b, b.sub(root, _TAIL_SHIFT), _TAIL), root_low)
    near = b.lt(w, _TAIL_FROM)
    return b.fma(b.select(near, size, 1.0), b.select(near, middle, tail), b.select(near, size, root))


def _erf_inv_float64(b: Lanes, x: ir.Value) -> ir.Value:
    size = b.fabs(x)
    middle = b.lt(size, 0.825)
    u = b.fma(b.neg(x), x, _MIDDLE_CENTRE)
    _, _, root, root_low = _root_of_log(b, b.sub(1.0, size))
    v = b.sub(root, _TAIL_START)
    over = b.select(middle, c.polynomial(b, u, _MIDDLE_OVER), c.polynomial(b, v, _TAIL_OVER))
    under = b.select(middle, c.polynomial(b, u, _MIDDLE_UNDER), c.polynomial(b, v, _TAIL_UNDER))
    ratio = b.add(b.div(over, under), b.select(middle, 0.0, root_low))
    return b.fma(b.select(middle, size, 1.0), ratio, b.select(middle, size, root))


def erf_inv(b: Lanes, x: ir.Value) -> ir.Value:
    """The y with erf(y) = x: infinite at 1 and -1, NaN beyond. 1.0 ULP (float32), 1.2 (float64)."""
    y = b.copysign(_erf_inv_float64(b, x) if c.is_double(x) else _erf_inv_float32(b, x), x)
    size = b.fabs(x)
    outside = b.select(b.eq(size, 1.0), b.mul(x, c.INF), c.NAN)
    return b.select(b.lt(size, 1.0), y, outside)
