"""Singular values and vectors of small complex matrices, by those of a real bidiagonal matrix."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from lanax._complex import scaling
from lanax._complex.matrices import (
    column_of,
    conjugate,
    each,
    joined,
    of_stacks,
    reflected,
    reflector_at,
    repeat,
    row_of,
    to_the_right,
)
from lanax._complex.registry import Complex, register_complex

#: Larger matrices are left to XLA.
_MOST = 16


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
    h, q, p = _bidiagonal(each(lambda part: jnp.where(finite, part * down, 0), a))
    beside = jnp.diagonal(h.re, 1)[: n - 1]
    b = jnp.diag(jnp.diagonal(h.re)) + jnp.diag(beside, 1)

    def unless_bad(part: Any) -> Any:
        return jnp.where(finite, part, jnp.nan)

    up = scaling.power(e, a.re.dtype)
    if not vectors:
        return unless_bad(lax.linalg.svd(b, compute_uv=False) * up), q, p
    u, values, vt = lax.linalg.svd(b)
    left = each(lambda part: part[:, :n] @ u, q)
    if full and m > n:
        left = joined([left, each(lambda part: part[:, n:], q)], 1)
    return unless_bad(values * up), each(unless_bad, left), each(lambda part: unless_bad(part @ vt.T), p)


def _bidiagonal(a: Complex) -> tuple[Complex, Complex, Complex]:
    """H of A = Q H P^H, real on the diagonal and right of it, where all else counts as zero; Q and P."""
    m, n = a.re.shape
    q, p = (Complex(eye, jnp.zeros_like(eye)) for eye in (jnp.eye(k, dtype=a.re.dtype) for k in (m, n)))

    def clear_column(k: Any, h: Complex, q: Complex) -> tuple[Complex, Complex]:
        v, _, t = reflector_at(column_of(h, k), k)
        return reflected(h, v, conjugate(t)), to_the_right(q, v, t)

    def step(k: Any, state: tuple[Complex, Complex, Complex]) -> tuple[Complex, Complex, Complex]:
        h, q, p = state
        h, q = clear_column(k, h, q)
        v, _, t = reflector_at(conjugate(row_of(h, k)), k + 1)
        return to_the_right(h, v, t), q, to_the_right(p, v, t)

    h, q, p = repeat(0, n - 1, step, (a, q, p))
    return *clear_column(n - 1, h, q), p
