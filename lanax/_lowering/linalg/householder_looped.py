"""QR factors and tridiagonal forms by Householder reflections in loops over memory, for matrices too large to unroll.

As in `householder`: of the vector of a reflection what follows the one is kept, in the column that it has cleared. The
matrices are in scratch of their own, so every lane may write.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from lanax._llvm import types as t
from lanax._llvm.memory import Index
from lanax._lowering.arrays import Memory
from lanax._lowering.emitter import Emitter
from lanax._lowering.fold import each
from lanax._lowering.linalg.householder import power_of_two
from lanax._lowering.linalg.loops import (
    Values,
    as_i64,
    each_block,
    each_of,
    like_lanes,
    span,
    swap_elements,
    turned,
    window,
)

#: Elements of a vector, by position.
Read = Callable[[Index], ir.Value]


def reflect_in_memory(b: Emitter, a: Memory, k: Index, row: Index) -> ir.Value:
    """Clear column `k` below `row`: leaves beta and v there; gives tau. As `householder.reflect`."""
    end, alpha = a.shape[0], a.at(row, k)
    below = b.iadd(row, 1)

    def measure(i: Index, values: Values) -> Values:
        size = b.fabs(a.at(i, k))
        return [b.select(b.gt(size, values[0]), size, values[0]), b.or_(values[1], b.ne(a.at(i, k), 0.0))]

    no: ir.Value = ir.Constant(t.I1, 0)
    largest, some = span(b, below, end, like_lanes(b, a, b.fabs(alpha), no), measure)
    up, down = power_of_two(b, largest)
    head = b.mul(alpha, down)

    def add_square(i: Index, values: Values) -> Values:
        x, (total, rest) = b.mul(a.at(i, k), down), values
        new = b.fma(x, x, total)
        return [new, b.add(rest, b.fma(x, x, b.sub(total, new)))]  # and what rounding has taken away

    square, rest = span(b, below, end, like_lanes(b, a, b.mul(head, head), b.like(head, 0.0)), add_square)
    beta = b.neg(b.copysign(b.sqrt(b.add(square, rest)), head))
    scale = b.div(1.0, b.select(some, b.sub(head, beta), 1.0))
    each_of(b, below, end, lambda i: a.put((i, k), b.mul(b.mul(a.at(i, k), down), scale)))
    a.put((row, k), b.select(some, b.mul(beta, up), alpha))
    return b.select(some, b.div(b.sub(beta, head), b.select(some, beta, 1.0)), 0.0)


def apply_in_memory(b: Emitter, v: Read, tau: ir.Value, c: Memory, row: Index, column: Index) -> None:
    """Apply a reflection, whose v(i) is for row i, to the rows of `c` from `row` and the columns from `column` on."""

    def block(columns: list[Index]) -> None:
        def add(i: Index, totals: Values) -> Values:
            x = v(i)
            return [b.fma(x, c.at(i, j), total) for j, total in zip(columns, totals, strict=True)]

        below = b.iadd(row, 1)
        totals = span(b, below, c.shape[0], like_lanes(b, c, *(c.at(row, j) for j in columns)), add)
        totals = [b.mul(tau, total) for total in totals]

        def subtract(i: Index) -> None:
            x = b.neg(v(i))
            for j, total in zip(columns, totals, strict=True):
                c.put((i, j), b.fma(x, total, c.at(i, j)))

        for j, total in zip(columns, totals, strict=True):
            c.put((row, j), b.sub(c.at(row, j), total))
        each_of(b, below, c.shape[0], subtract)

    each_block(b, column, c.shape[1], block)


def factor_qr_in_memory(b: Emitter, a: Memory, taus: Memory) -> None:
    """Replace `a` by R and the reflections of Q, and write their taus."""

    def column(k: Index) -> None:
        tau = reflect_in_memory(b, a, k, k)
        taus.put((k,), tau)
        apply_in_memory(b, lambda i: a.at(i, k), tau, a, k, b.iadd(k, 1))

    each_of(b, 0, min(a.shape), column)


def factor_pivoted_qr_in_memory(b: Emitter, a: Memory, order: Memory, taus: Memory) -> None:
    """As `factor_qr_in_memory` of the columns of `a` in the order that is written to `order`, counted from one: those
    that are not zero in `order` come first, then always the longest of what is left, as in LAPACK's geqp3."""
    fixed = _move_fixed_to_front(b, a, order)

    def column(k: Index) -> None:
        pivot = _longest_column(b, a, k, fixed)
        _swap_columns(b, a, order, k, pivot)
        tau = reflect_in_memory(b, a, k, k)
        taus.put((k,), tau)
        apply_in_memory(b, lambda i: a.at(i, k), tau, a, k, b.iadd(k, 1))

    each_of(b, 0, min(a.shape), column)


