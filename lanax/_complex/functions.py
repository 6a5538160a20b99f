"""Elementary functions of complex numbers. On a branch cut they take the side that XLA takes."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from lanax._complex import scaling
from lanax._complex.arithmetic import absolute, divide, multiply
from lanax._complex.registry import Complex, register_complex

_LN2 = math.log(2)


def _with_sign(x: Any, of: Any) -> Any:
    """|x| with the sign bit of another number."""
    return jnp.copysign(x, of)


def _flipped(x: Any, by: Any) -> Any:
    """x, or -x where `by` < 0: a negative zero counts as positive."""
    return jnp.where(by < 0, -x, x)


def _unless_zero(x: Any, zero: Any) -> Any:
    """x, or 0 where `zero` is 0."""
    return jnp.where(zero == 0, jnp.zeros_like(x), x)


# -- exponentials ----------------------------------------------------------------------------------------------------


def _polar(half: Any, angle: Any) -> Complex:
    """half^2 e^(i angle); the square may overflow where the product does not."""
    return Complex(half * lax.cos(angle) * half, _unless_zero(half * lax.sin(angle) * half, angle))


@register_complex("exp")
def _exp(z: Complex, **_: Any) -> Complex:
    return _polar(lax.exp(z.re * 0.5), z.im)


@register_complex("exp2")
def _exp2(z: Complex, **_: Any) -> Complex:
    return _polar(lax.exp2(z.re * 0.5), z.im * _LN2)


@register_complex("expm1")
def _expm1(z: Complex, **_: Any) -> Complex:
    """e^x cos y - 1 = (e^x - 1) cos y - 2 sin(y/2)^2."""
    half, sin_half = lax.exp(z.re * 0.5), lax.sin(z.im * 0.5)
    less_one = lax.expm1(z.re)
    re = jnp.where(z.im == 0, less_one, less_one * lax.cos(z.im) - 2 * sin_half * sin_half)
    return Complex(re, _unless_zero(half * lax.sin(z.im) * half, z.im))


@register_complex("logistic")
def _logistic(z: Complex, **_: Any) -> Complex:
    """1 / (1 + e^-z), or e^z / (1 + e^z) on the left: |e^...| <= 1."""
    left = z.re < 0
    size = lax.exp(-lax.abs(z.re))
    angle = jnp.where(left, z.im, -z.im)
    e = Complex(size * lax.cos(angle), size * lax.sin(angle))
    one = Complex(jnp.ones_like(size), jnp.zeros_like(size))
    above = Complex(jnp.where(left, e.re, one.re), jnp.where(left, e.im, one.im))
    return divide(above, Complex(1 + e.re, e.im))


# -- logarithms and powers -------------------------------------------------------------------------------------------


def _plus_squares(total: Any, x: Any, y: Any) -> Any:
    """total + x^2 + y^2 for x >= y, where that may be small: exact products, and two-sums (Knuth) for the errors of
    sums."""
    hx, hy = scaling.leading(x), scaling.leading(y)
    tx, ty = x - hx, y - hy
    errors = tx * tx + ty * ty
    for term in (hx * hx, hy * hy, 2 * (hx * tx), 2 * (hy * ty)):
        new = total + term
        gained = new - total
        errors = errors + ((total - (new - gained)) + (term - gained))
        total = new
    return total + errors


def _log_size(x: Any, y: Any, excess: Any) -> Any:
    """log |x + iy|, where `excess` is |x + iy|^2 - 1 to more digits than x and y give where that is near 0."""
    x, y = lax.abs(x), lax.abs(y)
    large = lax.max(x, y)
    e = scaling.exponent(large)
    down = scaling.inverse(e, x.dtype)
    large, small = large * down, lax.min(x, y) * down
    near = lax.abs(excess) < 0.5
    rest = jnp.where(near, excess, (large - 1) * (large + 1) + small * small)
    return 0.5 * lax.log1p(rest) + jnp.where(near, 0, scaling.number(e, x.dtype) * _LN2)


def _log_abs(z: Complex) -> Any:
    a, b = lax.abs(z.re), lax.abs(z.im)
    return _log_size(a, b, _plus_squares(jnp.full_like(a, -1), lax.max(a, b), lax.min(a, b)))


@register_complex("log")
def log(z: Complex, **_: Any) -> Complex:
    return Complex(_log_abs(z), lax.atan2(z.im, z.re))


@register_complex("log1p")
def _log1p(z: Complex, **_: Any) -> Complex:
    large = lax.max(lax.abs(z.re), lax.abs(z.im))
    small = lax.min(lax.abs(z.re), lax.abs(z.im))
    excess = _plus_squares(2 * z.re, large, small)
    return Complex(_log_size(1 + z.re, z.im, excess), lax.atan2(z.im, 1 + z.re))


@register_complex("pow")
def _pow(x: Any, y: Any, **_: Any) -> Complex:
    """|x|^Re(y) e^(-Im(y) arg x), at the angle Re(y) arg x + Im(y) log |x|."""
    dtype = x.re.dtype
    y = y if isinstance(y, Complex) else Complex(lax.convert_element_type(y, dtype), jnp.zeros_like(y, dtype))
    size, angle = _log_abs(x), lax.atan2(x.im, x.re)
    turn = y.re * angle + y.im * size
    scale = lax.pow(*jnp.broadcast_arrays(absolute(x), y.re)) * lax.exp(-y.im * angle)
    zero = (x.re == 0) & (x.im == 0) & (y.im == 0) & (y.re >= 0)
    re = jnp.where(zero, jnp.where(y.re == 0, dtype.type(1), dtype.type(0)), scale * lax.cos(turn))
    return Complex(re, jnp.where(zero, 0, scale * lax.sin(turn)))


def _roots(z: Complex) -> tuple[Any, Any]:
    """sqrt((|z| + |Re z|) / 2), and |Im z| over twice that."""
    a, b = lax.abs(z.re), lax.abs(z.im)
    e = scaling.exponent(lax.max(a, b), even=True)
    down = scaling.inverse(e, a.dtype)
    near, side = a * down, b * down
    u = lax.sqrt((lax.sqrt(near * near + side * side) + near) * 0.5)
    u = u * scaling.power(scaling.half(e, a.dtype), a.dtype)
    # Both parts are infinite, unless the real part alone is.
    return u, jnp.where(b == jnp.inf, b, _unless_zero(b / (u + u), b))


@register_complex("sqrt")
def _sqrt(z: Complex, **_: Any) -> Complex:
    u, v = _roots(z)
    left = z.re < 0
    return Complex(jnp.where(left, v, u), _flipped(jnp.where(left, u, v), z.im))


@register_complex("rsqrt")
def _rsqrt(z: Complex, **_: Any) -> Complex:
    """The conjugate of the square root, over |z|. A negative zero is below the cut."""
    u, v = _roots(z)
    a, b = lax.abs(z.re), lax.abs(z.im)
    e = scaling.exponent(lax.max(a, b))
    down = scaling.inverse(e, a.dtype)
    a, b = a * down, b * down
    size = lax.sqrt(a * a + b * b)
    left, infinite = z.re < 0, size == jnp.inf
    re = jnp.where(infinite, 0, jnp.where(left, v, u) / size * down)
    im = jnp.where(infinite, 0, jnp.where(left, u, v) / size * down)
    return Complex(jnp.where(size == 0, jnp.inf, re), -_with_sign(im, z.im))


@register_complex("atan2")
def _atan2(y: Complex, x: Complex) -> Complex:
    """-i log((x + iy) / sqrt(x^2 + y^2))."""
    above = Complex(x.re - y.im, x.im + y.re)
    xx, yy = multiply(x, x), multiply(y, y)
    out = log(divide(above, _sqrt(Complex(xx.re + yy.re, xx.im + yy.im))))
    return Complex(out.im, -out.re)


# -- circular and hyperbolic functions ---------------------------------------------------------------------------------


@register_complex("sinh")
def _sinh(z: Complex, **_: Any) -> Complex:
    return Complex(lax.sinh(z.re) * lax.cos(z.im), _unless_zero(lax.cosh(z.re) * lax.sin(z.im), z.im))


@register_complex("cosh")
def _cosh(z: Complex, **_: Any) -> Complex:
    return Complex(lax.cosh(z.re) * lax.cos(z.im), _unless_zero(lax.sinh(z.re) * lax.sin(z.im), z.im))


@register_complex("sin")
def _sin(z: Complex, **_: Any) -> Complex:
    return Complex(_unless_zero(lax.sin(z.re) * lax.cosh(z.im), z.re), lax.cos(z.re) * lax.sinh(z.im))


@register_complex("cos")
def _cos(z: Complex, **_: Any) -> Complex:
    return Complex(lax.cos(z.re) * lax.cosh(z.im), _unless_zero(-(lax.sin(z.re) * lax.sinh(z.im)), z.re))


@register_complex("tanh")
def _tanh(z: Complex, **_: Any) -> Complex:
    """(sinh x cosh x + i sin y cos y) / (cos(y)^2 + sinh(x)^2): nothing cancels below."""
    # From here on the real part is one, and the imaginary part nothing.
    limit = 44.0 if z.re.dtype == np.float32 else 354.0
    x = lax.clamp(jnp.asarray(-limit, z.re.dtype), z.re, jnp.asarray(limit, z.re.dtype))
    s, c, sin, cos = lax.sinh(x), lax.cosh(x), lax.sin(z.im), lax.cos(z.im)
    below, above = cos * cos + s * s, sin * cos
    far, infinite = lax.abs(z.re) >= limit, lax.abs(z.re) == jnp.inf
    nothing = jnp.where(infinite, 0, 0 * above)
    re = jnp.where(far, lax.sign(z.re) + nothing, s * c / below)
    return Complex(re, jnp.where(far, nothing, _unless_zero(above / below, z.im)))


@register_complex("tan")
def _tan(z: Complex, **_: Any) -> Complex:
    """-i tanh(iz)."""
    out = _tanh(Complex(-z.im, z.re))
    return Complex(out.im, -out.re)


# -- their inverses --------------------------------------------------------------------------------------------------


def _arc(x: Any, y: Any) -> tuple[Any, Any]:
    """For x, y >= 0: the positive real number t for which asin(x + iy) has the real part atan2(x, t) and acos the
    real part atan2(t, x); and the imaginary part of asin.

    Hull, Fairgrieve and Tang, "Implementing the complex arcsine and arccosine functions using exception handling"
    (1997): with r, s the distances from -1 and 1 and a = (r + s) / 2, t^2 = a^2 - x^2 and the imaginary part is
    log(a + sqrt(a^2 - 1)). Each of the differences is put together from terms of one sign.
    """
    dtype = x.dtype
    limit = 2.0**60 if dtype == np.float32 else 2.0**500
    far = lax.max(x, y) >= limit
    nx, ny = jnp.where(far, 0, x), jnp.where(far, 0, y)
    r = absolute(Complex(nx + 1, ny))
    s = absolute(Complex(nx - 1, ny))
    a = 0.5 * (r + s)
    inside = nx < 1
    below_r = r + (nx + 1)
    # s - (x - 1) and s + (x - 1), of which one has no cancellation, and their product is y^2.
    outer = s + lax.abs(nx - 1)
    ratio = jnp.where(outer == 0, 0, ny / outer)
    # (a - x) and (a - 1), each over y where that keeps them from vanishing.
    t_inside = lax.sqrt(0.5 * (a + nx) * (ny * (ny / below_r) + outer))
    t_outside = ny * lax.sqrt(0.5 * (a + nx) * (1 / below_r + jnp.where(outer == 0, 1, 1 / outer)))
    t = jnp.where(inside, t_inside, t_outside)
    less = jnp.where(inside, 0.5 * ny * (ny / below_r + ratio), 0.5 * (ny * (ny / below_r) + outer))
    root = jnp.where(inside, ny * lax.sqrt(0.5 * (a + 1) * (1 / below_r + 1 / outer)), lax.sqrt(less * (a + 1)))
    log_far = _log_size(x, y, jnp.ones_like(x)) + _LN2
    return jnp.where(far, y, t), jnp.where(far, log_far, lax.log1p(less + root))


@register_complex("asin")
def _asin(z: Complex) -> Complex:
    t, im = _arc(lax.abs(z.re), lax.abs(z.im))
    return Complex(lax.atan2(z.re, t), _flipped(im, z.im))


@register_complex("acos")
def _acos(z: Complex) -> Complex:
    t, im = _arc(lax.abs(z.re), lax.abs(z.im))
    return Complex(lax.atan2(t, z.re), _flipped(-im, z.im))


@register_complex("asinh")
def _asinh(z: Complex) -> Complex:
    """-i asin(iz)."""
    t, re = _arc(lax.abs(z.im), lax.abs(z.re))
    return Complex(_flipped(re, z.re), lax.atan2(z.im, t))


@register_complex("acosh")
def _acosh(z: Complex) -> Complex:
    """i acos(z) or -i acos(z), of which the real part is not negative."""
    t, re = _arc(lax.abs(z.re), lax.abs(z.im))
    return Complex(re, _flipped(lax.atan2(t, z.re), z.im))


@register_complex("atanh")
def _atanh(z: Complex) -> Complex:
    """log1p(4x / ((1 - x)^2 + y^2)) / 4, and half the angle of (1 - x)(1 + x) - y^2 + 2iy."""
    x, y = lax.abs(z.re), lax.abs(z.im)
    limit = 2.0**60 if x.dtype == np.float32 else 2.0**500
    large = lax.max(x, y)
    far, pole = large > limit, (x == 1) & (y < 1 / limit)
    nx, ny = jnp.where(far, 0, x), jnp.where(far | pole, 1, y)
    inside = jnp.where(pole, 2 / y, 4 * nx / ((1 - nx) * (1 - nx) + ny * ny))
    re = lax.log1p(inside) * jnp.where(pole, x.dtype.type(0.5), x.dtype.type(0.25))
    ratio = lax.min(x, y) / large
    re = jnp.where(far, jnp.where(large == jnp.inf, 0, x / large / large / (1 + ratio * ratio)), re)
    ny = jnp.where(far, 1, y)
    angle = 0.5 * lax.atan2(2 * ny, (1 - nx) * (1 + nx) - ny * ny)
    im = jnp.where(far, _flipped(jnp.full_like(y, math.pi / 2), z.im), _with_sign(angle, z.im))
    return Complex(_with_sign(re, z.re), im)


@register_complex("atan")
def _atan(z: Complex) -> Complex:
    """-i atanh(iz)."""
    out = _atanh(Complex(-z.im, z.re))
    return Complex(out.im, -out.re)
