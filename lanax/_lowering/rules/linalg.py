"""Factors of small real matrices, and systems of linear equations: each matrix is unrolled into lane values. Leading
axes are loops over matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lanax._llvm import types as t
from lanax._llvm.memory import Index
from lanax._lowering.arrays import UNROLL, Array, is_cheap
from lanax._lowering.context import Context
from lanax._lowering.emitter import Emitter
from lanax._lowering.fold import each
from lanax._lowering.linalg.gauss import (
    Matrix,
    factor_cholesky,
    factor_lu,
    permutation_of,
    solve_triangular,
    solve_tridiagonal,
    transposed,
)
from lanax._lowering.linalg.householder import factor_qr, form_q, multiply_q
from lanax._lowering.linalg.jacobi import symmetric_eigen
from lanax._lowering.linalg.looped import (
    factor_cholesky_in_memory,
    factor_lu_in_memory,
    solve_triangular_in_memory,
)
from lanax._lowering.registry import register

#: The lane values of one matrix in row-major order.
Flat = list[Any]
#: Shape and dtype of a result.
Result = tuple[tuple[int, ...], np.dtype]

#: Elements of the largest matrix that is unrolled, and of its shorter side.
_ELEMENTS, _SIDE = 128, 8
#: Rows, and columns, up to which matrices are factored in loops.
_LOOPED = 32


# -- one matrix at a time --------------------------------------------------------------------------------------------
def _for_each(b: Emitter, rank: int, operands: Sequence[Array], results: Sequence[Result],
              fn: Callable[..., Sequence[Flat]]) -> list[Array]:
    """`fn` of the lane values of each operand's matrix or vector, for every index of the axes before it; it gives the
    lane values of each result. `rank`: that of the first operand's matrix."""
    axes = len(operands[0].shape) - rank
    batch = operands[0].shape[:axes]

    def computed(operands: Sequence[Array], *index: Index) -> Sequence[Flat]:
        return fn(*([x.at(*index, *i) for i in np.ndindex(*x.shape[axes:])] for x in operands))

    if all(0 in shape for shape, _ in results):
        return [b.full(shape, 0, dtype) for shape, dtype in results]
    if math.prod(batch) == 1 and all(math.prod(shape) <= UNROLL for shape, _ in results):
        found = computed(operands, *[0] * axes)
        return [b.elements(values, *result) for values, result in zip(found, results, strict=True)]
    varying = any(x.varying for x in operands)
    out = [b.allocate(shape, dtype, varying) for shape, dtype in results]
    ready = [b.indexable(x) if is_cheap(x) else b.stored(x) for x in operands]

    def matrix(*index: Index) -> None:
        for memory, values in zip(out, computed(ready, *index), strict=True):
            for i, value in zip(np.ndindex(*memory.shape[axes:]), values, strict=True):
                memory.put((*index, *i), value)

    each(b, batch, matrix)
    return [b.unrolled(x) if x.small else x for x in out]


def _results(ctx: Context) -> list[Result]:
    return [(tuple(aval.shape), np.dtype(aval.dtype)) for aval in ctx.avals_out]


def _rows(values: Flat, columns: int) -> Matrix:
    return [values[i: i + columns] for i in range(0, len(values), columns)]


def _flat(a: Matrix) -> Flat:
    return [x for row in a for x in row]


def _unrolls(shape: Sequence[int]) -> bool:
    """Whether a matrix is unrolled."""
    m, n = shape[-2:]
    return m * n <= _ELEMENTS and min(m, n) <= _SIDE


def _why_not_real(aval: Any) -> str | None:
    real = np.dtype(aval.dtype) in (np.float32, np.float64) and 0 not in aval.shape[-2:]
    return None if real else f"matrices of type {aval.str_short()} are left to XLA"


