"""Products of arrays, summed over some of their axes: unrolled where they are small, else loops over tiles of results
in registers. Knows no primitive."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from lanax._llvm import types as t
from lanax._llvm.memory import Index
from lanax._lowering.arrays import UNROLL, Array, Memory, is_cheap
from lanax._lowering.emitter import Emitter
from lanax._lowering.fold import Values, blocks, each, fold, pairwise
from lanax._lowering.lanewise.conversion import convert
from lanax._lowering.lanewise.rounding import round_to
from lanax._lowering.windows import repeatable

Position = tuple[Index, ...]

#: Multiply-adds of one example above which XLA's blocked matrix products are the better choice.
LARGEST_PRODUCT = 64**3
#: Multiply-adds up to which a product of unrolled arrays is emitted without a loop.
_UNROLLED = 512
#: Of four registers, so many hold the sums of a tile; the others hold what is multiplied.
_ACCUMULATORS = 3
#: Multiply-adds that one trip of the innermost loop does.
_BLOCK = 16


def product_sizes(lhs: Any, rhs: Any, dimension_numbers: Any) -> tuple[tuple[int, ...], ...]:
    """Sizes of the batch axes, the free axes of either side and the contracted axes."""
    (left_contracted, right_contracted), (left_batch, right_batch) = dimension_numbers
    rows = tuple(n for a, n in enumerate(lhs.shape) if a not in (*left_contracted, *left_batch))
    columns = tuple(n for a, n in enumerate(rhs.shape) if a not in (*right_contracted, *right_batch))
    return tuple(lhs.shape[a] for a in left_batch), rows, columns, tuple(lhs.shape[a] for a in left_contracted)


def is_unrolled(b: Emitter, shape: Sequence[int], depth: Sequence[int]) -> bool:
    """Whether a product of small arrays is small enough to be emitted without a loop."""
    return math.prod(shape) <= b.unroll and math.prod((*shape, *depth)) <= _UNROLLED


def multiplied(b: Emitter, lhs: Array, rhs: Array, dimension_numbers: Any, dtype: Any, hole: ir.Value | None = None,
               small: bool = False) -> Array:
    """What `dot_general` gives: (batch, free axes of `lhs`, free axes of `rhs`), summed over the contracted axes.

    Operands are converted to `dtype` first; the 16-bit floats are summed in float32. Products with `hole` do not count.
    `small`: the operands can be read only where the index is known, however many elements they have.
    """
    product = Product(b, lhs, rhs, dimension_numbers, dtype, hole, small)
    if 0 in (*product.shape, *product.depth):
        return b.full(product.shape, 0, product.dtype)
    if product.unrolled:
        return b.lazy(product.shape, product.dtype, product.one, (lhs, rhs))
    product.make_readable()
    count = math.prod(product.shape)
    if count <= math.prod(product.tile) and math.prod(product.batch) == 1:
        return b.elements(product.all(), product.shape, product.dtype)
    if count <= b.unroll:
        return b.unrolled(product.in_memory())
    if math.prod(product.depth) <= 2:
        return b.lazy(product.shape, product.dtype, product.one, (product.lhs, product.rhs))
    return product.in_memory()


class Product:
    """One product: results are numbered by (batch, row, column), elements of the operands by (batch, row, depth) and
    (batch, column, depth); each of these is an index along several axes. Products with `hole` do not count."""

    def __init__(self, b: Emitter, lhs: Array, rhs: Array, dimension_numbers: Any, dtype: Any,
                 hole: ir.Value | None = None, small: bool = False):
        (left_contracted, right_contracted), (left_batch, right_batch) = dimension_numbers
        self.b = b
        self.lhs, self.rhs, self.hole = lhs, rhs, hole
        self.dtype = np.dtype(dtype)
        self.numbers = dimension_numbers
        self.batch, self.rows, self.columns, self.depth = product_sizes(lhs, rhs, dimension_numbers)
        self.shape = (*self.batch, *self.rows, *self.columns)
        self.left_place = _places(len(lhs.shape), left_batch, left_contracted)
        self.right_place = _places(len(rhs.shape), right_batch, right_contracted)
        self.varying = lhs.varying or rhs.varying
        size = math.prod((*self.shape, *self.depth))
        self.unrolled = is_unrolled(b, self.shape, self.depth) and (
            small or (b.is_small(lhs) and b.is_small(rhs) and b.may_unroll(size)))
        self.chains = self._chains()
        self.tile = self._tile()

    def _chains(self) -> int:
        """Accumulators of one result, by which a long product with few results hides the latency of the FMA. They
        change the order of the sum: so they depend on the shape alone."""
        results, depth = math.prod(self.shape), math.prod(self.depth)
        return max(1, 4 // results) if results and depth >= 16 else 1

    def _tile(self) -> tuple[int, int]:
        """Rows and columns of a tile. A tile's size changes no result: so it may depend on the lanes."""
        width = self.b.lanes * t.lane_type(self.dtype).itemsize if self.varying else 1
        results = max(2, self.b.registers * _ACCUMULATORS // 4 // max(1, -(-width // self.b.register_bytes)))
        rows, columns = (max(1, sizes[-1]) if sizes else 1 for sizes in (self.rows, self.columns))
        tall = min(rows, 4 if results >= 8 else 2)
        wide = min(columns, max(1, results // tall))
        return min(rows, max(1, results // wide)), wide

    def make_readable(self) -> None:
        """Bring the operands into forms that can be read in a loop as often as tiles need them."""
        tall, wide = self.tile
        self.lhs = repeatable(self.b, self.lhs, -(-math.prod(self.columns) // wide))
        self.rhs = repeatable(self.b, self.rhs, -(-math.prod(self.rows) // tall))

    # -- elements ----------------------------------------------------------------------------------------------------
    def _left(self, batch: Position, row: Position, depth: Position) -> Any:
        return self._element(self.lhs, self.left_place, (*batch, *row, *depth))

    def _right(self, batch: Position, column: Position, depth: Position) -> Any:
        return self._element(self.rhs, self.right_place, (*batch, *column, *depth))

    def _element(self, x: Array, place: Sequence[int], index: Position) -> Any:
        """An element in the dtype of the result; None for a hole."""
        value = x.at(*(index[p] for p in place))
        if value is self.hole:
            return None
        return convert(self.b, value, x.dtype, self.dtype) if x.dtype != self.dtype else value

    def _include(self, total: Any, x: Any, y: Any) -> Any:
        """One more product in a total; None: it is the first."""
        b = self.b
        if x is None or y is None:
            return total
        if _is_zero(x, y) and total is not None:
            return total
        if self.dtype == np.bool_:
            return b.and_(x, y) if total is None else b.or_(total, b.and_(x, y))
        if total is None:
            return b.mul(x, y)
        return b.fma(x, y, total) if t.is_float(total.type) else b.add(total, b.mul(x, y))

    def _combine(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.b.or_(x, y) if self.dtype == np.bool_ else self.b.add(x, y)

    # -- results -----------------------------------------------------------------------------------------------------
    def results(self, batch: Position, rows: Sequence[Position], columns: Sequence[Position]) -> list[ir.Value]:
        """The tile of results at `rows` x `columns`, in row-major order, computed in one loop."""
        b, chains = self.b, self.chains
        count = len(rows) * len(columns)
        unroll = UNROLL if self.unrolled else self._unroll(count)
        looped = math.prod(self.depth) > unroll
        zero = b.constant(0, self.dtype)
        start = (b.splat(zero) if self.varying else zero) if looped else None

        def visit(values: Values, depth: Position, k: int) -> Values:
            values = list(values)
            left = [self._left(batch, row, depth) for row in rows]
            right = [self._right(batch, column, depth) for column in columns]
            for i, (x, y) in enumerate(itertools.product(left, right)):
                slot = i * chains + k % chains
                total = self._include(values[slot], x, y)
                values[slot] = b.splat(total) if self.varying and total is not None else total
            return values

        values = fold(b, self.depth, [start] * (count * chains), visit, unroll)
        sums = ([v for v in values[i * chains:(i + 1) * chains] if v is not None] for i in range(count))
        return [round_to(b, pairwise(parts, self._combine), self.dtype) if parts else zero for parts in sums]

    def _unroll(self, results: int) -> int:
        """Steps along the contracted axes that one trip does."""
        return max(1, _BLOCK // results) if is_cheap(self.lhs) and is_cheap(self.rhs) else 1

    def one(self, *index: Index) -> ir.Value:
        """One result."""
        first, second = len(self.batch), len(self.batch) + len(self.rows)
        return self.results(index[:first], [index[first:second]], [index[second:]])[0]

    def all(self) -> list[ir.Value]:
        """All results, in one loop."""
        batch, rows, columns = (list(np.ndindex(*sizes)) for sizes in (self.batch, self.rows, self.columns))
        return self.results(batch[0], rows, columns)

    def in_memory(self) -> Memory:
        """Many results. Where the operands lie as all do that are computed, products of one kind share a function: a
        program with matrices has many, and the compiler's time grows with all of them together."""
        out = self.b.allocate(self.shape, self.dtype, self.varying)
        places = [getattr(x, "base", None) for x in (self.lhs, self.rhs, out)]
        if None in places or self.hole is not None or self.b.meter is not None:
            self._fill(out)
        else:
            self.b.ir.call(self.b.function(self._name(), 3, self._fill_at), places)
        return out

    def _name(self) -> str:
        """What tells products apart that do not share a function."""
        kinds = (f"{x.dtype}{list(x.shape)}{'v' if x.varying else 'u'}" for x in (self.lhs, self.rhs))
        return " ".join(["lanax.product", str(self.dtype), str(self.b.lanes), *kinds, str(self.numbers)])

    def _fill_at(self, b: Emitter, places: Sequence[ir.Value]) -> None:
        lhs, rhs = (b.dense(place, x.shape, x.dtype, x.varying)
                    for place, x in zip(places[:2], (self.lhs, self.rhs), strict=True))
        product = Product(b, lhs, rhs, self.numbers, self.dtype)
        product.unrolled = False
        product._fill(b.dense(places[2], self.shape, self.dtype, self.varying))

    def _fill(self, out: Memory) -> None:
        """Loops over the tiles of the last axes, inside loops over the other axes."""
        b = self.b
        outer = (self.batch, self.rows[:-1], self.columns[:-1])

        def matrix(*index: Index) -> None:
            rest = iter(index)
            batch, row, column = (tuple(itertools.islice(rest, len(part))) for part in outer)
            _along(b, self.rows, row, self.tile[0], lambda rows: _along(
                b, self.columns, column, self.tile[1], lambda columns: store(batch, rows, columns)))

        def store(batch: Position, rows: Sequence[Position], columns: Sequence[Position]) -> None:
            values = self.results(batch, rows, columns)
            for (row, column), value in zip(itertools.product(rows, columns), values, strict=True):
                out.put((*batch, *row, *column), value)

        each(b, [*itertools.chain(*outer)], matrix)


def _is_zero(x: ir.Value, y: ir.Value) -> bool:
    """Whether both are constants, finite, and their product is zero."""
    if not (isinstance(x, ir.Constant) and isinstance(y, ir.Constant)):
        return False
    first, second = (v.constant[0].constant if isinstance(v.type, ir.VectorType) else v.constant for v in (x, y))
    return all(isinstance(v, (int, float)) for v in (first, second)) and first * second == 0


def _places(rank: int, batch: Sequence[int], contracted: Sequence[int]) -> list[int]:
    """For each axis of an operand, which part of (*batch, *free, *contracted) indexes it."""
    free = [axis for axis in range(rank) if axis not in (*batch, *contracted)]
    return np.argsort([*batch, *free, *contracted]).tolist()


def _along(b: Emitter, sizes: Sequence[int], outer: Position, step: int, fn: Callable[[list[Position]], None]) -> None:
    """`fn` for runs of `step` positions along the last of several axes; where there is none, for the only position."""
    if not sizes:
        fn([()])
    else:
        blocks(b, sizes[-1], step, lambda run: fn([(*outer, i) for i in run]))
