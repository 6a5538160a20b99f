"""Special functions of two and three arguments: Bessel and zeta functions by `lanax._math`, the incomplete gamma and
beta functions as compositions. All compute in float64, where float32 would lose what a logarithm of gamma cancels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from llvmlite import ir

from lanax._jax import igamma_grad_a_impl, regularized_incomplete_beta_impl
from lanax._lowering.emitter import Emitter
from lanax._lowering.families import elementwise
from lanax._lowering.registry import register_composition
from lanax._math.bessel import bessel_i0e, bessel_i1e
from lanax._math.zeta import polygamma, zeta

elementwise("bessel_i0e", lambda b, dtype, x: bessel_i0e(b, x), cost=90)
elementwise("bessel_i1e", lambda b, dtype, x: bessel_i1e(b, x), cost=90)


def _number(x: ir.Value) -> Any:
    """A constant as a number, other lane values as they are."""
    value = x.constant if isinstance(x, ir.Constant) else None
    if isinstance(value, list):
        value = value[0].constant
    return value if isinstance(value, float) else x


def _of_order(fn: Callable[..., ir.Value]) -> Callable[..., ir.Value]:
    def lane_code(b: Emitter, _: np.dtype, order: ir.Value, x: ir.Value) -> ir.Value:
        order, x = b.join(order, x)
        return fn(b, _number(order), x)

    return lane_code


elementwise("zeta", _of_order(zeta), cost=900)
elementwise("polygamma", _of_order(polygamma), cost=1000)


# The incomplete gamma functions: P = D S and Q = a D F with D = x^a e^-x / gamma(a + 1), where S is a power series and
# F a continued fraction. About x = a, for large a, Temme's uniform expansion (SIAM J. Math. Anal. 10, 1979): with
# eta^2 / 2 = x / a - 1 - log(x / a), Q = erfc(eta sqrt(a / 2)) / 2 + e^(-a eta^2 / 2) sum C(eta) a^-k / sqrt(2 pi a).

#: Taylor coefficients in eta of C for k = 0, 1, ...
_TEMME = (
    (-0.3333333333333333, 0.08333333333333333, -0.014814814814814815, 0.0011574074074074073, 0.0003527336860670194,
     -0.0001787551440329218, 3.919263178522438e-05, -2.185448510679992e-06, -1.85406221071516e-06,
     8.296711340953087e-07, -1.7665952736826078e-07, 6.707853543401498e-09, 1.0261809784240309e-08,
     -4.382036018453353e-09, 9.14769958223679e-10, -2.5514193994946248e-11, -5.830772132550426e-11,
     2.4361948020667415e-11, -5.0276692801141755e-12, 1.1004392031956135e-13, 3.371763262400985e-13,
     -1.392388722418162e-13, 2.8534893807047445e-14, -5.139111834242572e-16),
    (-0.001851851851851852, -0.003472222222222222, 0.0026455026455026454, -0.0009902263374485596,
     0.00020576131687242798, -4.018775720164609e-07, -1.8098550334489977e-05, 7.64916091608111e-06,
     -1.6120900894563446e-06, 4.647127802807434e-09, 1.378633446915721e-07, -5.752545603517705e-08,
     1.1951628599778148e-08, -1.7543241719747647e-11, -1.0091543710600413e-09, 4.162792991842583e-10,
     -8.56390702649298e-11, 6.067215101604758e-14, 7.1624989648114856e-12, -2.933186643771437e-12,
     5.996696365683689e-13, -2.1671786527323313e-16, -4.978339972369262e-14, 2.0291628823713425e-14),
    (0.004133597883597883, -0.0026813271604938273, 0.0007716049382716049, 2.0093878600823047e-06,
     -0.0001073665322636516, 5.2923448829120125e-05, -1.2760635188618728e-05, 3.423578734096138e-08,
     1.3721957309062934e-06, -6.298992138380055e-07, 1.4280614206064242e-07, -2.0477098421990866e-10,
     -1.409252991086752e-08, 6.228974084922022e-09, -1.3670488396617114e-09, 9.428356159014678e-13,
     1.2872252400089318e-10, -5.5645956134363323e-11, 1.197593554636698e-11, -4.1689782251838634e-15,
     -1.0940640427884595e-12, 4.662239946390136e-13, -9.905105763906907e-14, 1.8931876768373515e-17),
    (0.0006494341563786008, 0.00022947209362139917, -0.0004691894943952557, 0.00026772063206283885,
     -7.561801671883977e-05, -2.396505113867297e-07, 1.1082654115347302e-05, -5.6749528269915965e-06,
     1.4230900732435883e-06, -2.7861080291528143e-11, -1.6958404091930278e-07, 8.099464905388083e-08,
     -1.9111168485973655e-08, 2.3928620439808118e-12, 2.0620131815488797e-09, -9.460496661855133e-10,
     2.1541049775774907e-10, -1.388823336813903e-14, -2.1894761681963938e-11, 9.790998951171684e-12,
     -2.178219188018096e-12, 6.208819573407901e-17, 2.126978363279737e-13, -9.344688791517433e-14),
    (-0.0008618882909167117, 0.0007840392217200666, -0.0002990724803031902, -1.4638452578843418e-06,
     6.641498215465122e-05, -3.968365047179435e-05, 1.1375726970678419e-05, 2.507497226237533e-10,
     -1.6954149536558305e-06, 8.907507532205309e-07, -2.292934834000805e-07, 2.956794137544049e-11,
     2.8865829742708783e-08, -1.4189739437803219e-08, 3.4463580499464896e-09, -2.3024517174528067e-13,
     -3.9409233028046403e-10, 1.86023389685045e-10, -4.356323005056618e-11, 1.278600101629623e-15,
     4.67927502665792e-12, -2.149246470613483e-12, 4.908815614809652e-13, -6.33859148489156e-18),
    (-0.00033679855336635813, -6.972813758365857e-05, 0.0002772753244959392, -0.00019932570516188847,
     6.797780477937208e-05, 1.419062920643967e-07, -1.3594048189768693e-05, 8.018470256334202e-06,
     -2.291481176508095e-06, -3.252473551298454e-10, 3.4652846491085265e-07, -1.8447187191171344e-07,
     4.8240967037894184e-08, -1.7989466721743514e-14, -6.306194500013523e-09, 3.162417628774568e-09,
     -7.840924253697429e-10, 5.192679165254041e-15, 9.358944242306784e-11, -4.513426216163278e-11,
     1.0799129993116828e-11, -3.661886712685252e-17, -1.210902069055155e-12, 5.680743584990564e-13),
)
#: From this a on the expansion is right to float64 for |eta| below 1.
_LARGE = 64.0
#: From this a on P is 0 or 1 beyond |eta| = 1.
_STEEP = 1e4
#: D is a product of powers below this a, by Stirling's formula from it on.
_STIRLING = 10.0
#: log gamma(a + 1) = a log(a) - a + log(2 pi a) / 2 + S(1/a^2) / a
_STIRLING_SERIES = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400)
#: log(1 + m) = 2 s + 2 s^3 L(s^2), s = m / (2 + m)
_LOG_SERIES = tuple(1 / (2 * k + 3) for k in range(17))
#: log gamma(1 + a) / a for a below 0.1: Euler's constant and zeta(k) / k.
_LOG_GAMMA_SERIES = (
    -0.5772156649015329, 0.8224670334241132, -0.40068563438653143, 0.27058080842778454, -0.20738555102867398,
    0.1695571769974082, -0.1440498967688461, 0.12550966952474304, -0.11133426586956469, 0.1000994575127818,
    -0.09095401714582904, 0.083353840546109, -0.0769325164113522, 0.07143294629536133, -0.06666870588242046,
    0.06250095514121304, -0.058823978658684585,
)
#: Below this a, and x below 1, Q is small, and is not found as 1 - P.
_SMALL = 0.1
#: A bound of the trips; the fraction needs most, some hundreds, where x is near 1.
_MOST_TERMS = 2000.0


def _polynomial(x: Any, coefficients: Sequence[Any]) -> Any:
    total = coefficients[-1]
    for c in coefficients[-2::-1]:
        total = total * x + c
    return total


def _in_float64(fun: Callable[..., Any]) -> Callable[..., Any]:
    """`fun` of float64, for floats of any width."""

    def composition(*operands: Any) -> Any:
        with jax.enable_x64(True):
            out = fun(*(lax.convert_element_type(x, np.float64) for x in operands))
            return lax.convert_element_type(out, operands[0].dtype)

    composition.__doc__ = fun.__doc__
    composition.__module__ = fun.__module__
    return composition


def _deviation(a: Any, x: Any) -> Any:
    """eta, smooth through x = a."""
    m = (x - a) / a
    r = 1.0 / (m + 2.0)
    s = m * r
    near = m * jnp.sqrt(2.0 * (r - 2.0 * s * r * r * _polynomial(s * s, _LOG_SERIES)))
    return jnp.where(jnp.abs(m) < 0.5, near, jnp.sign(m) * jnp.sqrt(2.0 * (m - jnp.log(x / a))))


def _uniform(a: Any, eta: Any) -> tuple[Any, Any]:
    """P and Q by the uniform expansion."""
    series = _polynomial(1.0 / a, [_polynomial(eta, row) for row in _TEMME])
    rest = jnp.exp(-0.5 * a * eta * eta) * series / jnp.sqrt(2 * np.pi * a)
    y = eta * jnp.sqrt(0.5 * a)
    return 0.5 * lax.erfc(-y) - rest, 0.5 * lax.erfc(y) + rest


def _factor(a: Any, x: Any, eta: Any) -> Any:
    """D."""
    less, more = jnp.minimum(a, _STIRLING), jnp.maximum(a, _STIRLING)
    bounded = jnp.minimum(x, _STEEP)  # e^-x is 0 there, and the power still finite
    small = lax.pow(bounded, less) * jnp.exp(-bounded) * jnp.exp(-lax.lgamma(less + 1.0))
    correction = _polynomial(1.0 / (more * more), _STIRLING_SERIES) / more
    large = jnp.exp(-0.5 * a * eta * eta - correction) / jnp.sqrt(2 * np.pi * more)
    return jnp.where(a < _STIRLING, small, large)


def _series(a: Any, x: Any, on: Any) -> Any:
    """S = 1 + x / (a + 1) + x^2 / ((a + 1) (a + 2)) + ..., where `on`."""

    def add(state: Any) -> Any:
        on, n, term, total = state
        n = n + 1.0
        term = term * (x / n)
        return on & (term > 2.0**-54 * total), n, term, jnp.where(on, total + term, total)

    one = jnp.ones_like(x)
    return lax.while_loop(lambda state: jnp.any(state[0]), add, (on, a, one, one))[3]


def _fraction(a: Any, x: Any, on: Any) -> Any:
    """F = 1 / (x + 1 - a - (1 - a) / (x + 3 - a - 2 (2 - a) / (x + 5 - a - ...))) by Lentz's method, where `on`."""

    def add(state: Any) -> Any:
        on, n, below, c, d, total = state
        n, below = n + 1.0, below + 2.0
        above = n * (a - n)
        d = 1.0 / (above * d + below)
        c = below + above / c
        more = on & (jnp.abs(c * d - 1.0) > 2.0**-51) & (n < _MOST_TERMS)
        return more, n, below, c, d, jnp.where(on, total * (c * d), total)

    below = x + 1.0 - a
    first = 1.0 / below
    state = on, jnp.zeros_like(x), below, jnp.full_like(x, np.inf), first, first
    return lax.while_loop(lambda state: jnp.any(state[0]), add, state)[5]


