"""Matrices among arrays: one at a time as lane values, or in memory; and which are taken how. Knows no primitive."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lanax._llvm.memory import Index
from lanax._lowering.arrays import Array, is_cheap
from lanax._lowering.context import Context
from lanax._lowering.emitter import Emitter
from lanax._lowering.fold import each
from lanax._lowering.linalg.gauss import Matrix
from lanax._lowering.linalg.loops import window

#: The lane values of one matrix in row-major order.
Flat = list[Any]
#: Shape and dtype of a result.
Result = tuple[tuple[int, ...], np.dtype]

#: Elements of the largest matrix that is unrolled, and of its shorter side.
UNROLLED_ELEMENTS, UNROLLED_SIDE = 128, 8
#: Rows, and columns, up to which matrices are factored in loops; and of one side, where the other is that short.
LOOPED_SIDE, LONGER_SIDE = 32, 128


def results_of(ctx: Context) -> list[Result]:
    """Shapes and dtypes of an equation's results."""
    return [(tuple(aval.shape), np.dtype(aval.dtype)) for aval in ctx.avals_out]


def rows_of(values: Flat, columns: int) -> Matrix:
    """Values in row-major order as a matrix."""
    return [values[i: i + columns] for i in range(0, len(values), columns)]


def flat(a: Matrix) -> Flat:
    """The values of a matrix in row-major order."""
    return [x for row in a for x in row]


def unrolls(shape: Sequence[int], side: int = UNROLLED_SIDE) -> bool:
    """Whether a matrix is unrolled into lane values."""
    m, n = shape[-2:]
    return m * n <= UNROLLED_ELEMENTS and min(m, n) <= side


def why_not_real(*avals: Any) -> str | None:
    """Why matrices are not in lanes, whatever their size, or None."""
    bad = next((x for x in avals if x.dtype not in (np.float32, np.float64) or 0 in x.shape[-2:]), None)
    return None if bad is None else f"matrices of type {bad.str_short()} are left to XLA"


def why_not_looped(*avals: Any, side: int = LOOPED_SIDE, longer: int | None = None) -> str | None:
    """Why real matrices are not in lanes, where those are whose shorter side has up to `side` rows or columns and whose
    longer one has up to `longer`, or None. The ones that are unrolled always are."""
    longer = longer or side
    for aval in avals:
        m, n = aval.shape[-2:]
        if (min(m, n) > side or max(m, n) > longer) and not unrolls(aval.shape):
            return f"a matrix of {m} x {n} is left to XLA: up to {longer} x {side} are in lanes"
    return why_not_real(*avals)


def each_matrix(b: Emitter, rank: int, operands: Sequence[Array], results: Sequence[Result],
                fn: Callable[..., Sequence[Flat]]) -> list[Array]:
    """`fn` of the lane values of each operand's matrix or vector, for every index of the axes before it; it gives the
    lane values of each result. `rank`: that of the first operand's matrix."""
    axes = len(operands[0].shape) - rank
    batch = operands[0].shape[:axes]

    def computed(operands: Sequence[Array], *index: Index) -> Sequence[Flat]:
        return fn(*([x.at(*index, *i) for i in np.ndindex(*x.shape[axes:])] for x in operands))

    if all(0 in shape for shape, _ in results):
        return [b.full(shape, 0, dtype) for shape, dtype in results]
    if math.prod(batch) == 1 and all(math.prod(shape) <= b.unroll for shape, _ in results):
        found = computed(operands, *[0] * axes)
        return [b.elements(values, *result) for values, result in zip(found, results, strict=True)]
    varying = any(x.varying for x in operands)
    out = [b.allocate(shape, dtype, varying) for shape, dtype in results]
    ready = [b.indexable(x) if is_cheap(x) else b.stored(x) for x in operands]

    def matrix(*index: Index) -> None:
        for memory, values in zip(out, computed(ready, *index), strict=True):
            for i, value in zip(np.ndindex(*memory.shape[axes:]), values, strict=True):
                memory.put((*index, *i), value)

    each(b, batch, matrix)
    return [b.unrolled(x) if b.is_small(x) else x for x in out]


def each_in_memory(b: Emitter, rank: int, operands: Sequence[Array], results: Sequence[Result],
                   fn: Callable[..., None]) -> list[Array]:
    """`fn(*operands, *results)` of the matrices and vectors in memory, for every index of the axes before them; it
    writes the results. `rank`: that of the first operand's matrix."""
    axes = len(operands[0].shape) - rank
    varying = any(x.varying for x in operands)
    out = [b.allocate(shape, dtype, varying) for shape, dtype in results]
    memories = [*map(b.stored, operands), *out]

    def matrix(*at: Index) -> None:
        fn(*(window(b, x, *at, *[0] * (len(x.shape) - axes), shape=x.shape[axes:]) for x in memories))

    each(b, operands[0].shape[:axes], matrix)
    return [b.unrolled(x) if b.is_small(x) else x for x in out]
