"""LU and Cholesky factors and triangular systems in loops over memory, for matrices too large to unroll. The matrices
are in scratch of their own, so every lane may write."""

from __future__ import annotations

from llvmlite import ir

from lanax._llvm import types as t
from lanax._llvm.memory import Index
from lanax._lowering.arrays import Memory
from lanax._lowering.emitter import Emitter
from lanax._lowering.fold import each
from lanax._lowering.linalg.gauss import smallest
from lanax._lowering.linalg.loops import Values, as_i64, each_block, each_of, like_lanes, span, swap_elements


def factor_lu_in_memory(b: Emitter, a: Memory, pivots: Memory, order: Memory) -> None:
    """Replace `a` by L and U, and write its pivots and its permutation. As `factor_lu`."""
    m, n = a.shape
    kind = t.lane_type(order.dtype).lane
    assert isinstance(kind, ir.IntType)
    each_of(b, 0, m, lambda i: order.put((i,), b.resize_int(as_i64(b, i), kind)))

    def column(k: Index) -> None:
        largest, pivot = _find_pivot(b, a, k)
        pivots.put((k,), b.resize_int(pivot, kind))
        swap_elements(order, (k,), (pivot,))
        each_of(b, 0, n, lambda j: swap_elements(a, (k, j), (pivot, j)))
        divisor = b.select(b.ge(largest, smallest(largest)), a.at(k, k), 1.0)
        each_of(b, b.iadd(k, 1), m, lambda i: row(k, i, divisor))

    def row(k: Index, i: Index, divisor: ir.Value) -> None:
        factor = b.div(a.at(i, k), divisor)
        a.put((i, k), factor)
        less = b.neg(factor)
        each_of(b, b.iadd(k, 1), n, lambda j: a.put((i, j), b.fma(less, a.at(k, j), a.at(i, j))))

    each_of(b, 0, min(m, n), column)


def _find_pivot(b: Emitter, a: Memory, k: Index) -> tuple[ir.Value, ir.Value]:
    """The largest size in column `k` from row `k` on, and the first row that has it, as i64."""

    def compare(i: Index, values: Values) -> Values:
        size = b.fabs(a.at(i, k))
        larger = b.gt(size, values[0])
        return [b.select(larger, size, values[0]), b.select(larger, as_i64(b, i), values[1])]

    start = like_lanes(b, a, b.fabs(a.at(k, k)), as_i64(b, k))
    largest, pivot = span(b, b.iadd(k, 1), a.shape[0], start, compare)
    return largest, pivot


def factor_cholesky_in_memory(b: Emitter, a: Memory, out: Memory) -> None:
    """Write L of A = L L^T. As `factor_cholesky`."""
    n, zero = out.shape[0], b.constant(0, out.dtype)
    each(b, out.shape, lambda *i: out.put(i, zero))

    def rest(i: Index, j: Index) -> ir.Value:
        (total,) = span(b, 0, j, like_lanes(b, out, zero), lambda k, x: [b.fma(out.at(i, k), out.at(j, k), x[0])])
        return b.sub(a.at(i, j), total)

    def column(j: Index, values: Values) -> Values:
        square = rest(j, j)
        root = b.sqrt(square)
        out.put((j, j), root)
        each_of(b, b.iadd(j, 1), n, lambda i: out.put((i, j), b.div(rest(i, j), root)))
        return [b.or_(values[0], b.le(square, 0.0))]

    no: ir.Value = ir.Constant(t.I1, 0)
    (failed,) = span(b, 0, n, like_lanes(b, out, no), column)
    each_of(b, 0, n, lambda i: each_of(b, 0, b.iadd(i, 1), lambda j: out.put(
        (i, j), b.select(failed, float("nan"), out.at(i, j)))))


def solve_triangular_in_memory(b: Emitter, a: Memory, x: Memory, lower: bool, unit_diagonal: bool) -> None:
    """Replace the right-hand sides, the columns of `x`, by the solutions. As `solve_triangular`."""
    n = a.shape[0]

    def turned(i: Index) -> Index:
        return i if lower else b.isub(n - 1, i) if isinstance(i, int) else b.sub(b.i64(n - 1), i)

    def solve(columns: list[Index]) -> None:
        def row(i: Index) -> None:
            here = turned(i)

            def subtract(k: Index, values: Values) -> Values:
                factor = b.neg(a.at(here, turned(k)))
                return [b.fma(factor, x.at(turned(k), j), v) for j, v in zip(columns, values, strict=True)]

            values = span(b, 0, i, like_lanes(b, x, *(x.at(here, j) for j in columns)), subtract)
            for j, value in zip(columns, values, strict=True):
                x.put((here, j), value if unit_diagonal else b.div(value, a.at(here, here)))

        each_of(b, 0, n, row)

    each_block(b, 0, x.shape[1], solve)