def _why_no_matrix(*avals: Any) -> str | None:
    for aval in avals:
        m, n = aval.shape[-2:]
        if _why_not_real(aval):
            return _why_not_real(aval)
        if not _unrolls(aval.shape):
            return (f"a matrix of {m} x {n} is left to XLA: up to {_SIDE} x {_SIDE} are in lanes, or {_ELEMENTS} "
                    "elements")
    return None


# -- factors ---------------------------------------------------------------------------------------------------------
def _why_no_factors(avals_in: tuple[Any, ...], avals_out: tuple[Any, ...], params: Mapping[str, Any]) -> str | None:
    """Real matrices of up to 128 elements, with up to 8 rows or columns."""
    return _why_no_matrix(avals_in[0])


def _why_no_larger(avals_in: tuple[Any, ...], avals_out: tuple[Any, ...], params: Mapping[str, Any]) -> str | None:
    """Real matrices of up to 32 x 32; larger ones than 8 x 8 in loops."""
    m, n = avals_in[0].shape[-2:]
    if max(m, n) > _LOOPED:
        return f"a matrix of {m} x {n} is left to XLA: up to {_LOOPED} x {_LOOPED} are in lanes"
    return _why_not_real(avals_in[0])


@register("lu", supports=_why_no_larger, cost=16.0)
def _lu_rule(ctx: Context, a: Array, **_: Any) -> list[Array]:
    b = ctx.b

    def fn(x: Flat) -> list[Flat]:
        lu, *indices = factor_lu(b, _rows(x, a.shape[-1]))
        return [_flat(lu), *([b.resize_int(i, t.I32) for i in values] for values in indices)]

    if _unrolls(a.shape):
        return _for_each(b, 2, [a], _results(ctx), fn)
    lu, pivots, order = (b.allocate(shape, dtype, a.varying) for shape, dtype in _results(ctx))
    b.copy(a, lu)
    each(b, a.shape[:-2], lambda *at: factor_lu_in_memory(b, lu, pivots, order, at))
    return [b.unrolled(x) if x.small else x for x in (lu, pivots, order)]


@register("cholesky", supports=_why_no_larger, cost=8.0)
def _cholesky_rule(ctx: Context, a: Array, **_: Any) -> list[Array]:
    b = ctx.b
    if not _unrolls(a.shape):
        out = b.allocate(a.shape, a.dtype, a.varying)
        b.copy(b.full(a.shape, 0, a.dtype), out)
        source = b.stored(a)
        each(b, a.shape[:-2], lambda *at: factor_cholesky_in_memory(b, lambda *i: source.at(*at, *i), out, at))
        return [out]
    return _for_each(ctx.b, 2, [a], _results(ctx), lambda x: [_flat(factor_cholesky(ctx.b, _rows(x, a.shape[-1])))])


@register("geqrf", supports=_why_no_factors, cost=16.0)
def _geqrf_rule(ctx: Context, a: Array, **_: Any) -> list[Array]:
    def fn(x: Flat) -> list[Flat]:
        qr, taus = factor_qr(ctx.b, _rows(x, a.shape[-1]))
        return [_flat(qr), taus]

    return _for_each(ctx.b, 2, [a], _results(ctx), fn)


@register("householder_product", supports=_why_no_factors, cost=12.0)
def _householder_product_rule(ctx: Context, a: Array, taus: Array, **_: Any) -> list[Array]:
    n = a.shape[-1]
    return _for_each(ctx.b, 2, [a, taus], _results(ctx),
                     lambda x, taus: [_flat(form_q(ctx.b, _rows(x, n), taus, n))])


def _why_no_qr(avals_in: tuple[Any, ...], avals_out: tuple[Any, ...], params: Mapping[str, Any]) -> str | None:
    """Without pivoting. Real matrices of up to 128 elements, with up to 8 rows or columns."""
    if params.get("pivoting"):
        return "QR with pivoting of columns is left to XLA"
    return _why_no_matrix(avals_in[0], avals_out[0])


