"""Singular values and vectors of small complex matrices, by Jacobi's rotations of their columns (Hestenes)."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from lanax._complex import scaling
from lanax._complex.eigen import SWEEPS, columns_turned, rotations, tournament
from lanax._complex.linalg import orthonormal
from lanax._complex.matrices import conjugate, each, of_stacks, scaled, square, where
from lanax._complex.registry import Complex, register_complex

#: Larger matrices are left to XLA.
_MOST = 12


@register_complex("svd")
@of_stacks(2)
def _svd(a: Complex, *, full_matrices: bool, compute_uv: bool, subset_by_index: Any = None, **_: Any) -> list[Any]:
    """Singular values, and with `compute_uv` U and V^H. A pair of vectors may have another phase than LAPACK's."""
    sides = a.re.shape
    if min(sides) == 0 or max(sides) > _MOST or subset_by_index not in (None, (0, min(sides))):
        raise NotImplementedError("matrices too large, or empty, or some singular values only")
    m, n = sides
    if m < n:
        values, u, v = _of_tall(_adjoint(a), full_matrices, compute_uv)
        u, v = v, u
    else:
        values, u, v = _of_tall(a, full_matrices, compute_uv)
    return [values, u, _adjoint(v)] if compute_uv else [values]


def _adjoint(x: Complex) -> Complex:
    return each(jnp.transpose, conjugate(x))


def _of_tall(a: Complex, full: bool, vectors: bool) -> tuple[Any, Complex, Complex]:
    """Singular values, U and V of a matrix with no more columns than rows."""
    m, n = a.re.shape
    largest = jnp.max(jnp.concatenate([lax.abs(part).ravel() for part in a]))
    finite = largest < jnp.inf
    e = scaling.exponent(largest)
    down = scaling.inverse(e, a.re.dtype)
    x, v = _orthogonal(each(lambda part: jnp.pad(jnp.where(finite, part * down, 0), ((0, 0), (0, n % 2))), a))
    values = lax.sqrt(jnp.sum(square(x), axis=0))
    if n % 2:  # the column that was added comes last
        values = jnp.where(v.re[n] != 0, -1, values)
    order = jnp.argsort(-values)[:n]

    def unless_bad(part: Any) -> Any:
        return jnp.where(finite, part, jnp.nan)

    values = unless_bad(values[order] * scaling.power(e, values.dtype))
    if not vectors:
        return values, x, v
    # R of X = QR is diagonal, and has the singular values up to signs.
    q, r = orthonormal(each(lambda part: part[:, order], x), m if full else n)
    signs = jnp.where(jnp.diagonal(r.re) < 0, -1, 1).astype(values.dtype)
    signs = jnp.pad(signs, (0, q.re.shape[1] - n), constant_values=1)
    return values, each(unless_bad, scaled(q, signs)), each(lambda part: unless_bad(part[:n, order]), v)


def _orthogonal(a: Complex) -> tuple[Complex, Complex]:
    """A V with orthogonal columns, and V, for an even number of columns: pairs are turned until none is left that is
    not orthogonal, in the rounds of a tournament."""
    n = a.re.shape[1]
    half, places = n // 2, tournament(n)
    eye = jnp.eye(n, dtype=a.re.dtype)
    tolerance = float(jnp.finfo(a.re.dtype).eps) ** 2

    def unfinished(state: Any) -> Any:
        round_, quiet, *_ = state
        return (round_ < SWEEPS * (n - 1)) & (quiet < n - 1)

    def turn(state: Any) -> Any:
        round_, quiet, a, v = state
        p, q = each(lambda part: part[:, :half], a), each(lambda part: part[:, half:], a)
        pp, qq = jnp.sum(square(p), axis=0), jnp.sum(square(q), axis=0)
        pq = Complex(jnp.sum(p.re * q.re + p.im * q.im, axis=0), jnp.sum(p.re * q.im - p.im * q.re, axis=0))
        turned = square(pq) > tolerance * pp * qq
        c, s = rotations(pp, qq, where(turned, pq, 0))
        a, v = (each(lambda part: part[:, places], columns_turned(x, c, s, half)) for x in (a, v))
        return round_ + 1, jnp.where(jnp.any(turned), 0, quiet + 1), a, v

    _, _, a, v = lax.while_loop(unfinished, turn, (0, 0, a, Complex(eye, jnp.zeros_like(eye))))
    return a, v
