"""Tridiagonal systems in loops over memory, for such that are too large to unroll, or are perturbed. The right-hand
sides are in scratch of their own, so every lane may write."""

from __future__ import annotations

import dataclasses

import numpy as np
from llvmlite import ir

from lanax._llvm import types as t
from lanax._llvm.memory import Index
from lanax._lowering.arrays import Memory
from lanax._lowering.emitter import Emitter
from lanax._lowering.linalg.gauss import less_products
from lanax._lowering.linalg.loops import Values, as_i64, each_block, each_of, like_lanes, span


@dataclasses.dataclass(frozen=True)
class _Factors:
    """What elimination with pivots from two rows leaves of each row: U on the diagonal and the two right of it; of each
    step the factor, and whether the two rows were exchanged.

    Attributes:
      scaled: whether the pivot was the larger element in proportion to its row; else it is the larger one.
      singular: whether an element on the diagonal is zero.
      largest: the size of the largest element of U, of which that on the last row but one does not count.
    """

    d: Memory
    u: Memory
    v: Memory
    factors: Memory
    swaps: Memory
    scaled: bool
    singular: ir.Value
    largest: ir.Value


def solve_tridiagonal_in_memory(b: Emitter, low: Memory, diagonal: Memory, high: Memory, x: Memory) -> None:
    """Replace the right-hand sides, the columns of `x`, by the solutions. As `gauss.solve_tridiagonal`."""
    found, n = _factored(b, low, diagonal, high, scaled=False), x.shape[0]
    zero = b.constant(0, x.dtype)

    def solve(columns: list[Index]) -> None:
        _forward(b, found, x, columns)

        def back(done: Index, below: Values) -> Values:
            i, out = b.isub(b.i64(n - 1), done), []
            for k, j in enumerate(columns):
                near, far = below[2 * k: 2 * k + 2]
                rest = less_products(b, x.at(i, j), [(found.u.at(i), near), (found.v.at(i), far)])
                value = b.div(rest, found.d.at(i))
                x.put((i, j), b.select(found.singular, float("nan"), value))
                out += [value, near]
            return out

        span(b, 0, n, like_lanes(b, x, *[zero] * (2 * len(columns))), back)

    each_block(b, 0, x.shape[1], solve)


def solve_perturbed_in_memory(b: Emitter, low: Memory, diagonal: Memory, high: Memory, x: Memory) -> None:
    """Replace the right-hand sides by solutions of a system that may be singular: elements on the diagonal of U that a
    division by would overflow are moved away from zero, as LAPACK's lagtf and lagts do it."""
    found, (n, width) = _factored(b, low, diagonal, high, scaled=True), x.shape
    epsilon = float(np.finfo(x.dtype).eps)
    each_block(b, 0, width, lambda columns: _forward(b, found, x, columns))
    zero = b.constant(0, x.dtype)

    def back(done: Index) -> None:
        i = b.isub(b.i64(n - 1), done)

        def below(by: int, j: Index) -> ir.Value:
            row = b.iadd(i, by)
            inside = b.lt(row, b.i64(n))
            return b.select(inside, x.at(b.select(inside, row, b.i64(n - 1)), j), zero)

        def substitute(j: Index, values: Values) -> Values:
            rest = less_products(b, x.at(i, j), [(found.u.at(i), below(1, j)), (found.v.at(i), below(2, j))])
            x.put((i, j), rest)
            return [_larger(b, values[0], b.fabs(rest))]

        (largest,) = span(b, 0, width, like_lanes(b, x, zero), substitute)
        pivot, step = like_lanes(b, x, found.d.at(i), b.mul(found.largest, epsilon))
        pivot = _away_from_zero(b, pivot, step, largest)
        scale = b.div(1.0, pivot)
        each_of(b, 0, width, lambda j: x.put((i, j), b.mul(x.at(i, j), scale)))

    each_of(b, 0, n, back)


def _less(b: Emitter, factor: ir.Value, pivot: ir.Value, x: ir.Value, exact: bool) -> ir.Value:
    """x plus a factor times a pivot; where `exact`, x itself for a factor of zero."""
    out = b.fma(factor, pivot, x)
    return b.select(b.eq(factor, 0.0), x, out) if exact else out


def _larger(b: Emitter, x: ir.Value, y: ir.Value) -> ir.Value:
    return b.select(b.gt(y, x), y, x)


