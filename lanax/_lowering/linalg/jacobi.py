"""Eigenvalues of symmetric matrices and singular values by Jacobi's rotations, as lane code. Knows no arrays.

One loop goes through all pairs of rows, or columns, in each trip. A lane that is done is left as it is, however long
others take.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from llvmlite import ir

from lanax._llvm import types as t
from lanax._llvm.control import Control
from lanax._lowering.linalg.gauss import Matrix, Values, transposed
from lanax._lowering.linalg.householder import factor_qr, form_q, multiply_q, power_of_two

#: Trips after which a lane is done in any case; convergence is quadratic, and takes 4 to 7.
_TRIPS = 15


# -- symmetric matrices ----------------------------------------------------------------------------------------------
def symmetric_eigen(b: Control, a: Matrix, lower: bool, vectors: bool,
                    active: ir.Value | None = None) -> tuple[Values, Matrix]:
    """Eigenvalues in ascending order, and the eigenvectors as columns, of one triangle of `a`; NaN where that has NaN
    or infinities. An eigenvector's sign is what comes of the rotations. `active`: lanes that are waited for."""
    n = len(a)
    rows = [[a[max(i, j)][min(i, j)] if lower else a[min(i, j)][max(i, j)] for j in range(n)] for i in range(n)]
    largest, finite = _size(b, [x for i, row in enumerate(rows) for x in row[i:]])
    up, down = power_of_two(b, largest)
    q = _identity(b, a[0][0], n, n) if vectors else []
    rows, q = _diagonalised(b, [[b.mul(x, down) for x in row] for row in rows], q, active)
    columns = [[rows[i][i], *column] for i, column in enumerate(transposed(q) if vectors else [[]] * n)]
    columns = [[b.select(finite, x, float("nan")) for x in column] for column in _sorted(b, columns)]
    return [b.mul(column[0], up) for column in columns], transposed([column[1:] for column in columns])


def _identity(b: Control, like: ir.Value, rows: int, columns: int) -> Matrix:
    one, zero = b.like(like, 1.0), b.like(like, 0.0)
    return [[one if i == j else zero for j in range(columns)] for i in range(rows)]


def epsilon(dtype: np.dtype | type) -> float:
    """The distance from one to the next number."""
    return float(np.finfo(dtype).eps)


def _epsilon_of(x: ir.Value) -> float:
    return epsilon(np.float64 if t.bit_width(x.type) == 64 else np.float32)


def _size(b: Control, values: Values) -> tuple[ir.Value, ir.Value]:
    """The largest size, and whether all are finite."""
    largest, finite = b.like(values[0], 0.0), None
    for x in values:
        size = b.fabs(x)
        largest, small = b.select(b.gt(size, largest), size, largest), b.lt(size, float("inf"))
        finite = small if finite is None else b.and_(finite, small)
    assert finite is not None
    return largest, finite


def _until_done(b: Control, state: Values, active: ir.Value | None,
                trip: Callable[[Values], tuple[Values, ir.Value]]) -> Values:
    """`trip`, which gives the new state and whether a lane must go on, until no lane must."""
    varies = any(isinstance(x.type, ir.VectorType) for x in state)
    yes: ir.Value = ir.Constant(t.I1, 1)

    def step(values: Values) -> tuple[Values, ir.Value]:
        left, on, *state = values
        new, more = trip(state)
        state = [b.select(on, x, y) for x, y in zip(new, state, strict=True)]
        left, on = b.sub(left, 1), b.and_(on, more)
        return [left, on, *state], b.and_(b.gt(left, 0), b.any(b.to_mask(on)))

    start = [yes if active is None else active, *state]
    start = [b.const(t.I32, _TRIPS), *([b.splat(x) for x in start] if varies else [yes, *state])]
    return b.loop(yes, start, step)[2:]


