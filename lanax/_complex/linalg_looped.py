"""The factorisations of `linalg` for larger matrices: in loops over whole matrices, with masks for what is left of
them. Knows no primitive."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from lanax._complex import scaling
from lanax._complex.arithmetic import divide, multiply, reciprocal
from lanax._complex.matrices import (
    column_of,
    conjugate,
    each,
    joined,
    less_outer,
    minus,
    reflected,
    reflector_at,
    repeat,
    row_of,
    scaled,
    size_of,
    square,
    stacked,
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


def _factored(a: Complex, factors: Complex, k: Any) -> tuple[Complex, Complex]:
    """`a` and the factors after step `k` of a QR factorisation."""
    rows, columns = (np.arange(n) for n in a.re.shape)
    column = column_of(a, k)
    v, beta, t = reflector_at(column, k)
    turned = where(columns > k, reflected(a, v, conjugate(t)), a)
    column = where(rows > k, v, where(rows == k, Complex(beta, 0), column))
    return _with_column(turned, column, k), each(lambda part, new: part.at[k].set(new), factors, t)


def _no_factors(a: Complex) -> Complex:
    nothing = jnp.zeros(min(a.re.shape), a.re.dtype)
    return Complex(nothing, nothing)


def geqrf(a: Complex) -> list[Complex]:
    """R, with the reflectors below it, and their factors."""
    return list(repeat(0, min(a.re.shape), lambda k, state: _factored(state[0], state[1], k), (a, _no_factors(a))))


def geqp3(a: Complex, first: Any) -> list[Any]:
    """As `geqrf` of the columns in another order, which comes second, counted from one: those that are not zero in
    `first`, then always the longest of what is left."""
    m, n = a.re.shape
    rows, columns = np.arange(m), np.arange(n)

    def exchanged(a: Complex, order: Any, k: Any, p: Any) -> tuple[Complex, Any]:
        here = columns == p
        column, old = each(lambda part: jnp.sum(jnp.where(here, part, 0), axis=1), a), column_of(a, k)
        a = where(here, Complex(old.re[:, None], old.im[:, None]), a)
        order = jnp.where(here, order[k], order).at[k].set(jnp.sum(jnp.where(here, order, 0), dtype=order.dtype))
        return _with_column(a, column, k), order

    def move(k: Any, state: Any) -> Any:
        a, order, fixed = state
        wanted = first[k] != 0
        return *exchanged(a, order, k, jnp.where(wanted, fixed, k)), fixed + wanted

    def step(k: Any, state: Any) -> Any:
        a, factors, order = state
        left = where((rows[:, None] >= k) & (columns >= k), a, 0)
        down = scaling.inverse(scaling.exponent(jnp.max(size_of(left))), a.re.dtype)
        lengths = jnp.where(columns < k, -1, jnp.sum(square(scaled(left, down)), axis=0))
        a, order = exchanged(a, order, k, jnp.where(k < fixed, k, lax.argmax(lengths, 0, jnp.int32)))
        return *_factored(a, factors, k), order

    order = jnp.arange(1, n + 1, dtype=first.dtype)
    a, order, fixed = repeat(0, n, move, (a, order, jnp.int32(0)))
    a, factors, order = repeat(0, min(m, n), step, (a, _no_factors(a), order))
    return [a, order, factors]


def householder_product(a: Complex, t: Complex) -> Complex:
    """The first columns of the product of the reflectors."""
    m, n = a.re.shape
    rows = np.arange(m)
    eye = jnp.eye(m, n, dtype=a.re.dtype)

    def step(k: Any, q: Complex) -> Complex:
        v = where(rows > k, column_of(a, k), Complex((rows == k).astype(eye.dtype), 0))
        return reflected(q, v, row_of(t, k))

    return repeat(t.re.shape[0] - 1, -1, step, Complex(eye, jnp.zeros_like(eye)))


def multiplied(a: Complex, t: Complex, c: Complex, transpose: bool) -> Complex:
    """Q C, or Q^H C, where Q is the product of the reflectors."""
    rows, count = np.arange(a.re.shape[0]), t.re.shape[0]

    def step(k: Any, c: Complex) -> Complex:
        v = where(rows > k, column_of(a, k), Complex((rows == k).astype(a.re.dtype), 0))
        factor = row_of(t, k)
        return reflected(c, v, conjugate(factor) if transpose else factor)

    return repeat(*((0, count) if transpose else (count - 1, -1)), step, c)


def tridiagonal_solve(low: Complex, diagonal: Complex, high: Complex, b: Complex) -> Complex:
    """X of A X = B, where elements i of the diagonals are in row i. As LAPACK's gtsv: of two rows the one with the
    larger element is the pivot. NaN where A is singular."""
    n = diagonal.re.shape[0]
    high = each(lambda part: part.at[n - 1].set(0), high)
    rows = joined([stacked([low, diagonal, high], 1), b], 1)

    def shifted(row: Complex) -> Complex:
        """A row whose first element is gone."""
        return each(lambda part: jnp.concatenate([part[1:3], jnp.zeros_like(part[:1]), part[3:]]), row)

    def eliminate(state: Any, own: Complex) -> tuple[Any, Complex]:
        top, singular = state
        swap = size_of(row_of(top, 0)) < size_of(row_of(own, 0))
        pivot, other = where(swap, own, top), where(swap, top, own)
        head = row_of(pivot, 0)
        zero = size_of(head) == 0
        factor = divide(row_of(other, 0), where(zero, 1, head))
        return (shifted(minus(other, multiply(factor, pivot))), singular | zero), pivot

    def substitute(state: Any, row: Complex) -> tuple[Any, Complex]:
        below, beyond = state
        d, u, v = (row_of(row, i) for i in range(3))
        x = minus(minus(each(lambda part: part[3:], row), multiply(u, below)), multiply(v, beyond))
        x = divide(x, d)
        return (x, below), x

    start = shifted(row_of(rows, 0)), jnp.asarray(False)
    (top, singular), pivots = lax.scan(eliminate, start, each(lambda part: part[1:], rows))
    pivots = joined([pivots, each(lambda part: part[None], top)], 0)
    nothing = each(lambda part: jnp.zeros_like(part[0]), b)
    _, x = lax.scan(substitute, (nothing, nothing), pivots, reverse=True)
    bad = singular | (size_of(row_of(top, 0)) == 0)
    return each(lambda part: jnp.where(bad, jnp.nan, part), x)
