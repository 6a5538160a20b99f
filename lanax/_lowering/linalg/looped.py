"""LU and Cholesky factors and triangular systems in loops over memory, for matrices too large to unroll. The matrices
are in scratch of their own, so every lane may write."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from lanax._llvm import types as t
from lanax._llvm.memory import Index
from lanax._lowering.arrays import Memory
from lanax._lowering.emitter import Emitter
from lanax._lowering.linalg.gauss import smallest

Position = tuple[Index, ...]
#: An element of a matrix, by row and column.
Read = Callable[[Index, Index], ir.Value]


def _after(b: Emitter, first: Index, end: int, fn: Callable[[Index], None]) -> None:
    """`fn(i)` for i = first, first + 1, ..., end - 1."""

    def body(i: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        fn(b.iadd(first, i))
        return []

    trips = b.isub(end, first) if isinstance(first, int) else b.sub(b.i64(end), first)
    b.count(trips, [], body)


def _less_products(b: Emitter, x: ir.Value, count: Index, pair: Callable[[Index], tuple[ir.Value, ir.Value]],
                   varying: bool) -> ir.Value:
    """x minus the products of the pairs 0, 1, ..., count - 1."""

    def body(i: ir.Value, values: list[ir.Value]) -> list[ir.Value]:
        u, v = pair(i)
        return [b.fma(b.neg(u), v, values[0])]

    return b.count(count, [b.splat(x) if varying else x], body)[0]


def factor_lu_in_memory(b: Emitter, a: Memory, pivots: Memory, order: Memory, at: Position) -> None:
    """Replace the matrix at `at` by L and U, and write its pivots and its permutation. As `factor_lu`."""
    m, n = a.shape[-2:]
    kind = t.lane_type(order.dtype).lane
    assert isinstance(kind, ir.IntType)
    b.for_each((m,), lambda i: order.put((*at, i), b.const(kind, i) if isinstance(i, int) else b.resize_int(i, kind)))

    def column(k: Index) -> None:
        largest, pivot = _find_pivot(b, a, at, k)
        pivots.put((*at, k), b.resize_int(pivot, kind))
        for memory, places in ((a, n), (order, None)):
            _swap(b, memory, at, k, pivot, places)
        divisor = b.select(b.ge(largest, smallest(largest)), a.at(*at, k, k), 1.0)
        _after(b, b.iadd(k, 1), m, lambda i: row(k, i, divisor))

    def row(k: Index, i: Index, divisor: ir.Value) -> None:
        factor = b.div(a.at(*at, i, k), divisor)
        a.put((*at, i, k), factor)
        less = b.neg(factor)
        _after(b, b.iadd(k, 1), n,
               lambda j: a.put((*at, i, j), b.fma(less, a.at(*at, k, j), a.at(*at, i, j))))

    _after(b, 0, min(m, n), column)


def _find_pivot(b: Emitter, a: Memory, at: Position, k: Index) -> tuple[ir.Value, ir.Value]:
    """The largest size in column `k` from row `k` on, and the first row that has it, as i64."""

    def body(i: ir.Value, values: list[ir.Value]) -> list[ir.Value]:
        row = b.add(i, k)
        size = b.fabs(a.at(*at, row, k))
        larger = b.gt(size, values[0])
        return [b.select(larger, size, values[0]), b.select(larger, row, values[1])]

    first = b.i64(k) if isinstance(k, int) else k
    start = [b.fabs(a.at(*at, k, k)), first]
    largest, pivot = b.count(b.sub(b.i64(a.shape[-2]), first), [b.splat(x) if a.varying else x for x in start], body)
    return largest, pivot


def _swap(b: Emitter, x: Memory, at: Position, k: Index, pivot: ir.Value, places: int | None) -> None:
    """Exchange element, or row, `k` with `pivot`, which differs from lane to lane."""

    def exchange(*j: Index) -> None:
        upper, lower = x.at(*at, k, *j), x.at(*at, pivot, *j)
        x.put((*at, pivot, *j), upper)
        x.put((*at, k, *j), lower)

    if places is None:
        exchange()
    else:
        _after(b, 0, places, exchange)


def factor_cholesky_in_memory(b: Emitter, read: Read, out: Memory, at: Position) -> None:
    """Write L of A = L L^T at `at`, where `out` is zero. As `factor_cholesky`."""
    n = out.shape[-1]

    def rest(i: Index, j: Index) -> ir.Value:
        return _less_products(b, read(i, j), j, lambda k: (out.at(*at, i, k), out.at(*at, j, k)), out.varying)

    def column(j: ir.Value, values: list[ir.Value]) -> list[ir.Value]:
        square = rest(j, j)
        root = b.sqrt(square)
        out.put((*at, j, j), root)
        _after(b, b.iadd(j, 1), n, lambda i: out.put((*at, i, j), b.div(rest(i, j), root)))
        return [b.or_(values[0], b.le(square, 0.0))]

    no: ir.Value = ir.Constant(t.I1, 0)
    (failed,) = b.count(n, [b.splat(no) if out.varying else no], column)

    def mark(i: Index) -> None:
        b.count(b.add(i, b.i64(1)), [], lambda j, _: _nothing(
            out.put((*at, i, j), b.select(failed, float("nan"), out.at(*at, i, j)))))

    _after(b, 0, n, mark)


def _nothing(_: None) -> list[ir.Value]:
    return []


def solve_triangular_in_memory(b: Emitter, read: Read, n: int, x: Memory, place: Callable[[Index], Position],
                               lower: bool, unit_diagonal: bool) -> None:
    """Replace one right-hand side, whose element i is at `place(i)` of `x`, by the solution. As `solve_triangular`."""

    def turned(i: Index) -> Index:
        return i if lower else b.isub(n - 1, i) if isinstance(i, int) else b.sub(b.i64(n - 1), i)

    def row(i: Index) -> None:
        here = turned(i)
        value = _less_products(b, x.at(*place(here)), i,
                               lambda k: (read(here, turned(k)), x.at(*place(turned(k)))), x.varying)
        x.put(place(here), value if unit_diagonal else b.div(value, read(here, here)))

    _after(b, 0, n, row)