@register("qr", supports=_why_no_qr, cost=24.0)
def _qr_rule(ctx: Context, a: Array, **_: Any) -> list[Array]:
    b, columns = ctx.b, ctx.avals_out[0].shape[-1]

    def fn(x: Flat) -> list[Flat]:
        qr, taus = factor_qr(b, _rows(x, a.shape[-1]))
        zero = b.like(x[0], 0.0)
        r = [[x if i <= j else zero for j, x in enumerate(row)] for i, row in enumerate(qr[:columns])]
        return [_flat(form_q(b, qr, taus, columns)), _flat(r)]

    return _for_each(b, 2, [a], _results(ctx), fn)


def _why_no_ormqr(avals_in: tuple[Any, ...], avals_out: tuple[Any, ...], params: Mapping[str, Any]) -> str | None:
    """Real matrices, each of up to 128 elements, with up to 8 rows or columns."""
    return _why_no_matrix(avals_in[0], avals_in[2])


@register("ormqr", supports=_why_no_ormqr, cost=16.0)
def _ormqr_rule(ctx: Context, a: Array, taus: Array, c: Array, *, left: bool, transpose: bool, **_: Any) -> list[Array]:
    def fn(x: Flat, taus: Flat, y: Flat) -> list[Flat]:
        return [_flat(multiply_q(ctx.b, _rows(x, a.shape[-1]), taus, _rows(y, c.shape[-1]), left, transpose))]

    return _for_each(ctx.b, 2, [a, taus, c], _results(ctx), fn)


# -- eigenvalues -----------------------------------------------------------------------------------------------------
def _why_no_eigh(avals_in: tuple[Any, ...], avals_out: tuple[Any, ...], params: Mapping[str, Any]) -> str | None:
    """All eigenvalues of real matrices of up to 8 x 8. The sign of an eigenvector may be another than LAPACK's."""
    n = avals_in[0].shape[-1]
    if params.get("subset_by_index") not in (None, (0, n)) or params.get("algorithm") is not None:
        return "only all eigenvalues, by the usual algorithm, are in lanes"
    return _why_no_matrix(avals_in[0])


@register("eigh", supports=_why_no_eigh, cost=100.0)
def _eigh_rule(ctx: Context, a: Array, *, lower: bool, **_: Any) -> list[Array]:
    b, n, vectors = ctx.b, a.shape[-1], ctx.used[0]

    def fn(x: Flat) -> list[Flat]:
        values, columns = symmetric_eigen(b, _rows(x, n), lower, vectors)
        return [_flat(columns) if vectors else [b.like(x[0], 0.0)] * (n * n), values]

    return _for_each(b, 2, [a], _results(ctx), fn)


# -- permutations ----------------------------------------------------------------------------------------------------
def _why_no_permutation(avals_in: tuple[Any, ...], avals_out: tuple[Any, ...],
                        params: Mapping[str, Any]) -> str | None:
    """Permutations of up to 32 rows."""
    rows = params["permutation_size"]
    return f"a permutation of {rows} rows: up to {_LOOPED} are in lanes" if rows > _LOOPED else None


@register("lu_pivots_to_permutation", supports=_why_no_permutation, cost=12.0)
def _permutation_rule(ctx: Context, pivots: Array, *, permutation_size: int, **_: Any) -> list[Array]:
    return _for_each(ctx.b, 1, [pivots], _results(ctx), lambda x: [permutation_of(ctx.b, x, permutation_size)])


# -- systems ---------------------------------------------------------------------------------------------------------
def _why_no_system(avals_in: tuple[Any, ...], avals_out: tuple[Any, ...], params: Mapping[str, Any]) -> str | None:
    """Real matrices of up to 32 x 32, with any number of right-hand sides; larger ones than 8 x 8 in loops."""
    return _why_no_larger(avals_in, avals_out, params)