def _diagonalised(b: Control, a: Matrix, q: Matrix, active: ir.Value | None) -> tuple[Matrix, Matrix]:
    """Rotate `a`, whose largest element is near one, until nothing is left beside the diagonal; and `q` with it."""
    n, rows = len(a), len(q)
    places = list(itertools.combinations_with_replacement(range(n), 2))
    enough = _epsilon_of(a[0][0]) / 8

    def matrices(state: Values) -> tuple[Matrix, Matrix]:
        a = [[state[0]] * n for _ in range(n)]
        for (i, j), x in zip(places, state, strict=False):
            a[i][j] = a[j][i] = x
        return a, [state[len(places) + i * n:][:n] for i in range(rows)]

    def values(a: Matrix, q: Matrix) -> Values:
        return [*(a[i][j] for i, j in places), *(x for row in q for x in row)]

    def trip(state: Values) -> tuple[Values, ir.Value]:
        a, q = matrices(state)
        largest = b.like(a[0][0], 0.0)
        for i, j in itertools.combinations(range(n), 2):
            size = b.fabs(a[i][j])
            largest = b.select(b.gt(size, largest), size, largest)
            _rotate(b, a, q, i, j)
        return values(a, q), b.gt(largest, enough)

    return matrices(_until_done(b, values(a, q), active, trip))


def _rotate(b: Control, a: Matrix, q: Matrix, i: int, j: int) -> None:
    """Rotate rows and columns i and j of `a` so that the element at (i, j) vanishes, and the columns of `q`."""
    x = a[i][j]
    tiny = 2.0 ** (-500 if t.bit_width(x.type) == 64 else -60)  # smaller ones have no square
    twice, apart = b.add(x, x), b.sub(a[j][j], a[i][i])
    root = b.sqrt(b.fma(twice, twice, b.mul(apart, apart)))
    nothing = b.le(b.fabs(x), tiny)
    tangent = b.div(b.select(b.lt(apart, 0.0), b.neg(twice), twice), b.select(nothing, 1.0, b.add(b.fabs(apart), root)))
    tangent = b.select(nothing, 0.0, tangent)
    cosine = b.div(1.0, b.sqrt(b.fma(tangent, tangent, 1.0)))
    sine = b.mul(tangent, cosine)
    half = b.div(sine, b.add(cosine, 1.0))
    a[i][i], a[j][j] = b.fma(b.neg(tangent), x, a[i][i]), b.fma(tangent, x, a[j][j])
    a[i][j] = a[j][i] = b.like(x, 0.0)
    for k in range(len(a)):
        if k not in (i, j):
            a[k][i], a[k][j] = a[i][k], a[j][k] = turned(b, a[k][i], a[k][j], sine, half)
    for row in q:
        row[i], row[j] = turned(b, row[i], row[j], sine, half)


def turned(b: Control, u: ir.Value, v: ir.Value, sine: ir.Value, half: ir.Value) -> tuple[ir.Value, ir.Value]:
    """cosine u - sine v, and sine u + cosine v. `half`, the tangent of half the angle, keeps lengths more exactly than
    the cosine would."""
    return b.fma(b.neg(sine), b.fma(half, u, v), u), b.fma(sine, b.fma(b.neg(half), v, u), v)


def _sorted(b: Control, columns: Matrix) -> Matrix:
    """The columns in the order of their first elements, by exchanges of neighbours."""
    columns = list(columns)
    for step in range(len(columns)):
        for i in range(step % 2, len(columns) - 1, 2):
            first, second = columns[i:i + 2]
            swap = b.gt(first[0], second[0])
            columns[i] = [b.select(swap, y, x) for x, y in zip(first, second, strict=True)]
            columns[i + 1] = [b.select(swap, x, y) for x, y in zip(first, second, strict=True)]
    return columns


