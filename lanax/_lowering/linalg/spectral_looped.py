"""Eigenvalues of symmetric matrices, and singular values, in loops over memory, for matrices too large to unroll.

All lanes go through the same rotations; one that is done turns by nothing until the others are.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from llvmlite import ir

from lanax._llvm import types as t
from lanax._llvm.memory import Index
from lanax._lowering.arrays import Memory
from lanax._lowering.emitter import Emitter
from lanax._lowering.fold import each, fold
from lanax._lowering.linalg.householder import power_of_two
from lanax._lowering.linalg.householder_looped import (
    factor_qr_in_memory,
    form_q_in_memory,
    form_tridiagonal_q,
    make_tridiagonal,
    multiply_q_in_memory,
    set_identity,
)
from lanax._lowering.linalg.jacobi import epsilon, orthogonal_turn
from lanax._lowering.linalg.jacobi import turned as turned_pair
from lanax._lowering.linalg.loops import Values, each_of, like_lanes, span, turned, window

#: Trips after which an eigenvalue, or all singular values, are taken as they are; two or three, or eight, are usual.
_STEPS, _SWEEPS = 40, 20
#: Rows up to which the elements of two columns are turned without a loop.
_UNROLL = 8


# -- scale and order -------------------------------------------------------------------------------------------------
def measure(b: Emitter, a: Memory) -> tuple[ir.Value, ir.Value, ir.Value]:
    """A power of two near the largest element of a matrix, its reciprocal, and whether all elements are finite."""
    zero, yes = b.constant(0, a.dtype), ir.Constant(t.I1, 1)

    def visit(values: Values, index: tuple[Index, ...], _: int) -> Values:
        largest, finite = values
        size = b.fabs(a.at(*index))
        return [b.select(b.gt(size, largest), size, largest), b.and_(finite, b.lt(size, float("inf")))]

    largest, finite = fold(b, a.shape, like_lanes(b, a, zero, yes), visit, 1)
    return *power_of_two(b, largest), finite


def _mark(b: Emitter, finite: ir.Value, *results: Memory | None) -> None:
    """Make NaN of everything where the matrix was not finite."""
    for x in [x for x in results if x is not None]:
        each(b, x.shape, lambda *i, x=x: x.put(i, b.select(finite, x.at(*i), float("nan"))))


def _ranks(b: Emitter, values: Memory, ascending: bool) -> Memory:
    """The position of each value in order; of equal ones the first is first."""
    n = values.shape[0]
    kind = _index_of_lanes(values)
    ranks = b.allocate((n,), np.dtype(f"i{kind.width // 8}"), values.varying)

    def rank(i: Index) -> None:
        here = values.at(i)

        def count(total: Values, index: tuple[Index, ...], _: int) -> Values:
            other = values.at(*index)
            before = b.lt(other, here) if ascending else b.gt(other, here)
            earlier = b.ir.icmp_signed("<", _i64(b, index[0]), _i64(b, i))
            first = b.select(earlier, b.eq(other, here), b.like(before, 0))
            return [b.select(b.or_(before, first), b.add(total[0], 1), total[0])]

        (total,) = fold(b, (n,), like_lanes(b, values, b.const(kind, 0)), count, 1)
        ranks.put((i,), total)

    each_of(b, 0, n, rank)
    return ranks


def _i64(b: Emitter, i: Index) -> ir.Value:
    return b.i64(i) if isinstance(i, int) else i


def _rank(b: Emitter, ranks: Memory, i: Index) -> ir.Value:
    """A position as an index."""
    return b.resize_int(ranks.at(i), t.I64)


def _copy_row(b: Emitter, x: Memory | None, i: Index, out: Memory | None, rank: ir.Value) -> None:
    """Copy row i of one matrix to row `rank` of the other, where there are both."""
    if x is not None and out is not None:
        each(b, x.shape[1:], lambda r: out.put((rank, r), _positive_zero(b, x.at(i, r))))


def _positive_zero(b: Emitter, x: ir.Value) -> ir.Value:
    """Without the sign of a zero: it would tell how long other lanes took."""
    return b.add(x, 0.0)


# -- symmetric matrices ----------------------------------------------------------------------------------------------
def symmetric_eigen_in_memory(b: Emitter, a: Memory, values: Memory, vectors: Memory | None,
                              active: ir.Value | None) -> None:
    """Write the eigenvalues in ascending order, and the eigenvectors as columns, of the symmetric matrix `a`, which is
    lost; NaN where that has NaN or infinities.

    The matrix is made tridiagonal, and that diagonal by implicit QR steps with Wilkinson's shift (Golub and Van Loan,
    Matrix Computations, 8.3).
    """
    n = a.shape[0]
    up, down, finite = measure(b, a)
    each(b, a.shape, lambda *i: a.put(i, b.mul(a.at(*i), down)))
    diagonal, taus = (b.allocate((n,), a.dtype, a.varying) for _ in range(2))
    beside = b.allocate((n + 1,), a.dtype, a.varying)  # the element before the first one is written, and never read
    q = b.allocate((n, n), a.dtype, a.varying) if vectors is not None else None  # the vectors as rows
    beside.put((0,), b.constant(0, a.dtype))
    make_tridiagonal(b, a, diagonal, window(b, beside, 1, shape=(n,)), taus)
    if q is not None:
        form_tridiagonal_q(b, a, window(b, taus, 0, shape=(n - 1,)), turned(q))
    _put_larger_first(b, diagonal, window(b, beside, 1, shape=(n - 1,)), q)
    _make_diagonal(b, diagonal, beside, q, active)
    ranks = _ranks(b, diagonal, ascending=True)

    def move(i: Index) -> None:
        rank = _rank(b, ranks, i)
        values.put((rank,), _positive_zero(b, b.mul(diagonal.at(i), up)))
        _copy_row(b, q, i, turned(vectors) if vectors is not None else None, rank)

    each_of(b, 0, n, move)
    _mark(b, finite, values, vectors)


def _put_larger_first(b: Emitter, diagonal: Memory, beside: Memory, q: Memory | None) -> None:
    """Reverse the order of all rows where the last element is larger than the first: steps that end at small elements
    lose least."""
    n = diagonal.shape[0]
    reverse = b.gt(b.fabs(diagonal.at(n - 1)), b.fabs(diagonal.at(0)))

    def exchange(x: ir.Value, y: ir.Value) -> tuple[ir.Value, ir.Value]:
        return b.select(reverse, y, x), b.select(reverse, x, y)

    for x in [x for x in (diagonal, beside, q) if x is not None]:
        last = x.shape[0] - 1
        each_of(b, 0, (last + 1) // 2, lambda i, x=x, last=last: _change_rows(b, x, i, b.sub(last, i), exchange))


def _make_diagonal(b: Emitter, diagonal: Memory, beside: Memory, q: Memory | None, active: ir.Value | None) -> None:
    """Turn a tridiagonal matrix, and the rows of `q` with it, until it is diagonal.

    The element at (i, i + 1) is `beside[i + 1]`."""
    n = diagonal.shape[0]
    eps, floor = epsilon(diagonal.dtype) / 2, 2.0 ** (-1000 if diagonal.dtype.itemsize == 8 else -86)

    def coupled(i: Index) -> ir.Value:
        """Whether rows i and i + 1 still depend on each other (as in LAPACK's steqr)."""
        x = beside.at(b.iadd(i, 1))
        ends = b.fabs(b.mul(b.mul(diagonal.at(i), eps), b.mul(diagonal.at(b.iadd(i, 1)), eps)))
        return b.gt(b.mul(x, x), b.add(ends, floor))

    def eigenvalue(i: Index) -> None:
        last = b.sub(b.i64(n - 1), i)

        def left() -> ir.Value:
            on = coupled(b.isub(last, 1))
            return on if active is None or not diagonal.varying else b.and_(on, active)

        def trip(values: Values) -> tuple[Values, ir.Value]:
            count, on = values
            _step(b, diagonal, beside, q, _first_of_block(b, beside, last, on, coupled), last, on)
            count, on = b.sub(count, 1), left()
            return [count, on], b.and_(b.gt(count, 0), b.any(b.to_mask(on)))

        on = left()
        b.loop(b.any(b.to_mask(on)), [b.const(t.I32, _STEPS), on], trip)

    each_of(b, 0, n - 1, eigenvalue)


def _first_of_block(b: Emitter, beside: Memory, last: ir.Value, on: ir.Value,
                    coupled: Callable[[Index], ir.Value]) -> ir.Value:
    """Where, in the lanes that are on, the rows begin that depend on each other and on row `last`; what is beside the
    rows above becomes zero."""
    kind = _index_of_lanes(beside)

    def look(i: ir.Value, values: Values) -> Values:
        apart, following = b.and_(on, b.not_(coupled(i))), b.add(i, 1)
        beside.put((following,), b.select(apart, 0.0, beside.at(following)))
        return [b.select(apart, b.resize_int(following, kind), values[0])]

    return b.count(b.sub(last, 1), like_lanes(b, beside, b.const(kind, 0)), look)[0]


def _step(b: Emitter, diagonal: Memory, beside: Memory, q: Memory | None, first: ir.Value, last: ir.Value,
          on: ir.Value) -> None:
    """One QR step on rows `first` to `last`, in the lanes that are on."""
    tiny = 2.0 ** (-1010 if diagonal.dtype.itemsize == 8 else -100)  # of smaller squares the sum is not exact
    shift = _shift(b, diagonal.at(b.sub(last, 1)), diagonal.at(last), beside.at(last), on)
    one = b.constant(1, diagonal.dtype)
    zero = b.like(one, 0.0)

    def rotate(i: ir.Value, values: Values) -> Values:
        sine, cosine, moved, g = values
        following, row = b.add(i, 1), b.resize_int(i, _index_of_lanes(diagonal))
        inside, begins = b.and_(on, b.ge(row, first)), b.eq(row, first)
        here, there, link = diagonal.at(i), diagonal.at(following), beside.at(following)
        g, sine = b.select(begins, b.sub(here, shift), g), b.select(begins, 1.0, sine)
        f, part = b.select(inside, b.mul(sine, link), 0.0), b.mul(cosine, link)
        square = b.fma(f, f, b.mul(g, g))
        still = b.or_(b.eq(f, 0.0), b.lt(square, tiny))
        root = b.sqrt(b.select(still, 1.0, square))
        root = b.select(b.lt(g, 0.0), b.neg(root), root)  # so that the cosine is not negative
        sine, cosine = _normalised(b, f, g, b.div(1.0, root))
        sine, cosine = b.select(still, 0.0, sine), b.select(still, 1.0, cosine)
        above = b.select(still, g, root)
        beside.put((i,), b.select(b.and_(inside, b.not_(begins)), above, beside.at(i)))
        rest = b.sub(here, moved)
        turn = b.fma(b.sub(there, rest), sine, b.mul(b.mul(2.0, cosine), part))
        moved = b.mul(sine, turn)
        diagonal.put((i,), b.add(rest, moved))
        if q is not None:
            back, half = b.neg(sine), b.neg(b.div(sine, b.add(cosine, 1.0)))
            _change_rows(b, q, i, following, lambda x, y: turned_pair(b, x, y, back, half))
        return [sine, cosine, moved, b.fma(cosine, turn, b.neg(part))]

    _, _, moved, g = b.count(last, like_lanes(b, diagonal, one, one, zero, zero), rotate)
    diagonal.put((last,), b.sub(diagonal.at(last), moved))
    beside.put((last,), b.select(on, g, beside.at(last)))


def _normalised(b: Emitter, f: ir.Value, g: ir.Value, inverse: ir.Value) -> tuple[ir.Value, ir.Value]:
    """f and g times the inverse of their length, and the sum of their squares mended by one step: an error that both
    share would make the matrix larger or smaller with each rotation. (Measured: without, residuals are 1.3 to 2 times
    as large.)"""
    sine, cosine = b.mul(f, inverse), b.mul(g, inverse)
    off = b.mul(b.fma(b.neg(sine), sine, b.fma(b.neg(cosine), cosine, 1.0)), 0.5)
    return b.fma(sine, off, sine), b.fma(cosine, off, cosine)


def _index_of_lanes(x: Memory) -> ir.IntType:
    """The integers that compare as fast as the elements of `x`."""
    return ir.IntType(8 * x.dtype.itemsize)


def _shift(b: Emitter, above: ir.Value, last: ir.Value, link: ir.Value, on: ir.Value) -> ir.Value:
    """The eigenvalue of the last two rows that is nearer to the last element."""
    link = b.select(on, link, 1.0)
    ratio = b.div(b.mul(0.5, b.sub(above, last)), link)
    root = b.sqrt(b.fma(ratio, ratio, 1.0))
    return b.sub(last, b.div(link, b.add(ratio, b.select(b.lt(ratio, 0.0), b.neg(root), root))))


def _change_rows(b: Emitter, x: Memory, i: Index, j: Index,
                 fn: Callable[[ir.Value, ir.Value], tuple[ir.Value, ir.Value]]) -> None:
    """Replace the elements of rows i and j of `x`, a matrix or a vector, pair by pair."""
    def visit(values: Values, index: tuple[Index, ...], _: int) -> Values:
        for row, value in zip((i, j), fn(x.at(i, *index), x.at(j, *index)), strict=True):
            x.put((row, *index), value)
        return values

    fold(b, x.shape[1:], [], visit, _UNROLL)


# -- singular values -------------------------------------------------------------------------------------------------
def singular_in_memory(b: Emitter, a: Memory, values: Memory, u: Memory | None, vt: Memory | None,
                       active: ir.Value | None) -> None:
    """Write the singular values in descending order, U and the transpose of V, of the matrix `a`, which has no fewer
    rows than columns and is lost; NaN where that has NaN or infinities.

    R of A = Q R is made orthogonal by rotations of its columns (Hestenes; Golub and Van Loan, Matrix Computations,
    8.6), W = R V. As its columns are orthogonal, the reflections that make W triangular are its part of U, complete
    whatever the rank is.
    """
    m, n = a.shape
    up, down, finite = measure(b, a)
    each(b, a.shape, lambda *i: a.put(i, b.mul(a.at(*i), down)))
    taus, norms = (b.allocate((n,), a.dtype, a.varying) for _ in range(2))
    w, ordered = (b.allocate((n, n), a.dtype, a.varying) for _ in range(2))  # the columns of W as rows; W in order
    v = b.allocate((n, n), a.dtype, a.varying) if vt is not None else None
    if m > n:
        factor_qr_in_memory(b, a, taus)
        each(b, (n, n), lambda *i: w.put(i, b.constant(0, a.dtype)))
        each_of(b, 0, n, lambda j: each_of(b, 0, b.iadd(j, 1), lambda i: w.put((j, i), a.at(i, j))))
    else:
        b.copy(turned(a), w)
    if v is not None:
        set_identity(b, v)
    _make_orthogonal(b, w, v, active)
    each_of(b, 0, n, lambda i: norms.put((i,), b.sqrt(_products(b, w, [(i, i)])[0])))
    ranks = _ranks(b, norms, ascending=False)

    def move(i: Index) -> None:
        rank = _rank(b, ranks, i)
        values.put((rank,), b.mul(norms.at(i), up))
        _copy_row(b, w, i, turned(ordered), rank)
        _copy_row(b, v, i, vt, rank)

    each_of(b, 0, n, move)
    if u is not None:
        _write_u(b, a, taus, ordered, u)
    _mark(b, finite, values, u, vt)


def _make_orthogonal(b: Emitter, w: Memory, v: Memory | None, active: ir.Value | None) -> None:
    """Turn pairs of rows of `w`, and those of `v` with them, until all are orthogonal to each other."""
    n, m = w.shape
    yes: ir.Value = ir.Constant(t.I1, 1)
    no: ir.Value = ir.Constant(t.I1, 0)
    start = active if active is not None and w.varying else yes

    def sweep(values: Values) -> tuple[Values, ir.Value]:
        count, on = values

        def pair(i: Index, j: Index, rough: ir.Value) -> ir.Value:
            of_i, of_j, of_both = _products(b, w, [(i, i), (j, j), (i, j)])
            sine, half, far = orthogonal_turn(b, of_i, of_j, of_both, m)
            sine = b.select(on, sine, 0.0)
            for x in (w, v):
                if x is not None:
                    _change_rows(b, x, i, j, lambda x, y: turned_pair(b, x, y, sine, half))
            return b.or_(rough, far)

        (rough,) = span(b, 0, n - 1, like_lanes(b, w, no), lambda i, values: span(
            b, b.iadd(i, 1), n, values, lambda j, values: [pair(i, j, values[0])]))
        count, on = b.sub(count, 1), b.and_(on, rough)
        return [count, on], b.and_(b.gt(count, 0), b.any(b.to_mask(on)))

    if n > 1:
        b.loop(yes, [b.const(t.I32, _SWEEPS), *like_lanes(b, w, start)], sweep)


def _products(b: Emitter, x: Memory, pairs: list[tuple[Index, Index]]) -> Values:
    """The dot products of pairs of rows."""
    def visit(totals: Values, index: tuple[Index, ...], _: int) -> Values:
        return [b.fma(x.at(i, *index), x.at(j, *index), total) for (i, j), total in zip(pairs, totals, strict=True)]

    zero = b.constant(0, x.dtype)
    return fold(b, x.shape[1:], like_lanes(b, x, *[zero] * len(pairs)), visit, _UNROLL)


def _write_u(b: Emitter, a: Memory, taus: Memory, w: Memory, u: Memory) -> None:
    """Write U from W, whose columns are orthogonal, and from the reflections in `a`."""
    m, n = a.shape
    own = b.allocate((n,), a.dtype, a.varying)
    factor_qr_in_memory(b, w, own)
    set_identity(b, u)
    form_q_in_memory(b, w, own, window(b, u, 0, 0, shape=(n, n)))
    each_of(b, 0, n, lambda j: each_of(b, 0, n, lambda i: u.put(
        (i, j), b.select(b.lt(w.at(j, j), 0.0), b.neg(u.at(i, j)), u.at(i, j)))))
    if m > n:
        multiply_q_in_memory(b, a, taus, u, left=True, transpose=False)