@register("triangular_solve", supports=_why_no_system, cost=8.0)
def _triangular_solve_rule(ctx: Context, a: Array, rhs: Array, *, left_side: bool, lower: bool, transpose_a: bool,
                           unit_diagonal: bool, **_: Any) -> Array:
    b, n = ctx.b, a.shape[-1]
    flip = transpose_a == left_side  # from the right: the transposed system, op(A)^T X^T = B^T

    def fn(x: Flat, y: Flat) -> list[Flat]:
        matrix = _rows(x, n)
        given = _rows(y, len(y) // n) if left_side else transposed(_rows(y, n))
        out = solve_triangular(b, transposed(matrix) if flip else matrix, given, lower != flip, unit_diagonal)
        return [_flat(out if left_side else transposed(out))]

    if not _unrolls(a.shape):
        return _solve_in_loops(b, a, rhs, left_side, flip, lower != flip, unit_diagonal)
    if rhs.shape[-1] * rhs.shape[-2] <= _ELEMENTS:
        return _for_each(b, 2, [a, rhs], _results(ctx), fn)[0]
    return _one_by_one(b, a, rhs, left_side, fn)


def _one_by_one(b: Emitter, a: Array, rhs: Array, left_side: bool, fn: Callable[..., Sequence[Flat]]) -> Array:
    """Solve for many right-hand sides, each in one trip of a loop."""
    *batch, rows, columns = rhs.shape
    axes, n = len(batch), a.shape[-1]
    count = columns if left_side else rows

    def of_vector(*i: Index) -> tuple[Index, ...]:
        return (*i[:axes], i[-1], i[-2]) if left_side else i

    matrices = b.view(a, (*batch, count, n, n), lambda *i: (*i[:axes], *i[-2:]))
    vectors = b.view(rhs, (*batch, count, n), of_vector)
    (out,) = _for_each(b, 2, [matrices, vectors], [((*batch, count, n), rhs.dtype)], fn)
    return b.view(out, rhs.shape, of_vector)


def _solve_in_loops(b: Emitter, a: Array, rhs: Array, left_side: bool, flip: bool, lower: bool,
                    unit_diagonal: bool) -> Array:
    n, source = a.shape[-1], b.stored(a)
    out = b.allocate(rhs.shape, rhs.dtype, a.varying or rhs.varying)
    b.copy(rhs, out)

    def vector(*index: Index) -> None:
        *at, which = index
        solve_triangular_in_memory(
            b, lambda i, j: source.at(*at, *((j, i) if flip else (i, j))), n, out,
            lambda i: (*at, *((i, which) if left_side else (which, i))), lower, unit_diagonal)

    each(b, (*rhs.shape[:-2], rhs.shape[-1 if left_side else -2]), vector)
    return b.unrolled(out) if out.small else out


def _why_no_tridiagonal(avals_in: tuple[Any, ...], avals_out: tuple[Any, ...],
                        params: Mapping[str, Any]) -> str | None:
    """Real systems whose right-hand sides have up to 128 elements; without perturbation of singular ones."""
    rhs = avals_out[0]
    m, n = rhs.shape[-2:]
    if params.get("perturb_singular"):
        return "tridiagonal systems that are perturbed are left to XLA"
    if np.dtype(rhs.dtype) not in (np.float32, np.float64):
        return f"systems of {rhs.dtype} are left to XLA"
    return f"right-hand sides of {m * n} elements: up to {_ELEMENTS} are in lanes" if m * n > _ELEMENTS else None


@register("tridiagonal_solve", supports=_why_no_tridiagonal, cost=16.0)
def _tridiagonal_solve_rule(ctx: Context, low: Array, diagonal: Array, high: Array, rhs: Array,
                            **_: Any) -> list[Array]:
    def fn(low: Flat, diagonal: Flat, high: Flat, y: Flat) -> list[Flat]:
        return [_flat(solve_tridiagonal(ctx.b, low, diagonal, high, _rows(y, rhs.shape[-1])))]

    return _for_each(ctx.b, 1, [low, diagonal, high, rhs], _results(ctx), fn)
