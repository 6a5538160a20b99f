"""Schur form of a general real matrix by Francis' double QR steps, in loops over memory.

As in `spectral_looped`, all lanes go through the same reflections, and one that is done is not turned.
"""

from __future__ import annotations

from llvmlite import ir

from lanax._llvm import types as t
from lanax._llvm.memory import Index
from lanax._lowering.arrays import Memory
from lanax._lowering.emitter import Emitter
from lanax._lowering.fold import each
from lanax._lowering.linalg.householder_looped import form_tridiagonal_q, make_hessenberg
from lanax._lowering.linalg.jacobi import epsilon
from lanax._lowering.linalg.loops import Values, as_i64, each_of, like_lanes, turned, window
from lanax._lowering.linalg.spectral_looped import measure

#: Each tenth step takes other shifts, in case that the usual ones lead nowhere. Two to four steps are usual.
_EXCEPTIONAL = 10


def make_schur(b: Emitter, a: Memory, form: Memory, vectors: Memory | None, active: ir.Value | None) -> None:
    """Write T of A = Z T Z^T, with blocks of up to 2 x 2 on the diagonal in LAPACK's standard form, and Z; `a` is lost.
    NaN where A has NaN or infinities, or where no eigenvalue was found in time.

    Golub and Van Loan, Matrix Computations, 7.5. A row and a column of zeros more let the last reflection be like
    all others.
    """
    n = a.shape[0]
    up, down, finite = measure(b, a)
    zero = b.constant(0, a.dtype)
    h, taus = b.allocate((n + 1, n + 1), a.dtype, a.varying), b.allocate((n - 1,), a.dtype, a.varying)
    z = b.allocate((n + 1, n), a.dtype, a.varying) if vectors is not None else None  # the vectors as rows
    each(b, a.shape, lambda *i: a.put(i, b.mul(a.at(*i), down)))
    make_hessenberg(b, a, taus)
    for x in [x for x in (h, z) if x is not None]:
        each(b, x.shape, lambda *i, x=x: x.put(i, zero))
    each_of(b, 0, n, lambda j: each_of(b, 0, b.select(b.lt(j, n - 2), b.add(j, 2), n), lambda i: h.put(
        (i, j), a.at(i, j))))
    if z is not None:
        form_tridiagonal_q(b, a, taus, turned(window(b, z, 0, 0, shape=(n, n))))
    failed = _find_eigenvalues(b, h, z, active)
    good = b.and_(finite, b.not_(failed))
    each(b, form.shape, lambda *i: form.put(i, b.select(good, b.add(b.mul(h.at(*i), up), 0.0), float("nan"))))
    if z is not None and vectors is not None:
        each(b, vectors.shape, lambda i, j: vectors.put((i, j), b.select(good, b.add(z.at(j, i), 0.0), float("nan"))))


def _find_eigenvalues(b: Emitter, h: Memory, z: Memory | None, active: ir.Value | None) -> ir.Value:
    """Split off one eigenvalue after the other, or two, at the end; gives the lanes in which that has failed."""
    n = h.shape[0] - 1
    most = 30 * max(10, n)  # as in LAPACK
    no: ir.Value = ir.Constant(t.I1, 0)
    everywhere = b.not_(no) if active is None or not h.varying else active

    def row(i: ir.Value, values: Values) -> Values:
        taken, failed = values  # whether row `last` belongs to a pair that has been split off
        last = b.sub(n - 1, i)
        above = b.sub(last, 1)
        before = b.select(b.gt(above, 0), b.sub(above, 1), b.i64(0))

        def left() -> ir.Value:
            both = b.and_(_coupled(b, h, above), _coupled(b, h, before))
            return b.and_(b.and_(b.gt(above, 0), everywhere), b.and_(b.not_(taken), both))

        def trip(values: Values) -> tuple[Values, ir.Value]:
            count, on = values
            _step(b, h, z, _first_of_block(b, h, last, on), last, on, count)
            count, on = b.add(count, 1), left()
            return [count, on], b.and_(b.lt(count, most), b.any(b.to_mask(on)))

        on = left()
        _, on = b.loop(b.any(b.to_mask(on)), [b.const(t.I32, 0), *like_lanes(b, h, on)], trip)
        pair = b.and_(b.not_(taken), _coupled(b, h, above))
        h.put((last, above), b.select(pair, h.at(last, above), 0.0))
        _split_pair(b, h, z, above, last, pair)
        return [pair, b.or_(failed, on)]

    return b.count(n - 1, like_lanes(b, h, no, no), row)[1]


