"""Systems of linear equations with small real matrices: triangular and tridiagonal ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lanax._llvm.memory import Index
from lanax._lowering.arrays import Array, Memory
from lanax._lowering.context import Context
from lanax._lowering.emitter import Emitter
from lanax._lowering.linalg.gauss import solve_triangular, solve_tridiagonal, transposed
from lanax._lowering.linalg.looped import solve_triangular_in_memory
from lanax._lowering.linalg.loops import turned
from lanax._lowering.linalg.matrices import (
    UNROLLED_ELEMENTS,
    Flat,
    each_in_memory,
    each_matrix,
    flat,
    results_of,
    rows_of,
    unrolls,
    why_not_looped,
    why_not_real,
)
from lanax._lowering.linalg.tridiagonal_looped import solve_perturbed_in_memory, solve_tridiagonal_in_memory
from lanax._lowering.registry import register

#: Elements of right-hand sides up to which a tridiagonal system is unrolled.
_UNROLLED_TRIDIAGONAL = 64


# -- triangular ------------------------------------------------------------------------------------------------------
def _why_no_system(avals_in: tuple[Any, ...], avals_out: tuple[Any, ...], params: Mapping[str, Any]) -> str | None:
    """Real matrices of up to 32 x 32, with any number of right-hand sides; larger ones than 8 x 8 in loops."""
    return why_not_looped(avals_in[0])


@register("triangular_solve", supports=_why_no_system, cost=8.0)
def _triangular_solve_rule(ctx: Context, a: Array, rhs: Array, *, left_side: bool, lower: bool, transpose_a: bool,
                           unit_diagonal: bool, **_: Any) -> Array:
    b, n = ctx.b, a.shape[-1]
    flip = transpose_a == left_side  # from the right: the transposed system, op(A)^T X^T = B^T

    def fn(x: Flat, y: Flat) -> list[Flat]:
        matrix = rows_of(x, n)
        given = rows_of(y, len(y) // n) if left_side else transposed(rows_of(y, n))
        out = solve_triangular(b, transposed(matrix) if flip else matrix, given, lower != flip, unit_diagonal)
        return [flat(out if left_side else transposed(out))]

    def looped(a: Memory, rhs: Memory, out: Memory) -> None:
        b.copy(rhs, out)
        solve_triangular_in_memory(b, turned(a) if flip else a, out if left_side else turned(out), lower != flip,
                                   unit_diagonal)

    if not unrolls(a.shape):
        return each_in_memory(b, 2, [a, rhs], results_of(ctx), looped)[0]
    if rhs.shape[-1] * rhs.shape[-2] <= UNROLLED_ELEMENTS:
        return each_matrix(b, 2, [a, rhs], results_of(ctx), fn)[0]
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
    (out,) = each_matrix(b, 2, [matrices, vectors], [((*batch, count, n), rhs.dtype)], fn)
    return b.view(out, rhs.shape, of_vector)


# -- tridiagonal -----------------------------------------------------------------------------------------------------
def _why_no_tridiagonal(avals_in: tuple[Any, ...], avals_out: tuple[Any, ...],
                        params: Mapping[str, Any]) -> str | None:
    """Real systems of any number of equations."""
    return why_not_real(*avals_out)


@register("tridiagonal_solve", supports=_why_no_tridiagonal, cost=16.0)
def _tridiagonal_solve_rule(ctx: Context, low: Array, diagonal: Array, high: Array, rhs: Array,
                            perturb_singular: bool = False, **_: Any) -> list[Array]:
    b, (rows, columns) = ctx.b, rhs.shape[-2:]

    def unrolled(low: Flat, diagonal: Flat, high: Flat, y: Flat) -> list[Flat]:
        return [flat(solve_tridiagonal(b, low, diagonal, high, rows_of(y, columns)))]

    def looped(low: Memory, diagonal: Memory, high: Memory, rhs: Memory, out: Memory) -> None:
        b.copy(rhs, out)
        solve = solve_perturbed_in_memory if perturb_singular else solve_tridiagonal_in_memory
        solve(b, low, diagonal, high, out)

    operands = [low, diagonal, high, rhs]
    if rows * columns <= _UNROLLED_TRIDIAGONAL and not perturb_singular:
        return each_matrix(b, 1, operands, results_of(ctx), unrolled)
    return each_in_memory(b, 1, operands, results_of(ctx), looped)