def _small_upper(a: Any, x: Any, on: Any) -> Any:
    """Q for small a and x below 1, where it is small: 1 - (1 + a T) x^a / gamma(a + 1), T the sum of
    (-x)^n / (n! (a + n)) from n = 1, where `on`."""

    def add(state: Any) -> Any:
        more, n, term, total = state
        n = n + 1.0
        term = term * (-x / n)
        return more & (jnp.abs(term) > 2.0**-56 * x), n, term, jnp.where(more, total + term / (a + n), total)

    zero, one = jnp.zeros_like(x), jnp.ones_like(x)
    total = lax.while_loop(lambda state: jnp.any(state[0]), add, (on, zero, one, zero))[3]
    log = a * (jnp.log(x) - _polynomial(a, _LOG_GAMMA_SERIES))
    return -jnp.expm1(log) - jnp.exp(log) * a * total


def _regions(a: Any, x: Any) -> tuple[Any, Any, Any]:
    """eta, and where the uniform expansion is right, and where P is 0 or 1."""
    eta = _deviation(a, x)
    near = jnp.abs(eta) < 1.0
    return eta, (a >= _LARGE) & near, (a >= _STEEP) & ~near


def _incomplete_gamma(a: Any, x: Any) -> tuple[Any, Any]:
    """P and Q for positive finite a and x."""
    eta, uniform, steep = _regions(a, x)
    on, upper = ~(uniform | steep), (x >= 1.0) & (x > a)
    factor = _factor(a, x, eta)
    lower_value = factor * _series(a, x, on & ~upper)
    upper_value = a * factor * _fraction(a, x, on & upper)
    p = jnp.where(upper, 1.0 - upper_value, lower_value)
    small = on & (a < _SMALL) & (x < 1.0)
    q = jnp.where(upper, upper_value, jnp.where(small, _small_upper(a, x, small), 1.0 - lower_value))
    p = jnp.where(steep, jnp.where(x > a, 1.0, 0.0), p)
    q = jnp.where(steep, jnp.where(x > a, 0.0, 1.0), q)
    near = _uniform(jnp.where(uniform, a, _LARGE), jnp.where(uniform, eta, 0.0))
    return jnp.where(uniform, near[0], p), jnp.where(uniform, near[1], q)


