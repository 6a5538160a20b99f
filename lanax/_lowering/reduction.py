"""Reductions over axes of one example's array, and what they combine elements with. The order in which elements are
combined depends on the shape alone, never on the lanes. The 16-bit floats are accumulated in float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir

from lanax._llvm import types as t
from lanax._llvm.memory import Index
from lanax._lowering.arrays import UNROLL, Array, is_cheap
from lanax._lowering.emitter import Emitter, within
from lanax._lowering.fold import Values, each, fold, pairwise
from lanax._lowering.lanewise.arithmetic import maximum, minimum
from lanax._lowering.lanewise.rounding import round_to
from lanax._math.exponential import exp
from lanax._math.logarithm import log1p

Position = tuple[Index, ...]
#: Reduces at several positions of the axes that stay, in one loop: one lane value for each.
Run = Callable[[Sequence[Position]], list[ir.Value]]

#: Accumulators of one long reduction: enough to hide the latency of an addition.
_CHAINS = 4
#: Results of a large array up to which they are computed in one loop.
TOGETHER = 8
#: Elements that one trip of a loop reads; where each is computed there, one for each result.
_BLOCK = 16


class Monoid(NamedTuple):
    """What a reduction combines elements with: `combine(b, dtype, x, y)`, and what it gives of no element."""

    identity: Callable[[np.dtype], Any]
    combine: Callable[[Emitter, np.dtype, Any, Any], ir.Value]


def lowest(dtype: np.dtype) -> Any:
    if t.is_float(t.lane_type(dtype).lane):
        return -math.inf
    return False if dtype == np.bool_ else np.iinfo(dtype).min


def highest(dtype: np.dtype) -> Any:
    if t.is_float(t.lane_type(dtype).lane):
        return math.inf
    return True if dtype == np.bool_ else np.iinfo(dtype).max


def _logaddexp(b: Emitter, dtype: np.dtype, x: ir.Value, y: ir.Value) -> ir.Value:
    """log(exp(x) + exp(y)); where the difference is NaN the sum of both: a NaN, or the infinity that they share."""
    x, y = b.join(x, y)
    distance = b.sub(x, y)
    smooth = b.add(maximum(b, dtype, x, y), log1p(b, exp(b, b.neg(b.fabs(distance)))))
    return b.select(b.isnan(distance), b.add(x, y), smooth)


SUM = Monoid(lambda d: 0, lambda b, d, x, y: b.add(x, y))
PRODUCT = Monoid(lambda d: 1, lambda b, d, x, y: b.mul(x, y))
MAX = Monoid(lowest, maximum)
MIN = Monoid(highest, minimum)
LOGSUMEXP = Monoid(lambda d: -math.inf, _logaddexp)
AND = Monoid(lambda d: np.invert(np.zeros((), d)), lambda b, d, x, y: b.and_(x, y))
OR = Monoid(lambda d: 0, lambda b, d, x, y: b.or_(x, y))
XOR = Monoid(lambda d: 0, lambda b, d, x, y: b.xor(x, y))


# -- reductions ------------------------------------------------------------------------------------------------------
def element_index(shape: Sequence[int], axes: Sequence[int], kept: Position, reduced: Position) -> Position:
    """The index of an element, given the index along the reduced axes and along the others."""
    left, right = iter(kept), iter(reduced)
    return tuple(next(right) if axis in axes else next(left) for axis in range(len(shape)))


def reduction_results(b: Emitter, x: Array, shape: Sequence[int], dtype: np.dtype, run: Run) -> Array:
    """The array of a reduction's results: few of them at once, else one after the other in a loop, so that the code
    that computes an element is not repeated; very many each where it is read."""
    count = math.prod(shape)
    if count > b.unroll:
        return b.lazy(shape, dtype, lambda *kept: run([kept])[0], (x,))
    if b.is_small(x) or count <= TOGETHER:
        return b.elements(run(list(np.ndindex(*shape))), shape, dtype)
    out = b.allocate(shape, dtype, x.varying)
    each(b, shape, lambda *kept: out.put(kept, run([kept])[0]))
    return b.unrolled(out)


def unrolled_steps(b: Emitter, x: Array, results: int) -> int:
    """Elements that one trip reads for each of some results. It tells the order of a sum: so no lanes in here."""
    if b.is_small(x):
        return UNROLL
    return max(1, _BLOCK // results) if is_cheap(x) else 1


def kept_wide(b: Emitter, x: Array, value: ir.Value) -> ir.Value:
    """An accumulator in the width that it keeps through a loop."""
    return b.splat(value) if x.varying else value


def reduced(b: Emitter, x: Array, axes: Sequence[int], monoid: Monoid) -> Array:
    """`x` reduced over some of its axes."""
    dtype = x.dtype
    shape = tuple(n for axis, n in enumerate(x.shape) if axis not in axes)
    sizes = [x.shape[axis] for axis in sorted(axes)]
    count = math.prod(sizes)
    if count == 0:
        return b.full(shape, monoid.identity(dtype), dtype)
    if count == 1:
        return b.view(x, shape, lambda *kept: element_index(x.shape, axes, kept, (0,) * len(sizes)))
    include = _including(b, x, monoid)

    def run(positions: Sequence[Position]) -> list[ir.Value]:
        if not positions:
            return []
        unroll = unrolled_steps(b, x, len(positions))
        chains = max(1, _CHAINS // len(positions)) if count >= 4 * _CHAINS and unroll > 1 else 1
        start = None if count <= unroll else kept_wide(b, x, b.constant(monoid.identity(dtype), dtype))

        def visit(values: Values, index: Position, k: int) -> Values:
            values = list(values)
            for j, kept in enumerate(positions):
                slot = j * chains + k % chains
                values[slot] = kept_wide(b, x, include(values[slot], element_index(x.shape, axes, kept, index)))
            return values

        values = fold(b, sizes, [start] * (chains * len(positions)), visit, unroll)
        totals = [pairwise(values[j * chains:(j + 1) * chains], lambda u, v: monoid.combine(b, dtype, u, v))
                  for j in range(len(positions))]
        return [round_to(b, total, dtype) for total in totals]

    return reduction_results(b, x, shape, dtype, run)


def _including(b: Emitter, x: Array, monoid: Monoid) -> Callable[[Any, Position], ir.Value]:
    """How an element joins a total (None: it is the first). In a sum of products by FMA."""
    dtype = x.dtype
    if monoid is not SUM or x.factors is None or dtype not in (np.float32, np.float64):
        return lambda total, index: (
            x.at(*index) if total is None else monoid.combine(b, dtype, total, x.at(*index)))
    left, right = x.factors if b.is_small(x) else map(b.indexable, x.factors)

    def include(total: Any, index: Position) -> ir.Value:
        u = left.at(*within(left, index, x.shape))
        v = u if right is left else right.at(*within(right, index, x.shape))
        return b.mul(u, v) if total is None else b.fma(u, v, total)

    return include