# -- singular values -------------------------------------------------------------------------------------------------
def singular_values(b: Control, a: Matrix, columns: int, vectors: bool,
                    active: ir.Value | None = None) -> tuple[Values, Matrix, Matrix]:
    """Singular values in descending order, the leading `columns` of U, and the transpose of V, of a matrix with no
    fewer rows than columns; NaN where that has NaN or infinities.

    R of A = Q R is made orthogonal by rotations of its columns (Hestenes; Golub and Van Loan, Matrix Computations,
    8.6), W = R V. As its columns are orthogonal, the reflections that make W triangular are its part of U, complete
    whatever the rank is.
    """
    m, n = len(a), len(a[0])
    largest, finite = _size(b, [x for row in a for x in row])
    up, down = power_of_two(b, largest)
    qr, taus = [[b.mul(x, down) for x in row] for row in a], []
    w = transposed(qr)
    if m > n:
        qr, taus = factor_qr(b, qr)
        w = transposed([[x if i <= j else b.like(x, 0.0) for j, x in enumerate(row)] for i, row in enumerate(qr[:n])])
    w, v = _orthogonalised(b, w, _identity(b, a[0][0], n, n) if vectors else [], active)
    norms = [b.sqrt(_product(b, x, x)) for x in w]
    order = _sorted(b, [[b.neg(x), *of_w, *of_v] for x, of_w, of_v in zip(norms, w, v or [[]] * n, strict=True)])
    values = [b.select(finite, b.mul(b.neg(x[0]), up), float("nan")) for x in order]
    if not vectors:
        return values, [], []
    reflected, own = factor_qr(b, transposed([x[1:n + 1] for x in order]))
    u = _identity(b, a[0][0], m, columns)
    for row, inner in zip(u, form_q(b, reflected, own, n), strict=False):
        row[:n] = [b.select(b.lt(reflected[j][j], 0.0), b.neg(x), x) for j, x in enumerate(inner)]
    u = multiply_q(b, qr, taus, u, left=True, transpose=False)
    u, vt = ([[b.select(finite, x, float("nan")) for x in row] for row in x] for x in (u, [x[n + 1:] for x in order]))
    return values, u, vt


def _orthogonalised(b: Control, w: Matrix, v: Matrix, active: ir.Value | None) -> tuple[Matrix, Matrix]:
    """Turn pairs of vectors of `w`, and those of `v` with them, until all are orthogonal to each other."""
    n = len(w)

    def matrices(state: Values) -> tuple[Matrix, Matrix]:
        vectors = [state[i: i + n] for i in range(0, len(state), n)]
        return vectors[:n], vectors[n:]

    def trip(state: Values) -> tuple[Values, ir.Value]:
        w, v = matrices(state)
        rough: ir.Value = ir.Constant(t.I1, 0)
        for i, j in itertools.combinations(range(n), 2):
            of_both = _product(b, w[i], w[j])
            sine, half, far = orthogonal_turn(b, _product(b, w[i], w[i]), _product(b, w[j], w[j]), of_both, n)
            rough = b.or_(rough, far)
            for x in (w, v) if v else (w,):
                x[i], x[j] = map(list, zip(*(turned(b, *pair, sine, half) for pair in zip(x[i], x[j], strict=True)),
                                           strict=True))
        return [x for vector in (*w, *v) for x in vector], rough

    return matrices(_until_done(b, [x for vector in (*w, *v) for x in vector], active, trip)) if n > 1 else (w, v)


def _product(b: Control, x: Values, y: Values) -> ir.Value:
    total = b.mul(x[0], y[0])
    for u, v in zip(x[1:], y[1:], strict=True):
        total = b.fma(u, v, total)
    return total


def orthogonal_turn(b: Control, of_i: ir.Value, of_j: ir.Value, of_both: ir.Value,
                    length: int) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Sine, and tangent of half the angle, of the rotation (see `turned`) that makes two vectors, given by their
    products, orthogonal; and whether they were far from that."""
    enough = (_epsilon_of(of_both) * (1 + length / 4)) ** 2
    far = b.gt(b.mul(of_both, of_both), b.mul(b.mul(of_i, enough), of_j))
    nothing = b.eq(of_both, 0.0)
    ratio = b.div(b.mul(0.5, b.sub(of_j, of_i)), b.select(nothing, 1.0, of_both))
    root = b.sqrt(b.fma(ratio, ratio, 1.0))
    tangent = b.div(1.0, b.add(ratio, b.select(b.lt(ratio, 0.0), b.neg(root), root)))
    tangent = b.select(nothing, 0.0, tangent)
    cosine = b.div(1.0, b.sqrt(b.fma(tangent, tangent, 1.0)))
    sine = b.mul(tangent, cosine)
    return sine, b.div(sine, b.add(cosine, 1.0)), far
