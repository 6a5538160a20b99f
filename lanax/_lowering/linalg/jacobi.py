"""Eigenvalues and eigenvectors of symmetric matrices by Jacobi's rotations, as lane code. Knows no arrays.

One loop goes through all pairs of rows in each trip. A lane that is done is left as it is, however long others take.
"""

from __future__ import annotations

import itertools

import numpy as np
from llvmlite import ir

from lanax._llvm import types as t
from lanax._llvm.control import Control
from lanax._lowering.linalg.gauss import Matrix, Values, transposed
from lanax._lowering.linalg.householder import power_of_two

#: Trips after which a lane is done in any case; convergence is quadratic, and takes 4 to 7.
_TRIPS = 15


def symmetric_eigen(b: Control, a: Matrix, lower: bool, vectors: bool) -> tuple[Values, Matrix]:
    """Eigenvalues in ascending order, and the eigenvectors as columns, of one triangle of `a`; NaN where that has NaN
    or infinities. An eigenvector's sign is what comes of the rotations."""
    n = len(a)
    rows = [[a[max(i, j)][min(i, j)] if lower else a[min(i, j)][max(i, j)] for j in range(n)] for i in range(n)]
    largest, finite = _size(b, [x for i, row in enumerate(rows) for x in row[i:]])
    up, down = power_of_two(b, largest)
    one, zero = b.like(a[0][0], 1.0), b.like(a[0][0], 0.0)
    q: Matrix = [[one if i == j else zero for j in range(n)] for i in range(n)] if vectors else []
    rows, q = _diagonalised(b, [[b.mul(x, down) for x in row] for row in rows], q)
    columns = [[rows[i][i], *column] for i, column in enumerate(transposed(q) if vectors else [[]] * n)]
    columns = [[b.select(finite, x, float("nan")) for x in column] for column in _sorted(b, columns)]
    return [b.mul(column[0], up) for column in columns], transposed([column[1:] for column in columns])


def _size(b: Control, values: Values) -> tuple[ir.Value, ir.Value]:
    """The largest size, and whether all are finite."""
    largest, finite = b.like(values[0], 0.0), None
    for x in values:
        size = b.fabs(x)
        largest, small = b.select(b.gt(size, largest), size, largest), b.lt(size, float("inf"))
        finite = small if finite is None else b.and_(finite, small)
    assert finite is not None
    return largest, finite


def _diagonalised(b: Control, a: Matrix, q: Matrix) -> tuple[Matrix, Matrix]:
    """Rotate `a`, whose largest element is near one, until nothing is left beside the diagonal; and `q` with it."""
    n = len(a)
    places = list(itertools.combinations_with_replacement(range(n), 2))
    varies = any(isinstance(x.type, ir.VectorType) for row in a for x in row)
    eps = float(np.finfo(np.float64 if t.bit_width(a[0][0].type) == 64 else np.float32).eps)

    def trip(values: Values) -> tuple[Values, ir.Value]:
        left, on, *state = values
        a, q = [[state[0]] * n for _ in range(n)], [state[len(places) + i * n:][:n] for i in range(len(q_rows))]
        for (i, j), x in zip(places, state, strict=False):
            a[i][j] = a[j][i] = x
        largest = b.like(a[0][0], 0.0)
        for i, j in itertools.combinations(range(n), 2):
            size = b.fabs(a[i][j])
            largest = b.select(b.gt(size, largest), size, largest)
            _rotate(b, a, q, i, j)
        new = [*(a[i][j] for i, j in places), *(x for row in q for x in row)]
        state = [b.select(on, x, y) for x, y in zip(new, state, strict=True)]
        left, on = b.sub(left, 1), b.and_(on, b.gt(largest, eps / 8))
        return [left, on, *state], b.and_(b.gt(left, 0), b.any(b.to_mask(on)))

    q_rows = q
    state = [*(a[i][j] for i, j in places), *(x for row in q for x in row)]
    yes: ir.Value = ir.Constant(t.I1, 1)
    start = [yes, *state]
    start = [b.const(t.I32, _TRIPS), *([b.splat(x) for x in start] if varies else start)]
    _, _, *state = b.loop(yes, start, trip)
    for (i, j), x in zip(places, state, strict=False):
        a[i][j] = a[j][i] = x
    return a, [state[len(places) + i * n:][:n] for i in range(len(q))]


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
    half = b.div(sine, b.add(cosine, 1.0))  # the tangent of half the angle

    def turned(u: ir.Value, v: ir.Value) -> tuple[ir.Value, ir.Value]:
        return (b.fma(b.neg(sine), b.fma(half, u, v), u), b.fma(sine, b.fma(b.neg(half), v, u), v))

    a[i][i], a[j][j] = b.fma(b.neg(tangent), x, a[i][i]), b.fma(tangent, x, a[j][j])
    a[i][j] = a[j][i] = b.like(x, 0.0)
    for k in range(len(a)):
        if k not in (i, j):
            a[k][i], a[k][j] = a[i][k], a[j][k] = turned(a[k][i], a[k][j])
    for row in q:
        row[i], row[j] = turned(row[i], row[j])


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
