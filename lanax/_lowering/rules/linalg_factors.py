"""Factors of small real matrices, each in lanes: unrolled, or in loops where it is larger than 8 x 8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lanax._llvm import types as t
from lanax._lowering.arrays import Array, Memory
from lanax._lowering.context import Context
from lanax._lowering.emitter import Emitter
from lanax._lowering.fold import each
from lanax._lowering.linalg.gauss import factor_cholesky, factor_lu, permutation_of
from lanax._lowering.linalg.householder import factor_qr, form_q, multiply_q
from lanax._lowering.linalg.householder_looped import (
    factor_pivoted_qr_in_memory,
    factor_qr_in_memory,
    form_q_in_memory,
    multiply_q_in_memory,
)
from lanax._lowering.linalg.looped import factor_cholesky_in_memory, factor_lu_in_memory
from lanax._lowering.linalg.loops import each_of
from lanax._lowering.linalg.matrices import (
    LONGER_SIDE,
    LOOPED_SIDE,
    Flat,
    each_in_memory,
    each_matrix,
    flat,
    results_of,
    rows_of,
    unrolls,
    why_not_looped,
)
from lanax._lowering.registry import register


def _why_no_factors(avals_in: tuple[Any, ...], avals_out: tuple[Any, ...], params: Mapping[str, Any]) -> str | None:
    """Real matrices of up to 32 x 32, or of up to 128 elements with 8 rows or columns."""
    return why_not_looped(avals_in[0])


# -- LU and Cholesky -------------------------------------------------------------------------------------------------
@register("lu", supports=_why_no_factors, cost=16.0)
def _lu_rule(ctx: Context, a: Array, **_: Any) -> list[Array]:
    b = ctx.b

    def unrolled(x: Flat) -> list[Flat]:
        lu, *indices = factor_lu(b, rows_of(x, a.shape[-1]))
        return [flat(lu), *([b.resize_int(i, t.I32) for i in values] for values in indices)]

    def looped(a: Memory, lu: Memory, pivots: Memory, order: Memory) -> None:
        b.copy(a, lu)
        factor_lu_in_memory(b, lu, pivots, order)

    if unrolls(a.shape):
        return each_matrix(b, 2, [a], results_of(ctx), unrolled)
    return each_in_memory(b, 2, [a], results_of(ctx), looped)


@register("cholesky", supports=_why_no_factors, cost=8.0)
def _cholesky_rule(ctx: Context, a: Array, **_: Any) -> list[Array]:
    b = ctx.b

    def unrolled(x: Flat) -> list[Flat]:
        return [flat(factor_cholesky(b, rows_of(x, a.shape[-1])))]

    if unrolls(a.shape):
        return each_matrix(b, 2, [a], results_of(ctx), unrolled)
    return each_in_memory(b, 2, [a], results_of(ctx), lambda a, out: factor_cholesky_in_memory(b, a, out))


# -- QR --------------------------------------------------------------------------------------------------------------
def _why_no_reflections(avals_in: tuple[Any, ...], avals_out: tuple[Any, ...],
                        params: Mapping[str, Any]) -> str | None:
    """Real matrices of up to 128 x 32 or 32 x 128."""
    return why_not_looped(avals_in[0], longer=LONGER_SIDE)


@register("geqrf", supports=_why_no_reflections, cost=16.0)
def _geqrf_rule(ctx: Context, a: Array, **_: Any) -> list[Array]:
    b = ctx.b

    def unrolled(x: Flat) -> list[Flat]:
        qr, taus = factor_qr(b, rows_of(x, a.shape[-1]))
        return [flat(qr), taus]

    def looped(a: Memory, qr: Memory, taus: Memory) -> None:
        b.copy(a, qr)
        factor_qr_in_memory(b, qr, taus)

    if unrolls(a.shape):
        return each_matrix(b, 2, [a], results_of(ctx), unrolled)
    return each_in_memory(b, 2, [a], results_of(ctx), looped)


@register("householder_product", supports=_why_no_reflections, cost=12.0)
def _householder_product_rule(ctx: Context, a: Array, taus: Array, **_: Any) -> list[Array]:
    b, n = ctx.b, a.shape[-1]
    if unrolls(a.shape):
        return each_matrix(b, 2, [a, taus], results_of(ctx),
                           lambda x, taus: [flat(form_q(b, rows_of(x, n), taus, n))])
    return each_in_memory(b, 2, [a, taus], results_of(ctx), lambda a, taus, q: form_q_in_memory(b, a, taus, q))


def _why_no_qr(avals_in: tuple[Any, ...], avals_out: tuple[Any, ...], params: Mapping[str, Any]) -> str | None:
    """Real matrices of up to 128 x 32 or 32 x 128."""
    return why_not_looped(avals_in[0], avals_out[0], longer=LONGER_SIDE)


@register("qr", supports=_why_no_qr, cost=24.0)
def _qr_rule(ctx: Context, a: Array, *, pivoting: bool, **_: Any) -> list[Array]:
    b, columns = ctx.b, ctx.avals_out[0].shape[-1]

    def unrolled(x: Flat) -> list[Flat]:
        qr, taus = factor_qr(b, rows_of(x, a.shape[-1]))
        zero = b.like(x[0], 0.0)
        r = [[x if i <= j else zero for j, x in enumerate(row)] for i, row in enumerate(qr[:columns])]
        return [flat(form_q(b, qr, taus, columns)), flat(r)]

    def looped(a: Memory, q: Memory, r: Memory, *order: Memory) -> None:
        qr, taus = b.allocate(a.shape, a.dtype, a.varying), b.allocate((min(a.shape),), a.dtype, a.varying)
        zero = b.constant(0, a.dtype)
        b.copy(a, qr)
        if pivoting:
            _factor_pivoted(b, qr, order[0], taus)
        else:
            factor_qr_in_memory(b, qr, taus)
        form_q_in_memory(b, qr, taus, q)
        each(b, r.shape, lambda *i: r.put(i, zero))
        each_of(b, 0, min(a.shape), lambda i: each_of(b, i, a.shape[1], lambda j: r.put((i, j), qr.at(i, j))))

    if not pivoting and unrolls(a.shape) and unrolls(ctx.avals_out[0].shape):
        return each_matrix(b, 2, [a], results_of(ctx), unrolled)
    return each_in_memory(b, 2, [a], results_of(ctx), looped)


def _factor_pivoted(b: Emitter, a: Memory, order: Memory, taus: Memory) -> None:
    """With any column first; `order` counts from zero."""
    zero = b.constant(0, order.dtype)
    each(b, order.shape, lambda i: order.put((i,), zero))
    factor_pivoted_qr_in_memory(b, a, order, taus)
    each(b, order.shape, lambda i: order.put((i,), b.sub(order.at(i), 1)))


@register("geqp3", supports=_why_no_reflections, cost=32.0)
def _geqp3_rule(ctx: Context, a: Array, order: Array, **_: Any) -> list[Array]:
    b = ctx.b

    def looped(a: Memory, first: Memory, qr: Memory, order: Memory, taus: Memory) -> None:
        b.copy(a, qr)
        b.copy(first, order)
        factor_pivoted_qr_in_memory(b, qr, order, taus)

    return each_in_memory(b, 2, [a, order], results_of(ctx), looped)


def _why_no_ormqr(avals_in: tuple[Any, ...], avals_out: tuple[Any, ...], params: Mapping[str, Any]) -> str | None:
    """Real matrices, each of up to 128 x 32 or 32 x 128."""
    return why_not_looped(avals_in[0], avals_in[2], longer=LONGER_SIDE)


@register("ormqr", supports=_why_no_ormqr, cost=16.0)
def _ormqr_rule(ctx: Context, a: Array, taus: Array, c: Array, *, left: bool, transpose: bool, **_: Any) -> list[Array]:
    b = ctx.b

    def unrolled(x: Flat, taus: Flat, y: Flat) -> list[Flat]:
        return [flat(multiply_q(b, rows_of(x, a.shape[-1]), taus, rows_of(y, c.shape[-1]), left, transpose))]

    def looped(a: Memory, taus: Memory, c: Memory, out: Memory) -> None:
        b.copy(c, out)
        multiply_q_in_memory(b, a, taus, out, left, transpose)

    if unrolls(a.shape) and unrolls(c.shape):
        return each_matrix(b, 2, [a, taus, c], results_of(ctx), unrolled)
    return each_in_memory(b, 2, [a, taus, c], results_of(ctx), looped)


# -- permutations ----------------------------------------------------------------------------------------------------
def _why_no_permutation(avals_in: tuple[Any, ...], avals_out: tuple[Any, ...],
                        params: Mapping[str, Any]) -> str | None:
    """Permutations of up to 32 rows."""
    rows = params["permutation_size"]
    return f"a permutation of {rows} rows: up to {LOOPED_SIDE} are in lanes" if rows > LOOPED_SIDE else None


@register("lu_pivots_to_permutation", supports=_why_no_permutation, cost=12.0)
def _permutation_rule(ctx: Context, pivots: Array, *, permutation_size: int, **_: Any) -> list[Array]:
    return each_matrix(ctx.b, 1, [pivots], results_of(ctx), lambda x: [permutation_of(ctx.b, x, permutation_size)])
