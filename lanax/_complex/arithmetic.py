"""Sums, products, quotients and absolute values of complex numbers."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from lanax._complex import scaling
from lanax._complex.registry import Complex, register_complex


@register_complex("mul")
def multiply(x: Complex, y: Complex, **_: Any) -> Complex:
    """The product; (inf + 0i) y has NaN in it, as in XLA."""
    return Complex(x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re)


@register_complex("square")
def square(x: Complex, **_: Any) -> Complex:
    """x x, with no cancellation in the real part."""
    twice = x.re * x.im
    return Complex((x.re - x.im) * (x.re + x.im), twice + twice)


@register_complex("abs")
def absolute(x: Complex, **_: Any) -> Any:
    """|x| without overflow on the way."""
    a, b = lax.abs(x.re), lax.abs(x.im)
    e = scaling.exponent(jnp.where(a > b, a, b))  # which of them, with NaN, does not matter
    down = scaling.inverse(e, a.dtype)
    a, b = a * down, b * down
    return lax.sqrt(a * a + b * b) * scaling.power(e, a.dtype)


@register_complex("sign")
def _sign(x: Complex, **_: Any) -> Complex:
    size = absolute(x)
    zero = size == 0
    return Complex(jnp.where(zero, x.re, x.re / size), jnp.where(zero, x.im, x.im / size))


@register_complex("div")
def divide(x: Complex, y: Complex, **_: Any) -> Complex:
    """x / y with y scaled to near one, and a huge x scaled away from overflow.

    Infinities and zeros give what the C standard wants: infinite parts count as one of their sign, others as zero, and
    the quotient is scaled by zero or infinity.
    """
    dtype = x.re.dtype
    huge, less = (dtype.type(2.0**k) for k in ((64, -32) if dtype == np.float32 else (512, -256)))
    one, infinity = dtype.type(1), dtype.type(np.inf)
    x_size, y_size = (lax.max(lax.abs(v.re), lax.abs(v.im)) for v in (x, y))
    e = scaling.exponent(y_size)
    down = scaling.inverse(e, dtype)
    x = _scaled(x, x_size, jnp.where(x_size > huge, less, one))
    y = _scaled(y, y_size, down)
    infinite = x_size == infinity
    up = jnp.where(infinite, infinity, jnp.where(x_size > huge, one / less, one))
    down = jnp.where(y_size == infinity, 0, jnp.where(y_size == 0, infinity, jnp.where(infinite, one, down)))
    y = Complex(jnp.where(y_size == 0, jnp.copysign(jnp.ones_like(y.re), y.re), y.re), y.im)
    size = y.re * y.re + y.im * y.im
    re = (x.re * y.re + x.im * y.im) / size
    im = (x.im * y.re - x.re * y.im) / size
    return Complex(re * down * up, im * down * up)


def reciprocal(x: Complex) -> Complex:
    """1 / x of a number that is neither zero nor infinite; NaN of these."""
    a, b = lax.abs(x.re), lax.abs(x.im)
    down = scaling.inverse(scaling.exponent(jnp.where(a > b, a, b)), a.dtype)
    c, d = x.re * down, x.im * down
    factor = down / (c * c + d * d)
    return Complex(c * factor, -d * factor)


def _scaled(x: Complex, size: Any, scale: Any) -> Complex:
    """x times a power of two; where it is infinite, the signs of its infinite parts."""
    return Complex(*(jnp.where(size == jnp.inf, jnp.where(lax.abs(part) == jnp.inf, lax.sign(part), 0 * scale),
                               part * scale) for part in x))
