"""Factorisations and solutions of small complex matrices, unrolled: the algorithms that LAPACK uses, in real parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from lanax._complex.arithmetic import multiply, reciprocal
from lanax._complex.registry import Complex, register_complex

#: Larger matrices are left to XLA.
_MOST = 6


def _check_size(*matrices: Any) -> None:
    if any(part.ndim != 2 or max(part.shape) > _MOST or min(part.shape) == 0 for x in matrices for part in x):
        raise NotImplementedError("matrices too large to be unrolled, or empty")


def _each(fun: Callable[..., Any], *values: Complex) -> Complex:
    """A function of real arrays on both parts."""
    return Complex(*(fun(*parts) for parts in zip(*values, strict=True)))


def _stacked(rows: Sequence[Complex], axis: int = 0) -> Complex:
    return _each(lambda *parts: jnp.stack(parts, axis), *rows)


def _joined(blocks: Sequence[Complex], axis: int) -> Complex:
    return _each(lambda *parts: jnp.concatenate(parts, axis), *blocks)


def _conjugate(x: Complex) -> Complex:
    return Complex(x.re, -x.im)


def _less_outer(a: Complex, x: Complex, y: Complex) -> Complex:
    """a - x y^T."""
    x, y = _each(lambda part: part[:, None], x), _each(lambda part: part[None, :], y)
    return Complex((a.re - x.re * y.re) + x.im * y.im, (a.im - x.re * y.im) - x.im * y.re)


def _inverse_pivot(x: Complex) -> Complex:
    """1 / x, or 1 for a pivot of zero, below which there are zeros."""
    zero = (x.re == 0) & (x.im == 0)
    return reciprocal(Complex(jnp.where(zero, 1, x.re), x.im))


@register_complex("lu")
def _lu(a: Complex, **_: Any) -> list[Any]:
    """By rows, with partial pivoting: the largest |Re| + |Im| of a column is its pivot."""
    _check_size(a)
    m, n = a.re.shape
    rest, order = a, jnp.arange(m, dtype=jnp.int32)
    done, places, pivots = [], [], []
    for k in range(min(m, n)):
        column = _each(lambda part, k=k: part[:, k], rest)
        p = lax.argmax(lax.abs(column.re) + lax.abs(column.im), 0, jnp.int32)
        row = _each(lambda part, p=p: lax.dynamic_index_in_dim(part, p, keepdims=False), rest)
        here = jnp.arange(m - k, dtype=jnp.int32) == p
        pivots.append(p + k)
        places.append(lax.dynamic_index_in_dim(order, p, keepdims=False))
        order = jnp.where(here, order[0], order)[1:]
        rest = _each(lambda part, here=here: jnp.where(here[:, None], part[:1], part)[1:], rest)
        scale = _inverse_pivot(_each(lambda part, k=k: part[k], row))
        below = multiply(_each(lambda part, k=k: part[:, k], rest), scale)
        right = _less_outer(_each(lambda part, k=k: part[:, k + 1 :], rest), below,
                            _each(lambda part, k=k: part[k + 1 :], row))
        left = _each(lambda part, k=k: part[:, :k], rest)
        rest = _joined([left, _each(lambda part: part[:, None], below), right], 1)
        done.append(row)
    permutation = jnp.concatenate([jnp.stack(places), order])
    return [_joined([_stacked(done), rest], 0), jnp.stack(pivots), permutation]


@register_complex("triangular_solve")
def _triangular_solve(a: Complex, b: Complex, *, left_side: bool, lower: bool, transpose_a: bool, conjugate_a: bool,
                      unit_diagonal: bool) -> Complex:
    """By columns of the triangle: each unknown is taken out of the equations that are left."""
    _check_size(a, b)
    a = _conjugate(a) if conjugate_a else a
    # X A = B is A^T X^T = B^T.
    if transpose_a != (not left_side):
        a, lower = _each(jnp.transpose, a), not lower
    b = b if left_side else _each(jnp.transpose, b)
    n = a.re.shape[0]
    rest, found = b, []
    for i in range(n) if lower else range(n - 1, -1, -1):
        first = slice(0, 1) if lower else slice(-1, None)
        x = _each(lambda part, first=first: part[first][0], rest)
        if not unit_diagonal:
            x = multiply(x, reciprocal(_each(lambda part, i=i: part[i, i], a)))
        others = slice(1, None) if lower else slice(0, -1)
        column = _each(lambda part, i=i: part[i + 1 :, i] if lower else part[:i, i], a)
        rest = _less_outer(_each(lambda part, others=others: part[others], rest), column, x)
        found.append(x)
    out = _stacked(found if lower else found[::-1])
    return out if left_side else _each(jnp.transpose, out)


@register_complex("cholesky")
def _cholesky(a: Complex, **_: Any) -> Complex:
    """The lower factor, from the lower triangle; NaN for a matrix that is not positive definite."""
    _check_size(a)
    n = a.re.shape[0]
    rest, columns, fine = a, [], jnp.asarray(True)
    for k in range(n):
        pivot = rest.re[0, 0]
        fine = fine & (pivot > 0) & (pivot < jnp.inf)
        root = lax.sqrt(pivot)
        below = _each(lambda part, root=root: part[1:, 0] / root, rest)
        zeros = jnp.zeros(k + 1, pivot.dtype)
        columns.append(Complex(jnp.concatenate([zeros[:k], root[None], below.re]), jnp.concatenate([zeros, below.im])))
        rest = _less_outer(_each(lambda part: part[1:, 1:], rest), below, _conjugate(below))
    return _each(lambda part: jnp.where(fine, part, jnp.nan), _stacked(columns, 1))


# -- QR --------------------------------------------------------------------------------------------------------------


def _reflector(x: Complex) -> tuple[Complex, Any, Complex]:
    """A vector v with first element one, a real b, and t, for which (1 - t v v^H)^H x = (b, 0, ...): as LAPACK's
    larfg gives them."""
    alpha, tail = _each(lambda part: part[0], x), _each(lambda part: part[1:], x)
    largest = jnp.max(jnp.concatenate([lax.abs(x.re), lax.abs(x.im)]))
    scale = jnp.where(largest > 0, largest, 1)
    norm = largest * lax.sqrt(jnp.sum((x.re / scale) ** 2 + (x.im / scale) ** 2))
    still = (jnp.sum(lax.abs(tail.re) + lax.abs(tail.im)) == 0) & (alpha.im == 0)
    beta = jnp.where(still, alpha.re, jnp.where(alpha.re < 0, norm, -norm))
    safe = jnp.where(still, 1, beta)
    t = Complex(jnp.where(still, 0, (beta - alpha.re) / safe), jnp.where(still, 0, -alpha.im / safe))
    under = Complex(jnp.where(still, 1, alpha.re - beta), alpha.im)
    v = multiply(tail, reciprocal(under))
    one = jnp.ones((1,), beta.dtype)
    return _joined([Complex(one, 0 * one), v], 0), beta, t


def _reflected(a: Complex, v: Complex, t: Complex) -> Complex:
    """(1 - t v v^H) a."""
    w = Complex(v.re @ a.re + v.im @ a.im, v.re @ a.im - v.im @ a.re)
    return _less_outer(a, v, multiply(t, w))


@register_complex("geqrf")
def _geqrf(a: Complex, **_: Any) -> list[Complex]:
    """R, with the reflectors below it, and their factors."""
    _check_size(a)
    m, n = a.re.shape
    rest, rows, columns, factors = a, [], [], []
    for k in range(min(m, n)):
        v, beta, t = _reflector(_each(lambda part: part[:, 0], rest))
        rest = _reflected(_each(lambda part: part[:, 1:], rest), v, _conjugate(t))
        above = [_each(lambda part, k=k: part[k : k + 1], column) for column in columns]
        diagonal = Complex(beta[None], jnp.zeros_like(beta)[None])
        rows.append(_joined([*above, diagonal, _each(lambda part: part[0], rest)], 0))
        columns = [*columns, _joined([_each(lambda part, k=k: jnp.zeros(k + 1, part.dtype), v),
                                      _each(lambda part: part[1:], v)], 0)]
        rest = _each(lambda part: part[1:], rest)
        factors.append(t)
    packed = _stacked(rows)
    if m > n:
        packed = _joined([packed, _each(lambda part: part[n:], _stacked(columns, 1))], 0)
    return [packed, _stacked(factors)]


@register_complex("householder_product")
def _householder_product(a: Complex, t: Complex) -> Complex:
    """The first columns of the product of the reflectors."""
    _check_size(a)
    m, n = a.re.shape
    eye = jnp.eye(m, n, dtype=a.re.dtype)
    q = Complex(eye, jnp.zeros_like(eye))
    for k in range(t.re.shape[0] - 1, -1, -1):
        tail = _each(lambda part, k=k: part[k + 1 :, k], a)
        one = jnp.ones((1,), tail.re.dtype)
        v = _joined([Complex(one, 0 * one), tail], 0)
        block = _reflected(_each(lambda part, k=k: part[k:, k:], q), v, _each(lambda part, k=k: part[k], t))
        lower = _joined([_each(lambda part, k=k: part[k:, :k], q), block], 1)
        q = _joined([_each(lambda part, k=k: part[:k], q), lower], 0)
    return q


@register_complex("qr")
def _qr(a: Complex, *, pivoting: bool = False, full_matrices: bool, **_: Any) -> list[Complex]:
    _check_size(a)
    if pivoting:
        raise NotImplementedError("QR with pivoting")
    m, n = a.re.shape
    packed, t = _geqrf(a)
    width = m if full_matrices else min(m, n)
    missing = width - n
    wide = packed
    if missing > 0:
        wide = _joined([packed, _each(lambda part: jnp.zeros((m, missing), part.dtype), packed)], 1)
    q = _householder_product(_each(lambda part: part[:, :width], wide), t)
    return [q, _each(lambda part: jnp.triu(part[:width]), packed)]