def _move_fixed_to_front(b: Emitter, a: Memory, order: Memory) -> ir.Value:
    """Number the columns, after those that must come first have been moved there; gives how many those are."""
    kind = t.lane_type(order.dtype).lane
    assert isinstance(kind, ir.IntType)

    def column(j: Index, values: Values) -> Values:
        (count,) = values
        first = b.ne(order.at(j), 0)
        order.put((j,), b.resize_int(as_i64(b, b.iadd(j, 1)), kind))
        _swap_columns(b, a, order, j, b.select(first, count, j))
        return [b.select(first, b.add(count, 1), count)]

    return span(b, 0, a.shape[1], like_lanes(b, a, b.i64(0)), column)[0]


def _swap_columns(b: Emitter, a: Memory, order: Memory, k: Index, pivot: ir.Value) -> None:
    """Exchange column `k`, and its number, with column `pivot`, which may differ from lane to lane."""
    swap_elements(order, (k,), (pivot,))
    each_of(b, 0, a.shape[0], lambda i: swap_elements(a, (i, k), (i, pivot)))


def _longest_column(b: Emitter, a: Memory, k: Index, fixed: ir.Value) -> ir.Value:
    """The first of the longest columns from row and column `k` on; `k` itself where that is fixed."""
    m, n = a.shape
    zero = b.constant(0, a.dtype)

    def size_of(j: Index, values: Values) -> Values:
        return span(b, k, m, values, lambda i, v: [_larger(b, v[0], b.fabs(a.at(i, j)))])

    (largest,) = span(b, k, n, like_lanes(b, a, zero), size_of)
    down = power_of_two(b, largest)[1]

    def compare(j: Index, values: Values) -> Values:
        def add_square(i: Index, total: Values) -> Values:
            x = b.mul(a.at(i, j), down)
            return [b.fma(x, x, total[0])]

        (square,) = span(b, k, m, like_lanes(b, a, zero), add_square)
        longer = b.gt(square, values[0])
        return [b.select(longer, square, values[0]), b.select(longer, j, values[1])]

    start = like_lanes(b, a, b.like(zero, -1.0), as_i64(b, k))
    _, pivot = span(b, k, n, start, compare)
    return b.select(b.lt(as_i64(b, k), fixed), as_i64(b, k), pivot)


def _larger(b: Emitter, x: ir.Value, y: ir.Value) -> ir.Value:
    return b.select(b.gt(y, x), y, x)


def form_q_in_memory(b: Emitter, a: Memory, taus: Memory, q: Memory) -> None:
    """Write the leading columns of Q to `q`."""
    count = taus.shape[0]
    set_identity(b, q)

    def reflection(i: Index) -> None:
        k = b.isub(count - 1, i) if isinstance(i, int) else b.sub(b.i64(count - 1), i)
        apply_in_memory(b, lambda i: a.at(i, k), taus.at(k), q, k, k)

    each_of(b, 0, count, reflection)


def multiply_q_in_memory(b: Emitter, a: Memory, taus: Memory, c: Memory, left: bool, transpose: bool) -> None:
    """Replace `c` by Q C, or Q^T C; or from the right C Q, or C Q^T."""
    count, out = taus.shape[0], c if left else turned(c)

    def reflection(i: Index) -> None:
        k = i if left == transpose else b.sub(b.i64(count - 1), i)
        apply_in_memory(b, lambda i: a.at(i, k), taus.at(k), out, k, 0)

    each_of(b, 0, count, reflection)


