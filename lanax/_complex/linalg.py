"""Factorisations and solutions of small complex matrices: the algorithms that LAPACK uses, in real parts, unrolled or
in loops."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from lanax._complex import linalg_looped as looped
from lanax._complex.arithmetic import multiply, reciprocal
from lanax._complex.matrices import conjugate, each, joined, less_outer, of_stacks, reflected, reflector, stacked
from lanax._complex.registry import Complex, register_complex

#: Rows and columns up to which a factorisation is unrolled: in loops it takes two to three times as long.
_UNROLLED = 6
#: Those of the largest matrix that is not left to XLA: Gauss and Cholesky, and QR.
_MOST, _MOST_OF_QR = 10, 16


def _is_unrolled(*matrices: Complex, most: int = _MOST) -> bool:
    """Whether matrices are small enough to be; raises where they are not for lanes."""
    sides = [side for x in matrices for side in x.re.shape]
    if max(sides) > most or min(sides) == 0:
        raise NotImplementedError("matrices too large, or empty")
    return max(sides) <= _UNROLLED


def _inverse_pivot(x: Complex) -> Complex:
    """1 / x, or 1 for a pivot of zero, below which there are zeros."""
    zero = (x.re == 0) & (x.im == 0)
    return reciprocal(Complex(jnp.where(zero, 1, x.re), x.im))


@register_complex("lu")
@of_stacks(2)
def _lu(a: Complex, **_: Any) -> list[Any]:
    """By rows, with partial pivoting: the largest |Re| + |Im| of a column is its pivot."""
    if not _is_unrolled(a):
        return looped.lu(a)
    m, n = a.re.shape
    rest, order = a, jnp.arange(m, dtype=jnp.int32)
    done, places, pivots = [], [], []
    for k in range(min(m, n)):
        column = each(lambda part, k=k: part[:, k], rest)
        p = lax.argmax(lax.abs(column.re) + lax.abs(column.im), 0, jnp.int32)
        row = each(lambda part, p=p: lax.dynamic_index_in_dim(part, p, keepdims=False), rest)
        here = jnp.arange(m - k, dtype=jnp.int32) == p
        pivots.append(p + k)
        places.append(lax.dynamic_index_in_dim(order, p, keepdims=False))
        order = jnp.where(here, order[0], order)[1:]
        rest = each(lambda part, here=here: jnp.where(here[:, None], part[:1], part)[1:], rest)
        scale = _inverse_pivot(each(lambda part, k=k: part[k], row))
        below = multiply(each(lambda part, k=k: part[:, k], rest), scale)
        right = less_outer(each(lambda part, k=k: part[:, k + 1 :], rest), below,
                            each(lambda part, k=k: part[k + 1 :], row))
        left = each(lambda part, k=k: part[:, :k], rest)
        rest = joined([left, each(lambda part: part[:, None], below), right], 1)
        done.append(row)
    permutation = jnp.concatenate([jnp.stack(places), order])
    return [joined([stacked(done), rest], 0), jnp.stack(pivots), permutation]


@register_complex("triangular_solve")
@of_stacks(2, 2)
def _triangular_solve(a: Complex, b: Complex, *, left_side: bool, lower: bool, transpose_a: bool, conjugate_a: bool,
                      unit_diagonal: bool) -> Complex:
    """By columns of the triangle: each unknown is taken out of the equations that are left."""
    unrolled = _is_unrolled(a, b)
    a = conjugate(a) if conjugate_a else a
    # X A = B is A^T X^T = B^T.
    if transpose_a != (not left_side):
        a, lower = each(jnp.transpose, a), not lower
    b = b if left_side else each(jnp.transpose, b)
    if not unrolled:
        out = looped.triangular_solve(a, b, lower, unit_diagonal)
        return out if left_side else each(jnp.transpose, out)
    n = a.re.shape[0]
    rest, found = b, []
    for i in range(n) if lower else range(n - 1, -1, -1):
        first = slice(0, 1) if lower else slice(-1, None)
        x = each(lambda part, first=first: part[first][0], rest)
        if not unit_diagonal:
            x = multiply(x, reciprocal(each(lambda part, i=i: part[i, i], a)))
        others = slice(1, None) if lower else slice(0, -1)
        column = each(lambda part, i=i: part[i + 1 :, i] if lower else part[:i, i], a)
        rest = less_outer(each(lambda part, others=others: part[others], rest), column, x)
        found.append(x)
    out = stacked(found if lower else found[::-1])
    return out if left_side else each(jnp.transpose, out)


@register_complex("cholesky")
@of_stacks(2)
def _cholesky(a: Complex, **_: Any) -> Complex:
    """The lower factor, from the lower triangle; NaN for a matrix that is not positive definite."""
    if not _is_unrolled(a):
        return looped.cholesky(a)
    n = a.re.shape[0]
    rest, columns, fine = a, [], jnp.asarray(True)
    for k in range(n):
        pivot = rest.re[0, 0]
        fine = fine & (pivot > 0) & (pivot < jnp.inf)
        root = lax.sqrt(pivot)
        below = each(lambda part, root=root: part[1:, 0] / root, rest)
        zeros = jnp.zeros(k + 1, pivot.dtype)
        columns.append(Complex(jnp.concatenate([zeros[:k], root[None], below.re]), jnp.concatenate([zeros, below.im])))
        rest = less_outer(each(lambda part: part[1:, 1:], rest), below, conjugate(below))
    return each(lambda part: jnp.where(fine, part, jnp.nan), stacked(columns, 1))


# -- QR --------------------------------------------------------------------------------------------------------------


@register_complex("geqrf")
@of_stacks(2)
def _geqrf(a: Complex, **_: Any) -> list[Complex]:
    """R, with the reflectors below it, and their factors."""
    if not _is_unrolled(a, most=_MOST_OF_QR):
        return looped.geqrf(a)
    m, n = a.re.shape
    rest, rows, columns, factors = a, [], [], []
    for k in range(min(m, n)):
        v, beta, t = reflector(each(lambda part: part[:, 0], rest))
        rest = reflected(each(lambda part: part[:, 1:], rest), v, conjugate(t))
        above = [each(lambda part, k=k: part[k : k + 1], column) for column in columns]
        diagonal = Complex(beta[None], jnp.zeros_like(beta)[None])
        rows.append(joined([*above, diagonal, each(lambda part: part[0], rest)], 0))
        columns = [*columns, joined([each(lambda part, k=k: jnp.zeros(k + 1, part.dtype), v),
                                      each(lambda part: part[1:], v)], 0)]
        rest = each(lambda part: part[1:], rest)
        factors.append(t)
    packed = stacked(rows)
    if m > n:
        packed = joined([packed, each(lambda part: part[n:], stacked(columns, 1))], 0)
    return [packed, stacked(factors)]


@register_complex("householder_product")
@of_stacks(2, 1)
def _householder_product(a: Complex, t: Complex) -> Complex:
    """The first columns of the product of the reflectors."""
    if not _is_unrolled(a, most=_MOST_OF_QR):
        return looped.householder_product(a, t)
    m, n = a.re.shape
    eye = jnp.eye(m, n, dtype=a.re.dtype)
    q = Complex(eye, jnp.zeros_like(eye))
    for k in range(t.re.shape[0] - 1, -1, -1):
        tail = each(lambda part, k=k: part[k + 1 :, k], a)
        one = jnp.ones((1,), tail.re.dtype)
        v = joined([Complex(one, 0 * one), tail], 0)
        block = reflected(each(lambda part, k=k: part[k:, k:], q), v, each(lambda part, k=k: part[k], t))
        lower = joined([each(lambda part, k=k: part[k:, :k], q), block], 1)
        q = joined([each(lambda part, k=k: part[:k], q), lower], 0)
    return q


def orthonormal(a: Complex, width: int) -> tuple[Complex, Complex]:
    """Q, of so many columns, and R with as many rows."""
    packed, t = _geqrf(a)
    return _taken_apart(packed, t, width)


def _taken_apart(packed: Complex, t: Complex, width: int) -> tuple[Complex, Complex]:
    m, n = packed.re.shape
    wide = packed
    if width > n:
        wide = joined([packed, each(lambda part: jnp.zeros((m, width - n), part.dtype), packed)], 1)
    q = _householder_product(each(lambda part: part[:, :width], wide), t)
    return q, each(lambda part: jnp.triu(part[:width]), packed)


@register_complex("qr")
@of_stacks(2)
def _qr(a: Complex, *, pivoting: bool = False, full_matrices: bool, **_: Any) -> list[Any]:
    _is_unrolled(a, most=_MOST_OF_QR)
    m, n = a.re.shape
    width = m if full_matrices else min(m, n)
    if not pivoting:
        return list(orthonormal(a, width))
    packed, order, t = looped.geqp3(a, jnp.zeros(n, jnp.int32))
    return [*_taken_apart(packed, t, width), order - 1]


@register_complex("geqp3")
@of_stacks(2, 1)
def _geqp3(a: Complex, order: Any, **_: Any) -> list[Any]:
    _is_unrolled(a, most=_MOST_OF_QR)
    return looped.geqp3(a, order)


@register_complex("ormqr")
@of_stacks(2, 1, 2)
def _ormqr(a: Complex, t: Complex, c: Complex, *, left: bool, transpose: bool) -> Complex:
    """Q C, or Q^H C; or from the right C Q, or C Q^H."""
    _is_unrolled(a, c, most=_MOST_OF_QR)
    if left:
        return looped.multiplied(a, t, c, transpose)
    return _adjoint(looped.multiplied(a, t, _adjoint(c), not transpose))


def _adjoint(x: Complex) -> Complex:
    return each(jnp.transpose, conjugate(x))


# -- tridiagonal systems ---------------------------------------------------------------------------------------------
@register_complex("tridiagonal_solve")
@of_stacks(1, 1, 1, 2)
def _tridiagonal_solve(low: Complex, diagonal: Complex, high: Complex, b: Complex, *, perturb_singular: bool = False,
                       **_: Any) -> Complex:
    if perturb_singular or 0 in b.re.shape:
        raise NotImplementedError("systems that are perturbed, or empty")
    return looped.tridiagonal_solve(low, diagonal, high, b)