def _coupled(b: Emitter, h: Memory, i: Index) -> ir.Value:
    """Whether row i + 1 still depends on row i."""
    following = b.iadd(i, 1)
    floor = 2.0 ** (-80 if h.dtype.itemsize == 8 else -50)  # of the largest element: far less than its rounding
    ends = b.add(b.fabs(h.at(i, i)), b.fabs(h.at(following, following)))
    return b.gt(b.fabs(h.at(following, i)), b.fma(ends, epsilon(h.dtype) / 2, floor))


def _first_of_block(b: Emitter, h: Memory, last: ir.Value, on: ir.Value) -> ir.Value:
    """Where, in the lanes that are on, the rows begin that depend on each other and on row `last`; what couples them to
    the rows above becomes zero."""
    kind = ir.IntType(8 * h.dtype.itemsize)

    def look(i: ir.Value, values: Values) -> Values:
        apart, following = b.and_(on, b.not_(_coupled(b, h, i))), b.add(i, 1)
        h.put((following, i), b.select(apart, 0.0, h.at(following, i)))
        return [b.select(apart, b.resize_int(following, kind), values[0])]

    return b.count(b.sub(last, 1), like_lanes(b, h, b.const(kind, 0)), look)[0]


def _step(b: Emitter, h: Memory, z: Memory | None, first: ir.Value, last: ir.Value, on: ir.Value,
          count: ir.Value) -> None:
    """One double step on rows `first` to `last`, at least three, in the lanes that are on."""
    kind, n = ir.IntType(8 * h.dtype.itemsize), h.shape[0] - 1
    shift, squared = _shifts(b, h, last, count)

    def reflection(k: Index) -> None:
        k = as_i64(b, k)
        rows: list[Index] = [k, b.add(k, 1), b.add(k, 2)]
        row = b.resize_int(k, kind)
        begins, inside = b.eq(row, first), b.and_(on, b.ge(row, first))
        before = b.select(b.gt(k, 0), b.sub(k, 1), b.i64(0))
        old = [h.at(i, before) for i in rows]
        column = _first_column(b, h, rows, shift, squared)
        third = b.select(b.lt(k, b.sub(last, 1)), old[2], 0.0)
        x = [b.select(begins, v, w) for v, w in zip(column, [*old[:2], third], strict=True)]
        beta, v, tau = _reflect(b, x)
        tau = b.select(inside, tau, 0.0)
        chased = b.and_(inside, b.not_(begins))
        for i, new, was in zip(rows, (beta, 0.0, 0.0), old, strict=True):
            h.put((i, before), b.select(chased, new, was))
        sides: list[tuple[Memory, Index, Index]] = [(h, k, n), (turned(h), 0, b.add(last, 1))]
        for x, start, end in [*sides, *([(z, 0, n)] if z is not None else [])]:
            each_of(b, start, end, lambda j, x=x: _apply(b, x, rows, j, v, tau))

    each_of(b, 0, last, reflection)


