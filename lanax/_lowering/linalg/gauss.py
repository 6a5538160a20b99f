"""LU and Cholesky factors, and triangular and tridiagonal systems, as lane code on unrolled matrices. A pivot row is
moved by selects: lanes that swap different rows stay together. Knows no arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from llvmlite import ir

from lanax._llvm import types as t
from lanax._llvm.lanes import Lanes

Values = list[ir.Value]
#: Rows of lane values.
Matrix = list[Values]


def transposed(a: Matrix) -> Matrix:
    """The matrix with rows and columns exchanged."""
    return [list(column) for column in zip(*a, strict=True)]


def less_products(b: Lanes, x: ir.Value, pairs: Sequence[tuple[ir.Value, ir.Value]]) -> ir.Value:
    """x minus the product of each pair, each rounded once."""
    for u, v in pairs:
        x = b.fma(b.neg(u), v, x)
    return x


def smallest(x: ir.Value) -> float:
    """The smallest normal number of the type of `x`."""
    return float(np.finfo(np.float64 if t.bit_width(x.type) == 64 else np.float32).tiny)


# -- LU --------------------------------------------------------------------------------------------------------------
def factor_lu(b: Lanes, a: Matrix) -> tuple[Matrix, Values, Values]:
    """L below the diagonal, where it is one, and U of P A = L U; the pivots, and the permutation of the rows.

    As LAPACK's getrf: the pivot is the first of the largest elements, a column without any is not divided.
    """
    kind = ir.IntType(t.bit_width(a[0][0].type))  # of the elements' own width: so a comparison fits both
    rows = [[*row, b.const(kind, i)] for i, row in enumerate(a)]
    pivots = []
    for k in range(min(len(a), len(a[0]))):
        largest, pivot = _find_pivot(b, [row[k] for row in rows], k, kind)
        pivots.append(pivot)
        _swap_rows(b, rows, k, pivot)
        divisor = b.select(b.ge(largest, smallest(largest)), rows[k][k], 1.0)
        for row in rows[k + 1:]:
            row[k] = b.div(row[k], divisor)
            for j in range(k + 1, len(a[0])):
                row[j] = b.fma(b.neg(row[k]), rows[k][j], row[j])
    return [row[:-1] for row in rows], pivots, [row[-1] for row in rows]


def _find_pivot(b: Lanes, column: Values, k: int, kind: ir.IntType) -> tuple[ir.Value, ir.Value]:
    """The largest size in a column from row `k` on, and the first row that has it. NaN is largest only where first."""
    largest, pivot = b.fabs(column[k]), b.const(kind, k)
    for i in range(k + 1, len(column)):
        size = b.fabs(column[i])
        larger = b.gt(size, largest)
        largest, pivot = b.select(larger, size, largest), b.select(larger, i, pivot)
    return largest, pivot


def _swap_rows(b: Lanes, rows: Matrix, k: int, pivot: ir.Value) -> None:
    """Exchange row `k` with row `pivot`, which is not above it."""
    old = rows[k]
    for i in range(k + 1, len(rows)):
        here = b.eq(pivot, i)
        rows[k] = [b.select(here, x, y) for x, y in zip(rows[i], rows[k], strict=True)]
        rows[i] = [b.select(here, x, y) for x, y in zip(old, rows[i], strict=True)]


def permutation_of(b: Lanes, pivots: Values, size: int) -> Values:
    """Where the rows are after rows 0, 1, ... have been exchanged with `pivots`, one after another."""
    order: Values = [b.const(t.I32, i) for i in range(size)]
    for i, pivot in enumerate(pivots):
        here = [b.eq(pivot, p) for p in range(size)]
        old = order[i]
        for p in range(size):
            if p != i:
                order[i] = b.select(here[p], order[p], order[i])
                order[p] = b.select(here[p], old, order[p])
    return order


# -- Cholesky --------------------------------------------------------------------------------------------------------
def factor_cholesky(b: Lanes, a: Matrix) -> Matrix:
    """L of A = L L^T with zeros above the diagonal, of the lower triangle of A; NaN where A is not positive definite.

    NaN in A goes where LAPACK's potrf would take it.
    """
    n = len(a)
    lower: Matrix = [[b.like(a[0][0], 0.0)] * n for _ in range(n)]
    failed: ir.Value = ir.Constant(t.I1, 0)
    for j in range(n):
        square = less_products(b, a[j][j], [(x, x) for x in lower[j][:j]])
        failed = b.or_(failed, b.le(square, 0.0))
        lower[j][j] = b.sqrt(square)
        for i in range(j + 1, n):
            rest = less_products(b, a[i][j], list(zip(lower[i][:j], lower[j][:j], strict=True)))
            lower[i][j] = b.div(rest, lower[j][j])
    for i in range(n):
        lower[i][: i + 1] = [b.select(failed, float("nan"), x) for x in lower[i][: i + 1]]
    return lower


# -- systems ---------------------------------------------------------------------------------------------------------
def solve_triangular(b: Lanes, a: Matrix, rhs: Matrix, lower: bool, unit_diagonal: bool) -> Matrix:
    """X of A X = B, where A is the lower or the upper triangle of `a`."""
    n = len(a)
    out: Matrix = [[] for _ in range(n)]
    for i in range(n) if lower else reversed(range(n)):
        known = range(i) if lower else range(n - 1, i, -1)
        for column, x in enumerate(rhs[i]):
            x = less_products(b, x, [(a[i][j], out[j][column]) for j in known])
            out[i].append(x if unit_diagonal else b.div(x, a[i][i]))
    return out


def solve_tridiagonal(b: Lanes, low: Values, diagonal: Values, high: Values, rhs: Matrix) -> Matrix:
    """X of A X = B, where `low[i]`, `diagonal[i]` and `high[i]` are left of, on and right of the diagonal in row i.

    As LAPACK's gtsv: of two rows the one with the larger element is the pivot. NaN where A is singular.
    """
    n = len(diagonal)
    zero = b.like(diagonal[0], 0.0)
    top, singular = [diagonal[0], high[0], zero, *rhs[0]], ir.Constant(t.I1, 0)
    done: Matrix = []
    for i in range(1, n):
        first = [low[i], diagonal[i], high[i] if i + 1 < n else zero, *rhs[i]]
        swap = b.lt(b.fabs(top[0]), b.fabs(first[0]))
        pivot = [b.select(swap, x, y) for x, y in zip(first, top, strict=True)]
        other = [b.select(swap, y, x) for x, y in zip(first, top, strict=True)]
        singular = b.or_(singular, b.eq(pivot[0], 0.0))
        factor = b.neg(b.div(other[0], pivot[0]))
        top = [b.fma(factor, x, y) for x, y in zip(pivot, other, strict=True)]
        top = [*top[1:3], zero, *top[3:]]
        done.append(pivot)
    singular = b.or_(singular, b.eq(top[0], 0.0))
    out: Matrix = [[b.div(x, top[0]) for x in top[3:]]]
    for d, u, v, *known in reversed(done):
        values = [[(u, below)] for below in out[0]]
        if len(out) > 1:
            values = [[*pairs, (v, below)] for pairs, below in zip(values, out[1], strict=True)]
        out.insert(0, [b.div(less_products(b, x, pairs), d) for x, pairs in zip(known, values, strict=True)])
    return [[b.select(singular, float("nan"), x) for x in row] for row in out]
