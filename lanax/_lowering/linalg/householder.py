"""QR factors by Householder reflections, as lane code on unrolled matrices, with LAPACK's signs. Knows no arrays.

A reflection is H = I - tau v v^T with v = (1, v_1, v_2, ...); of v only what follows the one is kept.
"""

from __future__ import annotations

from llvmlite import ir

from lanax._llvm import types as t
from lanax._llvm.lanes import Lanes
from lanax._lowering.linalg.gauss import Matrix, Values, transposed


def power_of_two(b: Lanes, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """A power of two near x >= 0, and its reciprocal; both are normal numbers, whatever x is."""
    digits, bias = (52, 1023) if t.bit_width(x.type) == 64 else (23, 127)
    low, high = 1 << digits, (2 * bias - 1) << digits
    exponent = b.and_(b.bits(x), (2 * bias + 1) << digits)
    exponent = b.select(b.lt(exponent, low), low, b.select(b.gt(exponent, high), high, exponent))
    return b.float_of_bits(exponent), b.float_of_bits(b.sub(b.like(exponent, 2 * bias << digits), exponent))


def reflect(b: Lanes, alpha: ir.Value, x: Values) -> tuple[ir.Value, Values, ir.Value]:
    """beta, v and tau of the reflection with H (alpha, x) = (beta, 0); H = I where x is zero, as LAPACK's larfg.

    The vector is scaled by a power of two, so that no square overflows or vanishes.
    """
    if not x:
        return alpha, [], b.like(alpha, 0.0)
    largest, some = b.fabs(alpha), b.ne(x[0], 0.0)
    for v in x:
        size = b.fabs(v)
        largest = b.select(b.gt(size, largest), size, largest)
        some = b.or_(some, b.ne(v, 0.0))
    up, down = power_of_two(b, largest)
    head, tail = b.mul(alpha, down), [b.mul(v, down) for v in x]
    square = b.mul(head, head)
    for v in tail:
        square = b.fma(v, v, square)
    norm = b.sqrt(square)
    beta = b.neg(b.copysign(norm, head))
    tau = b.select(some, b.div(b.sub(beta, head), b.select(some, beta, 1.0)), 0.0)
    scale = b.div(1.0, b.select(some, b.sub(head, beta), 1.0))
    return b.select(some, b.mul(beta, up), alpha), [b.mul(v, scale) for v in tail], tau


def _apply(b: Lanes, v: Values, tau: ir.Value, rows: Matrix, columns: range) -> None:
    """Apply a reflection to some columns of its rows, in place."""
    head, *tail = rows
    for j in columns:
        total = head[j]
        for x, row in zip(v, tail, strict=True):
            total = b.fma(x, row[j], total)
        total = b.mul(tau, total)
        head[j] = b.sub(head[j], total)
        for x, row in zip(v, tail, strict=True):
            row[j] = b.fma(b.neg(x), total, row[j])


def factor_qr(b: Lanes, a: Matrix) -> tuple[Matrix, Values]:
    """R on and above the diagonal, below it the reflections of Q; and their taus."""
    rows, taus = [list(row) for row in a], []
    for k in range(min(len(a), len(a[0]))):
        rows[k][k], v, tau = reflect(b, rows[k][k], [row[k] for row in rows[k + 1:]])
        for row, x in zip(rows[k + 1:], v, strict=True):
            row[k] = x
        _apply(b, v, tau, rows[k:], range(k + 1, len(a[0])))
        taus.append(tau)
    return rows, taus


def form_q(b: Lanes, a: Matrix, taus: Values, columns: int) -> Matrix:
    """The leading columns of Q."""
    one, zero = b.like(a[0][0], 1.0), b.like(a[0][0], 0.0)
    q: Matrix = [[one if i == j else zero for j in range(columns)] for i in range(len(a))]
    for k in reversed(range(len(taus))):
        v = [row[k] for row in a[k + 1:]]
        _apply(b, v, taus[k], q[k:], range(k + 1, columns))
        q[k][k] = b.sub(1.0, taus[k])
        for row, x in zip(q[k + 1:], v, strict=True):
            row[k] = b.neg(b.mul(taus[k], x))
    return q


def multiply_q(b: Lanes, a: Matrix, taus: Values, c: Matrix, left: bool, transpose: bool) -> Matrix:
    """Q C, or Q^T C; or from the right C Q, or C Q^T."""
    out = [list(row) for row in c] if left else transposed(c)
    order = range(len(taus))
    for k in order if left == transpose else reversed(order):
        _apply(b, [row[k] for row in a[k + 1:]], taus[k], out[k:], range(len(out[0])))
    return out if left else transposed(out)