def _shifts(b: Emitter, h: Memory, last: ir.Value, count: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The real part of two shifts, and the square of their imaginary part. As in LAPACK's lahqr: the eigenvalues of the
    last two rows or, where those are real, twice the one that is nearer to the last element; or what leads out of a
    cycle."""
    above = b.sub(last, 1)
    p, q, r, s = h.at(above, above), h.at(above, last), h.at(last, above), h.at(last, last)
    mean, half = b.mul(0.5, b.add(p, s)), b.mul(0.5, b.sub(p, s))
    square = b.neg(b.fma(half, half, b.mul(q, r)))
    root = b.sqrt(b.fabs(square))
    real = b.add(mean, b.select(b.lt(half, 0.0), root, b.neg(root)))
    size = b.fabs(r)
    exceptional = b.eq(b.ir.urem(count, b.like(count, _EXCEPTIONAL)), _EXCEPTIONAL - 1)
    shift = b.select(b.ge(square, 0.0), mean, real)
    squared = b.select(b.ge(square, 0.0), square, 0.0)
    return (b.select(exceptional, b.fma(0.75, size, s), shift),
            b.select(exceptional, b.mul(b.mul(0.4375, size), size), squared))


def _first_column(b: Emitter, h: Memory, rows: list[Index], shift: ir.Value, squared: ir.Value) -> Values:
    """The first column of (H - shift)^2 + squared, where the block begins at the first of the rows."""
    i, j, k = rows
    p, q, r, s = h.at(i, i), h.at(i, j), h.at(j, i), h.at(j, j)
    near = b.sub(p, shift)
    return [b.fma(q, r, b.fma(near, near, squared)), b.mul(r, b.add(near, b.sub(s, shift))), b.mul(r, h.at(k, j))]


def _reflect(b: Emitter, x: Values) -> tuple[ir.Value, Values, ir.Value]:
    """beta, v and tau of the reflection that leaves of three numbers the first."""
    largest = b.fabs(x[0])
    for v in x[1:]:
        largest = b.select(b.gt(b.fabs(v), largest), b.fabs(v), largest)
    nothing = b.eq(b.add(b.fabs(x[1]), b.fabs(x[2])), 0.0)
    size = b.select(nothing, 1.0, largest)
    head, *tail = (b.div(v, size) for v in x)
    norm = b.sqrt(b.fma(head, head, b.fma(tail[0], tail[0], b.mul(tail[1], tail[1]))))
    beta = b.select(nothing, 1.0, b.select(b.lt(head, 0.0), norm, b.neg(norm)))
    tau = b.select(nothing, 0.0, b.div(b.sub(beta, head), beta))
    scale = b.div(1.0, b.select(nothing, 1.0, b.sub(head, beta)))
    return b.select(nothing, x[0], b.mul(beta, size)), [b.mul(v, scale) for v in tail], tau


def _apply(b: Emitter, x: Memory, rows: list[Index], j: Index, v: Values, tau: ir.Value) -> None:
    """Apply a reflection to three rows of a column of `x`."""
    old = [x.at(i, j) for i in rows]
    total = b.mul(tau, b.fma(v[1], old[2], b.fma(v[0], old[1], old[0])))
    x.put((rows[0], j), b.sub(old[0], total))
    for i, w, value in zip(rows[1:], v, old[1:], strict=True):
        x.put((i, j), b.fma(b.neg(w), total, value))


def _split_pair(b: Emitter, h: Memory, z: Memory | None, i: ir.Value, j: ir.Value, pair: ir.Value) -> None:
    """Turn two rows, in the lanes in which they are a pair, so that their block becomes triangular, or has equal
    elements on its diagonal where its eigenvalues are not real. As LAPACK's lanv2."""
    n = h.shape[0] - 1
    p, q, r, s = h.at(i, i), h.at(i, j), h.at(j, i), h.at(j, j)
    half = b.mul(0.5, b.sub(p, s))
    square = b.fma(half, half, b.mul(q, r))
    real = b.ge(square, 0.0)
    root = b.sqrt(b.fabs(square))
    # One of the columns of the triangular form is an eigenvector; or the angle that makes the diagonal equal.
    to_real = (b.add(half, b.select(b.lt(half, 0.0), b.neg(root), root)), r)
    both, apart = b.add(q, r), b.add(half, half)
    length = b.sqrt(b.fma(both, both, b.mul(apart, apart)))
    length = b.select(b.eq(length, 0.0), 1.0, length)
    wide = b.sqrt(b.mul(0.5, b.add(b.div(b.fabs(both), length), 1.0)))
    narrow = b.div(half, b.mul(length, wide))
    to_equal = (wide, b.select(b.lt(both, 0.0), narrow, b.neg(narrow)))
    x, y = (b.select(real, v, w) for v, w in zip(to_real, to_equal, strict=True))
    norm = b.sqrt(b.fma(x, x, b.mul(y, y)))
    turns = b.and_(pair, b.gt(norm, 0.0))
    norm = b.select(turns, norm, 1.0)
    cosine, sine = b.select(turns, b.div(x, norm), 1.0), b.select(turns, b.div(y, norm), 0.0)

    def rotate(x: Memory, first: Index, end: Index) -> None:
        def pair_of(k: Index) -> None:
            u, v = x.at(i, k), x.at(j, k)
            x.put((i, k), b.fma(cosine, u, b.mul(sine, v)))
            x.put((j, k), b.fma(cosine, v, b.neg(b.mul(sine, u))))

        each_of(b, first, end, pair_of)

    rotate(h, i, n)
    rotate(turned(h), 0, b.add(j, 1))
    if z is not None:
        rotate(z, 0, n)
    middle = b.mul(0.5, b.add(h.at(i, i), h.at(j, j)))
    equal = b.and_(pair, b.not_(real))
    for k in (i, j):
        h.put((k, k), b.select(equal, middle, h.at(k, k)))
    h.put((j, i), b.select(b.and_(pair, real), 0.0, h.at(j, i)))
