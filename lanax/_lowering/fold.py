"""Loop nests that carry accumulators, unrolled in blocks. Knows no primitive."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lanax._llvm.memory import Index
from lanax._lowering.emitter import Emitter

Values = list[Any]
#: `visit(values, index, k)` -> values, where k counts the indices of one unrolled block.
Visit = Callable[[Values, tuple[Index, ...], int], Values]


def fold(b: Emitter, shape: Sequence[int], values: Values, visit: Visit, unroll: int) -> Values:
    """`visit` for every index of a shape in row-major order, with the values that the visit before gave.

    Up to `unroll` indices are visited without a loop, with indices known now; then the first values may be anything,
    else they must be lane values of the types that `visit` gives.
    """
    if math.prod(shape) <= unroll:
        for k, index in enumerate(np.ndindex(*shape)):
            values = visit(values, index, k)
        return values
    head, *rest = shape
    inner = math.prod(rest)
    if head == 1 or inner > unroll:
        def body(i: Index, values: Values) -> Values:
            return fold(b, rest, values, lambda v, index, k: visit(v, (i, *index), k), unroll)

        return body(0, values) if head == 1 else b.count(head, values, body)
    step = max(1, unroll // inner)
    trips, left = divmod(head, step)

    def block(start: Index, count: int, values: Values) -> Values:
        for k, (j, *index) in enumerate(np.ndindex(count, *rest)):
            values = visit(values, (b.iadd(start, j), *index), k)
        return values

    values = b.count(trips, values, lambda i, v: block(b.imul(i, step), step, v))
    return block(trips * step, left, values)


def each(b: Emitter, shape: Sequence[int], fn: Callable[..., None]) -> None:
    """`fn(*index)` for every index of a shape, in loops that are not unrolled."""

    def visit(values: Values, index: tuple[Index, ...], _: int) -> Values:
        fn(*index)
        return values

    fold(b, shape, [], visit, 1)


def blocks(b: Emitter, size: int, step: int, fn: Callable[[list[Index]], None]) -> None:
    """`fn` for runs of `step` consecutive numbers below `size`, and for the rest of them."""
    trips, left = divmod(size, step)
    if trips == 1:
        fn(list(range(step)))
    elif trips:
        def body(i: Index, values: Values) -> Values:
            fn([b.iadd(b.imul(i, step), j) for j in range(step)])
            return values

        b.count(trips, [], body)
    if left:
        fn(list(range(trips * step, size)))


def pairwise(values: Sequence[Any], combine: Callable[[Any, Any], Any]) -> Any:
    """The values combined as a tree: neighbours first."""
    while len(values) > 1:
        values = [combine(*values[i:i + 2]) if i + 1 < len(values) else values[i] for i in range(0, len(values), 2)]
    return values[0]
