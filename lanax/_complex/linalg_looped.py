"""The factorisations of `linalg` for larger matrices: in loops over whole matrices, with masks for what is left of
them. Knows no primitive."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from lanax._complex.arithmetic import multiply, reciprocal
from lanax._complex.matrices import (
    column_of,
    conjugate,
    each,
    less_outer,
    reflected,
    reflector_at,
    repeat,
    row_of,
    size_of,
    where,
)
from lanax._complex.registry import Complex


def _with_row(x: Complex, row: Complex, i: Any) -> Complex:
    return each(lambda part, new: lax.dynamic_update_index_in_dim(part, new, i, 0), x, row)


def _with_column(x: Complex, column: Complex, i: Any) -> Complex:
    return each(lambda part, new: lax.dynamic_update_index_in_dim(part, new, i, 1), x, column)


def lu(a: Complex) -> list[Any]:
    """L and U in one matrix, pivots and permutation."""
    m, n = a.re.shape
    rows, columns = np.arange(m), np.arange(n)

    def step(k: Any, state: Any) -> Any:
        a, pivots, order = state
        p = lax.argmax(jnp.where(rows < k, -1, size_of(column_of(a, k))), 0, jnp.int32)
        here = rows == p
        row, first = each(lambda part: jnp.sum(jnp.where(here[:, None], part, 0), axis=0), a), row_of(a, k)
        a = _with_row(where(here[:, None], Complex(first.re[None], first.im[None]), a), row, k)
        order = jnp.where(here, order[k], order).at[k].set(jnp.sum(jnp.where(here, order, 0), dtype=order.dtype))
        pivot = row_of(row, k)
        zero = (pivot.re == 0) & (pivot.im == 0)
        scale = reciprocal(Complex(jnp.where(zero, 1, pivot.re), pivot.im))
        column = column_of(a, k)
        below = where(rows > k, multiply(column, scale), 0)
        a = less_outer(a, below, where(columns > k, row, 0))
        return _with_column(a, where(rows > k, below, column), k), pivots.at[k].set(p), order

    count = min(m, n)
    order = jnp.arange(m, dtype=jnp.int32)
    return list(repeat(0, count, step, (a, jnp.zeros(count, jnp.int32), order)))


def triangular_solve(a: Complex, b: Complex, lower: bool, unit_diagonal: bool) -> Complex:
    """X of A X = B."""
    n = a.re.shape[0]
    rows = np.arange(n)

    def step(i: Any, state: tuple[Complex, Complex]) -> tuple[Complex, Complex]:
        rest, found = state
        x, column = row_of(rest, i), column_of(a, i)
        if not unit_diagonal:
            x = multiply(x, reciprocal(row_of(column, i)))
        column = where(rows > i if lower else rows < i, column, 0)
        return less_outer(rest, column, x), _with_row(found, x, i)

    order = (0, n) if lower else (n - 1, -1)
    return repeat(*order, step, (b, each(jnp.zeros_like, b)))[1]


def cholesky(a: Complex) -> Complex:
    """The lower factor, from the lower triangle."""
    n = a.re.shape[0]
    rows = np.arange(n)

    def step(k: Any, state: Any) -> Any:
        a, out, fine = state
        column = column_of(a, k)
        pivot = column.re[k]
        root = lax.sqrt(pivot)
        below = where(rows > k, Complex(column.re / root, column.im / root), 0)
        out = _with_column(out, where(rows == k, Complex(root, 0), below), k)
        return less_outer(a, below, conjugate(below)), out, fine & (pivot > 0) & (pivot < jnp.inf)

    _, out, fine = repeat(0, n, step, (a, each(jnp.zeros_like, a), jnp.asarray(True)))
    return each(lambda part: jnp.where(fine, part, jnp.nan), out)


def geqrf(a: Complex) -> list[Complex]:
    """R, with the reflectors below it, and their factors."""
    m, n = a.re.shape
    rows, columns = np.arange(m), np.arange(n)

    def step(k: Any, state: Any) -> Any:
        a, factors = state
        column = column_of(a, k)
        v, beta, t = reflector_at(column, k)
        turned = where(columns > k, reflected(a, v, conjugate(t)), a)
        column = where(rows > k, v, where(rows == k, Complex(beta, 0), column))
        return _with_column(turned, column, k), each(lambda part, new: part.at[k].set(new), factors, t)

    count = min(m, n)
    nothing = jnp.zeros(count, a.re.dtype)
    return list(repeat(0, count, step, (a, Complex(nothing, nothing))))


def householder_product(a: Complex, t: Complex) -> Complex:
    """The first columns of the product of the reflectors."""
    m, n = a.re.shape
    rows = np.arange(m)
    eye = jnp.eye(m, n, dtype=a.re.dtype)

    def step(k: Any, q: Complex) -> Complex:
        v = where(rows > k, column_of(a, k), Complex((rows == k).astype(eye.dtype), 0))
        return reflected(q, v, row_of(t, k))

    return repeat(t.re.shape[0] - 1, -1, step, Complex(eye, jnp.zeros_like(eye)))
