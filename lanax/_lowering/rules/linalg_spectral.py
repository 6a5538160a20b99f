"""Eigenvalues of small symmetric matrices and singular values of small real ones: unrolled, or in loops over memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from llvmlite import ir

from lanax._lowering.arrays import Array, Memory
from lanax._lowering.context import Context
from lanax._lowering.linalg.gauss import transposed
from lanax._lowering.linalg.householder_looped import make_hessenberg, make_tridiagonal
from lanax._lowering.linalg.jacobi import singular_values, symmetric_eigen
from lanax._lowering.linalg.loops import each_of, reverse, turned
from lanax._lowering.linalg.matrices import (
    LONGER_SIDE,
    Flat,
    each_in_memory,
    each_matrix,
    flat,
    results_of,
    rows_of,
    why_not_looped,
)
from lanax._lowering.linalg.schur_looped import make_schur
from lanax._lowering.linalg.spectral_looped import singular_in_memory, symmetric_eigen_in_memory
from lanax._lowering.registry import register

#: Rows and columns up to which eigenvalues, and singular values, are unrolled: more do not fit the registers.
_UNROLLED = 4
#: Algorithms for singular values between which only LAPACK tells.
_LAPACKS = ("DEFAULT", "QR", "DIVIDE_AND_CONQUER")
#: Rows and columns of the largest matrix whose singular values or Schur form are in lanes.
_LARGEST = 16


def _active(ctx: Context) -> ir.Value | None:
    """The lanes that a loop waits for, or None for all."""
    return None if ctx.mask is None else ctx.b.of_mask(ctx.mask)


# -- eigenvalues -----------------------------------------------------------------------------------------------------
def _why_no_eigh(avals_in: tuple[Any, ...], avals_out: tuple[Any, ...], params: Mapping[str, Any]) -> str | None:
    """All eigenvalues of real matrices of up to 32 x 32. The sign of an eigenvector may be another than LAPACK's."""
    n = avals_in[0].shape[-1]
    if params.get("subset_by_index") not in (None, (0, n)) or params.get("algorithm") is not None:
        return "only all eigenvalues, by the usual algorithm, are in lanes"
    return why_not_looped(avals_in[0])


@register("eigh", supports=_why_no_eigh, cost=100.0)
def _eigh_rule(ctx: Context, a: Array, *, lower: bool, **_: Any) -> list[Array]:
    b, n, vectors = ctx.b, a.shape[-1], ctx.used[0]

    def unrolled(x: Flat) -> list[Flat]:
        values, columns = symmetric_eigen(b, rows_of(x, n), lower, vectors, _active(ctx))
        return [flat(columns) if vectors else [b.like(x[0], 0.0)] * (n * n), values]

    def looped(a: Memory, columns: Memory, values: Memory) -> None:
        whole, half = b.allocate(a.shape, a.dtype, a.varying), a if lower else turned(a)
        for out in (whole, turned(whole)):
            each_of(b, 0, n, lambda i, out=out: each_of(b, 0, b.iadd(i, 1), lambda j: out.put((i, j), half.at(i, j))))
        symmetric_eigen_in_memory(b, whole, values, columns if vectors else None, _active(ctx))

    if n <= _UNROLLED:
        return each_matrix(b, 2, [a], results_of(ctx), unrolled)
    return each_in_memory(b, 2, [a], results_of(ctx), looped)


# -- reduced forms ---------------------------------------------------------------------------------------------------
def _why_no_reduction(avals_in: tuple[Any, ...], avals_out: tuple[Any, ...], params: Mapping[str, Any]) -> str | None:
    """Real matrices of up to 32 x 32."""
    return why_not_looped(avals_in[0])


@register("tridiagonal", supports=_why_no_reduction, cost=16.0)
def _tridiagonal_rule(ctx: Context, a: Array, *, lower: bool, **_: Any) -> list[Array]:
    b, n = ctx.b, a.shape[-1]

    def of_number(x: Flat) -> list[Flat]:
        return [x, x, [], []]

    def looped(a: Memory, *results: Memory) -> None:
        # The upper triangle is reduced from its end: as the lower one, with all in reverse order.
        a, out, diagonal, beside, taus = (a, *results) if lower else (reverse(b, x) for x in (a, *results))
        whole = b.allocate(a.shape, a.dtype, a.varying)
        for half in (whole, turned(whole)):
            each_of(b, 0, n, lambda i, half=half: each_of(b, 0, b.iadd(i, 1), lambda j: half.put((i, j), a.at(i, j))))
        make_tridiagonal(b, whole, diagonal, beside, taus)
        b.copy(a, out)
        each_of(b, 0, n, lambda i: each_of(b, 0, b.iadd(i, 1), lambda j: out.put((i, j), whole.at(i, j))))

    if n == 1:
        return each_matrix(b, 2, [a], results_of(ctx), of_number)
    return each_in_memory(b, 2, [a], results_of(ctx), looped)


