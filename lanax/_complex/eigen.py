"""Eigenvalues and eigenvectors of small Hermitian matrices, by Jacobi's rotations."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from lanax._complex import scaling
from lanax._complex.matrices import of_stacks
from lanax._complex.registry import Complex, register_complex

#: Larger matrices are left to XLA.
_MOST = 6
#: Times that each pair of rows is turned, at most; convergence is quadratic, and takes 4 to 7.
SWEEPS = 15


@register_complex("eigh")
@of_stacks(2)
def _eigh(a: Complex, *, lower: bool, subset_by_index: Any = None, **_: Any) -> list[Any]:
    """Eigenvectors as columns, and ascending eigenvalues. As LAPACK does it, an eigenvector has a real first element
    (last, where the upper triangle is read); here that is not negative."""
    n = a.re.shape[-1]
    if not 0 < n <= _MOST or subset_by_index not in (None, (0, n)):
        raise NotImplementedError("matrices too large, or some eigenvalues only")
    a = _hermitian(a, lower)
    largest = jnp.max(jnp.concatenate([lax.abs(a.re).ravel(), lax.abs(a.im).ravel()]))
    e = scaling.exponent(largest)
    down = scaling.inverse(e, a.re.dtype)
    a, v = _diagonal(Complex(*(jnp.pad(part * down, (0, n % 2)) for part in a)))
    values = jnp.diagonal(a.re)
    if n % 2:  # the column that was added comes last
        values = jnp.where(v.re[n] != 0, jnp.inf, values)
    order = jnp.argsort(values)[:n]
    values = values[order] * scaling.power(e, values.dtype)
    v = _turned(Complex(*(part[:n, order] for part in v)), 0 if lower else n - 1)
    finite = largest < jnp.inf
    return [Complex(*(jnp.where(finite, part, jnp.nan) for part in v)), jnp.where(finite, values, jnp.nan)]


def _hermitian(a: Complex, lower: bool) -> Complex:
    """The matrix of which one triangle is given."""
    n = a.re.shape[-1]
    given = jnp.tril(jnp.ones((n, n), bool), -1) if lower else jnp.triu(jnp.ones((n, n), bool), 1)
    re, im = (jnp.where(given, part, 0) for part in a)
    return Complex(re + re.T + jnp.diag(jnp.diagonal(a.re)), im - im.T)


def _turned(v: Complex, row: int) -> Complex:
    """Columns times a phase that makes one row real and not negative."""
    x, y = v.re[row], v.im[row]
    size = lax.sqrt(x * x + y * y)
    there = size > 0
    c, s = jnp.where(there, x / size, 1), jnp.where(there, y / size, 0)
    at_row = (jnp.arange(v.re.shape[0]) == row)[:, None]
    return Complex(v.re * c + v.im * s, jnp.where(at_row, 0, v.im * c - v.re * s))


def tournament(n: int) -> np.ndarray:
    """Who comes to which place after a round in which each of the first half has met one of the second: in n - 1 rounds
    every one has met every other."""
    half = n // 2
    return np.array([0, half, *range(1, half - 1), *range(half + 1, n), half - 1] if half > 1 else [0, 1])


def _diagonal(a: Complex) -> tuple[Complex, Complex]:
    """A nearly diagonal V^H A V, and V, for an even number of rows: each of the first half is turned with one of the
    second, and then they change places."""
    n = a.re.shape[-1]
    half = n // 2
    places = tournament(n)
    eye = jnp.eye(n, dtype=a.re.dtype)
    tolerance = float(jnp.finfo(a.re.dtype).eps / 4) ** 2
    diagonal = jnp.eye(n, dtype=bool)

    def unfinished(state: Any) -> Any:
        round_, a, _ = state
        sizes = a.re * a.re + a.im * a.im
        aside = jnp.sum(jnp.where(diagonal, 0, sizes))
        return (round_ < SWEEPS * (n - 1)) & (aside > tolerance * jnp.sum(sizes))

    def turn(state: Any) -> Any:
        round_, a, v = state
        p, q = np.arange(half), np.arange(half) + half
        c, s = rotations(a.re[p, p], a.re[q, q], Complex(a.re[p, q], a.im[p, q]))
        a = _transposed(columns_turned(_transposed(columns_turned(a, c, s, half)), c, Complex(s.re, -s.im), half))
        v = columns_turned(v, c, s, half)
        return round_ + 1, Complex(*(part[places][:, places] for part in a)), Complex(*(part[:, places] for part in v))

    _, a, v = lax.while_loop(unfinished, turn, (0, a, Complex(eye, jnp.zeros_like(eye))))
    return a, v


def rotations(pp: Any, qq: Any, pq: Complex) -> tuple[Any, Complex]:
    """For pairs of rows p, q the cosine, and the sine times the phase of a[p, q], that make a[p, q] zero."""
    x, y = pq
    size = lax.sqrt(x * x + y * y)
    there = size > 0
    size = jnp.where(there, size, 1)
    slope = (qq - pp) / (2 * size)
    one = slope.dtype.type(1)
    t = jnp.where(slope < 0, -one, one) / (lax.abs(slope) + lax.sqrt(slope * slope + 1))
    c = jnp.where(there, lax.rsqrt(t * t + 1), 1)
    s = jnp.where(there, t * c / size, 0)
    return c, Complex(s * x, s * y)


def columns_turned(x: Complex, c: Any, s: Complex, half: int) -> Complex:
    """Column p becomes c p - conj(s) q, and column q becomes s p + c q."""
    p, q = Complex(*(part[:, :half] for part in x)), Complex(*(part[:, half:] for part in x))
    return Complex(
        jnp.concatenate([c * p.re - s.re * q.re - s.im * q.im, c * q.re + s.re * p.re - s.im * p.im], 1),
        jnp.concatenate([c * p.im - s.re * q.im + s.im * q.re, c * q.im + s.re * p.im + s.im * p.re], 1))


def _transposed(x: Complex) -> Complex:
    return Complex(x.re.T, x.im.T)