def _limits(a: Any, x: Any) -> tuple[Any, Any, Any]:
    """Where P is 0, where it is 1, and where it is not defined."""
    zero, one = (x == 0.0) | (a == np.inf), (x == np.inf) | (a == 0.0)
    return zero, one, (zero & one) | ~(x >= 0.0) | ~(a >= 0.0)


def _igamma(a: Any, x: Any) -> Any:
    """In float64 by a series, a continued fraction, or for large operands Temme's expansion."""
    return _between_limits(a, x, 0)


def _igammac(a: Any, x: Any) -> Any:
    """In float64 by a series, a continued fraction, or for large operands Temme's expansion."""
    return _between_limits(a, x, 1)


def _between_limits(a: Any, x: Any, which: int) -> Any:
    """P (0) or Q (1), everywhere."""
    zero, one, undefined = _limits(a, x)
    plain = ~(zero | one | undefined)
    value = _incomplete_gamma(jnp.where(plain, a, 1.0), jnp.where(plain, x, 1.0))[which]
    return jnp.where(undefined, np.nan, jnp.where(zero, float(which), jnp.where(one, 1.0 - which, value)))


def _igamma_grad_a(a: Any, x: Any) -> Any:
    """In float64 by JAX's own series and fraction, or for large operands by the derivative of Temme's expansion."""
    plain = (a > 0.0) & (x > 0.0) & (a < np.inf) & (x < np.inf)
    known_a, known_x = jnp.where(plain, a, 1.0), jnp.where(plain, x, 1.0)
    _, uniform, steep = _regions(known_a, known_x)
    rest = uniform | steep
    value = igamma_grad_a_impl(jnp.where(rest, 1.0, known_a), jnp.where(rest, 1.0, known_x), dtype=np.float64)
    near_a, near_x = jnp.where(uniform, known_a, _LARGE), jnp.where(uniform, known_x, _LARGE)
    _, near = jax.jvp(lambda v: _uniform(v, _deviation(v, near_x))[0], (near_a,), (jnp.ones_like(near_a),))
    value = jnp.where(uniform, near, jnp.where(steep, 0.0, value))
    return jnp.where(plain, value, jnp.where((x == 0.0) & (a > 0.0), 0.0, np.nan))


def _betainc(a: Any, b: Any, x: Any) -> Any:
    """JAX's own continued fraction, in float64."""
    value = regularized_incomplete_beta_impl(a, b, x, dtype=np.float64)
    return jnp.where(jnp.abs(value - 0.5) < 0.5 + 2.0**-20, jnp.clip(value, 0.0, 1.0), np.nan)


for _name, _fun in {
    "igamma": _igamma,
    "igammac": _igammac,
    "igamma_grad_a": _igamma_grad_a,
    "regularized_incomplete_beta": _betainc,
}.items():
    register_composition(_name, _in_float64(_fun))