@register("hessenberg", supports=_why_no_reduction, cost=24.0)
def _hessenberg_rule(ctx: Context, a: Array, **_: Any) -> list[Array]:
    def looped(a: Memory, out: Memory, taus: Memory) -> None:
        ctx.b.copy(a, out)
        make_hessenberg(ctx.b, out, taus)

    if a.shape[-1] == 1:
        return each_matrix(ctx.b, 2, [a], results_of(ctx), lambda x: [x, []])
    return each_in_memory(ctx.b, 2, [a], results_of(ctx), looped)


def _why_no_schur(avals_in: tuple[Any, ...], avals_out: tuple[Any, ...], params: Mapping[str, Any]) -> str | None:
    """Real form of real matrices of up to 16 x 16, without sorting."""
    if params.get("sort_eig_vals"):
        return "sorted eigenvalues are not in lanes"
    return why_not_looped(avals_in[0], side=_LARGEST)


@register("schur", supports=_why_no_schur, cost=300.0)
def _schur_rule(ctx: Context, a: Array, *, compute_schur_vectors: bool, **_: Any) -> list[Array]:
    b = ctx.b

    def of_number(x: Flat) -> list[Flat]:
        form = b.select(b.lt(b.fabs(x[0]), float("inf")), x[0], float("nan"))
        return [[form], [b.like(form, 1.0)]][:len(ctx.avals_out)]

    def looped(a: Memory, form: Memory, *vectors: Memory) -> None:
        own = b.allocate(a.shape, a.dtype, a.varying)
        b.copy(a, own)
        make_schur(b, own, form, vectors[0] if compute_schur_vectors else None, _active(ctx))

    if a.shape[-1] == 1:
        return each_matrix(b, 2, [a], results_of(ctx), of_number)
    return each_in_memory(b, 2, [a], results_of(ctx), looped)


# -- singular values -------------------------------------------------------------------------------------------------
def _why_no_svd(avals_in: tuple[Any, ...], avals_out: tuple[Any, ...], params: Mapping[str, Any]) -> str | None:
    """All singular values of real matrices of up to 128 x 16 or 16 x 128. The signs of the vectors may be others than
    LAPACK's."""
    m, n = avals_in[0].shape[-2:]
    if params.get("subset_by_index") not in (None, (0, min(m, n))):
        return "only all singular values are in lanes"
    if getattr(params.get("algorithm"), "name", "DEFAULT") not in _LAPACKS:
        return "an algorithm that is not for CPUs"
    return why_not_looped(*avals_in, *avals_out[1:], side=_LARGEST, longer=LONGER_SIDE)


@register("svd", supports=_why_no_svd, cost=150.0)
def _svd_rule(ctx: Context, a: Array, *, compute_uv: bool, **_: Any) -> list[Array]:
    b, (m, n) = ctx.b, a.shape[-2:]
    vectors = compute_uv and any(ctx.used[1:])
    columns = ctx.avals_out[1].shape[-1] if compute_uv and m >= n else ctx.avals_out[2].shape[-2] if compute_uv else 0

    def unrolled(x: Flat) -> list[Flat]:
        rows = rows_of(x, n)
        values, u, vt = singular_values(b, rows if m >= n else transposed(rows), columns, vectors, _active(ctx))
        if not vectors:
            return [values, *([b.like(x[0], 0.0)] * math.prod(aval.shape[-2:]) for aval in ctx.avals_out[1:])]
        return [values, flat(u), flat(vt)] if m >= n else [values, flat(transposed(vt)), flat(transposed(u))]

    def looped(a: Memory, values: Memory, *uv: Memory) -> None:
        own = b.allocate(a.shape, a.dtype, a.varying)
        b.copy(a, own)
        u, vt = uv if vectors else (None, None)
        if m < n and u is not None and vt is not None:
            u, vt = turned(vt), turned(u)
        singular_in_memory(b, own if m >= n else turned(own), values, u, vt, _active(ctx))

    if min(m, n) <= _UNROLLED and max(m, n) * max(min(m, n), columns) <= 64:
        return each_matrix(b, 2, [a], results_of(ctx), unrolled)
    return each_in_memory(b, 2, [a], results_of(ctx), looped)
