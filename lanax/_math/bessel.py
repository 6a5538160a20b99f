"""Modified Bessel functions of the first kind on lanes, scaled by exp(-|x|): the power series up to 8, beyond it a
polynomial in 1/x fitted for this file. float32 arguments go through float64."""

from __future__ import annotations

import dataclasses
import math

from llvmlite import ir

from lanax._llvm import types as t
from lanax._llvm.lanes import Lanes
from lanax._math import common as c
from lanax._math import exponential

#: Up to here the power series, all of whose terms are positive.
NEAR = 8.0


@dataclasses.dataclass(frozen=True)
class _Constants:
    """Coefficients for one precision.

    Attributes:
      terms: of the power series.
      zero, one: sqrt(x) exp(-x) I(x) for orders 0 and 1, a polynomial in 16/x - 1 for x from 8 on.
    """

    terms: int
    zero: list[float]
    one: list[float]


_FLOAT32 = _Constants(
    terms=16,
    zero=[0.4021765094450081, 0.003360555851925354, 0.00013621684311530046, 1.1111525456650673e-05,
          1.4767921099426897e-06, 3.631710305277285e-07, 1.0829898259260847e-07],
    one=[0.38939845902587233, -0.009749581526547915, -0.00021923666942859845, -1.500332306614829e-05,
         -1.8267145046635388e-06, -4.2155543729815765e-07, -1.2212498465941114e-07],
)
_FLOAT64 = _Constants(
    terms=23,
    zero=[0.4021765094450081, 0.0033605519836678913, 0.00013621607438951463, 1.114303378845176e-05,
          1.4838476780922646e-06, 2.9735992084667734e-07, 8.872014585661555e-08, 3.932512321137824e-08,
          2.156780676115673e-08, 7.559364098665437e-09, -6.856484545962442e-09, -1.3427511481900905e-08,
          -5.0175940345046716e-09, 7.600254486433509e-09, 6.522264862032271e-09, -3.5862834111582305e-09,
          -4.5305710768621196e-09, 1.6084886155781772e-09, 2.163681278413876e-09, -6.327909921997027e-10,
          -6.494591114401118e-10, 1.7698085539456536e-10, 9.114760157514253e-11, -2.4421972688131832e-11],
    one=[0.38939845902587233, -0.009749577193235765, -0.00021923576383137776, -1.5038547198221758e-05,
         -1.8349102493990178e-06, -3.4838563464253135e-07, -1.0001075046243961e-07, -4.3128498031006734e-08,
         -2.3394122958362557e-08, -8.432168972932417e-09, 6.84757829926934e-09, 1.4051746928735543e-08,
         5.5720183980930355e-09, -7.687251308765992e-09, -6.9444186339873875e-09, 3.501765193290176e-09,
         4.763780078020254e-09, -1.5218214060680734e-09, -2.2624401109204446e-09, 5.870664618471487e-10,
         6.7727478454462e-10, -1.6283264322621244e-10, -9.491890392992048e-11, 2.2421768596847442e-11],
)


def _scaled(b: Lanes, size: ir.Value, order: int, k: _Constants) -> ir.Value:
    """exp(-size) I(size) for a float64 that is not negative."""
    near = c.at_most(b, size, NEAR)
    half = b.mul(near, 0.5)
    series = [1.0 / (math.factorial(n) * math.factorial(n + order)) for n in range(k.terms)]
    total = c.polynomial(b, b.mul(half, half), series)
    below = b.mul(exponential.exp(b, b.neg(near)), b.mul(half, total) if order else total)
    far = c.at_least(b, size, NEAR)
    tail = c.polynomial(b, b.fma(b.div(2 * NEAR, far), 1.0, -1.0), k.one if order else k.zero)
    return b.select(b.gt(size, NEAR), b.div(tail, b.sqrt(far)), below)


def _bessel(b: Lanes, x: ir.Value, order: int) -> ir.Value:
    k = _FLOAT64 if c.is_double(x) else _FLOAT32
    return b.resize_float(_scaled(b, b.fabs(b.resize_float(x, t.F64)), order, k), t.element(x.type))


def bessel_i0e(b: Lanes, x: ir.Value) -> ir.Value:
    """exp(-|x|) I0(x)."""
    return _bessel(b, x, 0)


def bessel_i1e(b: Lanes, x: ir.Value) -> ir.Value:
    """exp(-|x|) I1(x)."""
    return c.flip_sign(b, _bessel(b, x, 1), x)
