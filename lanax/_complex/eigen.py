"""Eigenvalues and eigenvectors of small Hermitian matrices, by those of a real tridiagonal matrix."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from lanax._complex import scaling
from lanax._complex.matrices import each, of_stacks, scaled
from lanax._complex.registry import Complex, register_complex
from lanax._complex.schur import hessenberg

#: Larger matrices are left to XLA.
_MOST = 32


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
    finite = largest < jnp.inf
    down = scaling.inverse(e, a.re.dtype)
    values, v = _of_finite(scaled(a, down))
    values = values * scaling.power(e, values.dtype)
    v = _turned(v, 0 if lower else n - 1)
    return [each(lambda part: jnp.where(finite, part, jnp.nan), v), jnp.where(finite, values, jnp.nan)]


def _of_finite(a: Complex) -> tuple[Any, Complex]:
    """Of a matrix of numbers about one, which reflections make tridiagonal and real."""
    h, q, *_ = hessenberg(a)
    beside = jnp.diagonal(h.re, -1)
    t = jnp.diag(jnp.diagonal(h.re)) + jnp.diag(beside, -1) + jnp.diag(beside, 1)
    v, values = lax.linalg.eigh(t, symmetrize_input=False)
    return values, each(lambda part: part @ v, q)


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