def set_identity(b: Emitter, q: Memory) -> None:
    """Write ones on the diagonal and zeros beside it."""
    zero, one = (b.constant(x, q.dtype) for x in (0, 1))
    each(b, q.shape, lambda *i: q.put(i, zero))
    each_of(b, 0, min(q.shape), lambda i: q.put((i, i), one))


def make_hessenberg(b: Emitter, a: Memory, taus: Memory) -> None:
    """Replace `a` by H of A = Q H Q^T, which is zero below the subdiagonal, and there by the reflections of Q. As
    LAPACK's gehrd."""
    n = a.shape[0]

    def column(k: Index) -> None:
        below = b.iadd(k, 1)
        tau = reflect_in_memory(b, a, k, below)
        taus.put((k,), tau)
        for x, first in ((turned(a), 0), (a, below)):
            apply_in_memory(b, lambda i: a.at(i, k), tau, x, below, first)

    each_of(b, 0, n - 1, column)


def make_tridiagonal(b: Emitter, a: Memory, diagonal: Memory, beside: Memory, taus: Memory) -> None:
    """Reduce the symmetric matrix `a` to Q T Q^T. T goes to two vectors; in `a` stay, below the subdiagonal, the
    reflections of Q. As LAPACK's sytrd of the lower triangle; both triangles must be there."""
    n = a.shape[0]
    product = b.allocate((n,), a.dtype, a.varying)

    def column(k: Index) -> None:
        below = b.iadd(k, 1)
        tau = reflect_in_memory(b, a, k, below)
        taus.put((k,), tau)
        beside.put((k,), a.at(below, k))
        a.put((below, k), b.like(tau, 1.0))
        half = _multiply(b, a, k, below, tau, product)
        shift = b.mul(b.mul(-0.5, tau), half)
        each_of(b, below, n, lambda i: product.put((i,), b.fma(shift, a.at(i, k), product.at(i))))

        def subtract(columns: list[Index]) -> None:
            pairs = [(b.neg(a.at(j, k)), b.neg(product.at(j))) for j in columns]

            def row(i: Index) -> None:
                v, w = a.at(i, k), product.at(i)
                for j, (v_j, w_j) in zip(columns, pairs, strict=True):
                    a.put((i, j), b.fma(v, w_j, b.fma(w, v_j, a.at(i, j))))

            each_of(b, below, n, row)

        each_block(b, below, n, subtract)
        diagonal.put((k,), a.at(k, k))
        a.put((below, k), beside.at(k))

    each_of(b, 0, n - 1, column)
    diagonal.put((n - 1,), a.at(n - 1, n - 1))


def _multiply(b: Emitter, a: Memory, k: Index, first: Index, tau: ir.Value, product: Memory) -> ir.Value:
    """Write tau A v, where v is column `k` from row `first` on; gives the dot product of that with v."""
    n, zero = a.shape[0], b.like(tau, 0.0)

    def rows(rows: list[Index]) -> None:
        totals = span(b, first, n, like_lanes(b, a, *[zero] * len(rows)), lambda j, totals: [
            b.fma(a.at(j, k), a.at(i, j), total) for i, total in zip(rows, totals, strict=True)])
        for i, total in zip(rows, totals, strict=True):
            product.put((i,), b.mul(tau, total))

    each_block(b, first, n, rows)
    return span(b, first, n, like_lanes(b, a, zero), lambda i, v: [b.fma(a.at(i, k), product.at(i), v[0])])[0]


def form_tridiagonal_q(b: Emitter, a: Memory, taus: Memory, q: Memory) -> None:
    """Write Q of `make_tridiagonal`."""
    n = a.shape[0]
    set_identity(b, q)
    inner = (n - 1, n - 1)
    form_q_in_memory(b, window(b, a, 1, 0, shape=inner), taus, window(b, q, 1, 1, shape=inner))