def _factored(b: Emitter, low: Memory, diagonal: Memory, high: Memory, scaled: bool) -> _Factors:
    """Elimination, with the larger of two elements as the pivot; where `scaled`, each in proportion to its row."""
    n, zero = diagonal.shape[0], b.constant(0, diagonal.dtype)
    varying = low.varying or diagonal.varying or high.varying
    d, u, v, factors = (b.allocate((n,), diagonal.dtype, varying) for _ in range(4))
    swaps = b.allocate((n,), np.dtype(np.bool_), varying)

    def right_of(i: Index) -> ir.Value:
        return b.select(b.eq(as_i64(b, i), n - 1), zero, high.at(i))

    def eliminate(i: Index, values: Values) -> Values:
        *top, scale, singular, largest = values
        top, first = [*top, zero], [low.at(i), diagonal.at(i), right_of(i)]
        sizes = list(map(b.fabs, first))
        new_scale = b.add(b.add(sizes[0], sizes[1]), sizes[2])
        here, there = b.fabs(top[0]), sizes[0]
        if scaled:
            here = b.select(b.eq(here, 0.0), 0.0, b.div(here, scale))
            there = b.select(b.eq(there, 0.0), 0.0, b.div(there, new_scale))
        swap = b.lt(here, there)
        pivot = [b.select(swap, x, y) for x, y in zip(first, top, strict=True)]
        other = [b.select(swap, y, x) for x, y in zip(first, top, strict=True)]
        factor = b.neg(b.div(other[0], pivot[0]))
        if scaled:  # what is zero already stays so, with its sign: by that a pivot is moved
            factor = b.select(b.eq(other[0], 0.0), 0.0, factor)
        before = b.isub(i, 1)
        for memory, value in zip((d, u, v, factors, swaps), (*pivot, factor, swap), strict=True):
            memory.put((before,), value)
        rest = [_less(b, factor, x, y, scaled) for x, y in zip(pivot[1:], other[1:], strict=True)]
        if scaled:
            new_scale = b.select(swap, b.add(b.fabs(rest[0]), b.fabs(rest[1])), new_scale)
            size = _larger(b, b.fabs(pivot[0]), _larger(b, b.fabs(pivot[1]), b.fabs(pivot[2])))
            largest = b.select(b.eq(as_i64(b, i), n - 1), largest, _larger(b, largest, size))
        return [*rest, new_scale, b.or_(singular, b.eq(pivot[0], 0.0)), largest]

    no: ir.Value = ir.Constant(t.I1, 0)
    head = [diagonal.at(0), right_of(0)]
    sizes = list(map(b.fabs, head))
    start = like_lanes(b, d, *head, b.add(*sizes), no, _larger(b, *sizes))
    last, _, _, singular, largest = span(b, 1, n, start, eliminate)
    for memory, value in zip((d, u, v), (last, zero, zero), strict=True):
        memory.put((n - 1,), value)
    singular, largest = b.or_(singular, b.eq(last, 0.0)), _larger(b, largest, b.fabs(last))
    return _Factors(d, u, v, factors, swaps, scaled, singular, largest)


def _forward(b: Emitter, found: _Factors, x: Memory, columns: list[Index]) -> None:
    """Eliminate in some of the right-hand sides."""

    def eliminate(i: Index, tops: Values) -> Values:
        before, out = b.isub(i, 1), []
        for j, top in zip(columns, tops, strict=True):
            swap, own = found.swaps.at(before), x.at(i, j)
            pivot, other = b.select(swap, own, top), b.select(swap, top, own)
            x.put((before, j), pivot)
            out.append(_less(b, found.factors.at(before), pivot, other, found.scaled))
        return out

    tops = span(b, 1, x.shape[0], like_lanes(b, x, *(x.at(0, j) for j in columns)), eliminate)
    for j, top in zip(columns, tops, strict=True):
        x.put((x.shape[0] - 1, j), top)


def _away_from_zero(b: Emitter, pivot: ir.Value, step: ir.Value, divided: ir.Value) -> ir.Value:
    """A pivot to which steps, each twice the one before, are added until numbers of the size of `divided` can be
    divided by it, or it is one. (Subnormal numbers are zeros in a kernel: none is to be scaled.)"""
    tiny = float(np.finfo(np.float64 if t.bit_width(pivot.type) == 64 else np.float32).tiny)
    step = b.copysign(b.select(b.gt(step, tiny), step, tiny), pivot)

    def too_small(pivot: ir.Value) -> ir.Value:
        size = b.fabs(pivot)
        return b.and_(b.lt(size, 1.0), b.or_(b.eq(size, 0.0), b.gt(divided, b.mul(size, 1 / tiny))))

    def move(values: Values) -> tuple[Values, ir.Value]:
        pivot, step = values
        pivot = b.select(too_small(pivot), b.add(pivot, step), pivot)
        return [pivot, b.add(step, step)], b.any(b.to_mask(too_small(pivot)))

    return b.loop(b.any(b.to_mask(too_small(pivot))), [pivot, step], move)[0]
