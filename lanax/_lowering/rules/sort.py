"""`sort` and `top_k` by networks of compare-exchanges, the same for all lanes: in registers for a few elements, else in
loops over memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from lanax._llvm import types as t
from lanax._llvm.memory import Index
from lanax._lowering.arrays import UNROLL, Array, Memory
from lanax._lowering.context import Context
from lanax._lowering.emitter import Emitter
from lanax._lowering.registry import register
from lanax._lowering.windows import readable

#: What is sorted together: the lane values of all operands at one position.
Row = list[ir.Value]

#: A column of up to this many rows is sorted in registers.
_IN_REGISTERS = 16
#: At most this many compare-exchanges are emitted one by one.
_EXCHANGES = 256
#: A longer column takes a network too many steps.
_LONGEST = 1024
#: The largest `k` of a `top_k` that goes through the rows once.
_LARGEST_K = 16

_INDEX = np.dtype(np.int32)


# -- order -----------------------------------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True)
class Order:
    """Which of two rows comes first: lexicographic in the leading lane values, whose dtypes are `keys`.

    Floats as JAX sorts them: NaN, of either sign, last; -0.0 equals 0.0.
    """

    b: Emitter
    keys: tuple[np.dtype, ...]

    def before(self, x: Row, y: Row) -> ir.Value:
        """Whether row `x` must stand before row `y`, as i1 lanes."""
        out: ir.Value | None = None
        for dtype, u, v in reversed(list(zip(self.keys, x, y, strict=False))):
            less = self._less(dtype, u, v)
            out = less if out is None else self.b.or_(less, self.b.and_(self._same(u, v), out))
        assert out is not None
        return out

    def _less(self, dtype: np.dtype, x: ir.Value, y: ir.Value) -> ir.Value:
        b = self.b
        x, y = b.join(x, y)
        if t.is_float(x.type):
            return b.and_(b.ir.fcmp_unordered("<", x, y), b.ir.fcmp_ordered("ord", x, x))
        return b.compare("<", x, y, signed=dtype.kind == "i")

    def _same(self, x: ir.Value, y: ir.Value) -> ir.Value:
        b = self.b
        if t.is_float(x.type):
            return b.or_(b.eq(x, y), b.and_(b.isnan(x), b.isnan(y)))
        return b.eq(x, y)

    def exchange(self, first: Row, second: Row) -> tuple[Row, Row]:
        """The two rows in order; equal ones stay as they are."""
        b = self.b
        swap = self.before(second, first)
        low = [b.select(swap, v, u) for u, v in zip(first, second, strict=True)]
        high = [b.select(swap, u, v) for u, v in zip(first, second, strict=True)]
        return low, high


def _sort_registers(order: Order, rows: list[Row]) -> list[Row]:
    """Odd-even transposition: only neighbours are exchanged, so that equal rows keep their order."""
    rows = list(rows)
    for step in range(len(rows)):
        for i in range(step % 2, len(rows) - 1, 2):
            rows[i], rows[i + 1] = order.exchange(rows[i], rows[i + 1])
    return rows


def _sort_memory(order: Order, n: int, load: Callable[[Index], Row], store: Callable[[Index, Row], None]) -> None:
    """Batcher's merge exchange (Knuth, The Art of Computer Programming 3, algorithm 5.2.2M), for rows in memory.

    Equal rows do not keep their order.
    """
    b = order.b
    top = b.i64(1 << max(0, (n - 1).bit_length() - 1))

    def merge(p: ir.Value) -> None:
        low = b.sub(p, 1)

        def step(values: list[ir.Value]) -> tuple[list[ir.Value], ir.Value]:
            q, r, d = values

            def pair(inner: list[ir.Value]) -> tuple[list[ir.Value], ir.Value]:
                (m,) = inner
                i = _with_bit(b, m, low, r)
                j = b.add(i, d)
                first, second = order.exchange(load(i), load(j))
                store(i, first)
                store(j, second)
                m = b.add(m, 1)
                return [m], b.lt(b.add(_with_bit(b, m, low, r), d), n)

            b.loop(b.lt(b.add(r, d), n), [b.i64(0)], pair)
            return [b.lshr(q, 1), p, b.sub(q, p)], b.ne(q, p)

        b.loop(ir.Constant(t.I1, 1), [top, b.i64(0), p], step)

    def halve(values: list[ir.Value]) -> tuple[list[ir.Value], ir.Value]:
        (p,) = values
        merge(p)
        return [b.lshr(p, 1)], b.gt(p, 1)

    b.loop(ir.Constant(t.I1, 1), [top], halve)


def _with_bit(b: Emitter, m: ir.Value, low: ir.Value, bit: ir.Value) -> ir.Value:
    """The number `m` spread out so that one bit of it is `bit`: those below, which are `low`, stay in place."""
    return b.add(b.sub(b.shl(m, 1), b.and_(m, low)), bit)


# -- columns ---------------------------------------------------------------------------------------------------------
def _sort_column(order: Order, columns: Sequence[Memory], at: Callable[[Index], tuple[Index, ...]], n: int,
                 index: Memory | None) -> None:
    """Sort one column in memory, with `index` as scratch where equal rows are to keep their order."""
    b = order.b

    def load(i: Index) -> Row:
        return [column.at(*at(i)) for column in columns]

    def store(i: Index, row: Row) -> None:
        for column, value in zip(columns, row, strict=False):
            column.put(at(i), value)

    if n <= _IN_REGISTERS:
        for i, row in enumerate(_sort_registers(order, [load(i) for i in range(n)])):
            store(i, row)
        return
    if index is None:
        _sort_memory(order, n, load, store)
        return
    b.for_each((n,), lambda i: index.put((i,), _as_int32(b, i)))
    count = len(order.keys)

    def load_indexed(i: Index) -> Row:
        row = load(i)
        return [*row[:count], index.at(i), *row[count:]]

    def store_indexed(i: Index, row: Row) -> None:
        store(i, [*row[:count], *row[count + 1:]])
        index.put((i,), row[count])

    _sort_memory(Order(b, (*order.keys, _INDEX)), n, load_indexed, store_indexed)


def _hides_order(b: Emitter, x: Memory, at: Callable[[Index], tuple[Index, ...]], n: int) -> ir.Value:
    """Whether any lane has floats in a column that compare equal but differ: zeros of both signs, or subnormals."""

    def step(i: ir.Value, values: list[ir.Value]) -> list[ir.Value]:
        v = x.at(*at(i))
        return [b.or_(values[0], b.and_(b.eq(v, 0.0), b.ne(b.bits(v), 0)))]

    none: ir.Value = ir.Constant(t.I1, 0)
    (found,) = b.count(n, [b.splat(none) if x.varying else none], step)
    return b.any(b.to_mask(found))


def _sort_in_memory(b: Emitter, xs: Sequence[Array], dimension: int, keys: tuple[np.dtype, ...],
                    stable: bool) -> list[Memory]:
    """All columns of some arrays, sorted together."""
    shape = xs[0].shape
    n = shape[dimension]
    keys_vary = any(x.varying for x in xs[: len(keys)])
    out = [b.allocate(x.shape, x.dtype, x.varying or keys_vary) for x in xs]
    for x, memory in zip(xs, out, strict=True):
        b.copy(x, memory)
    order = Order(b, keys)
    all_keys = len(keys) == len(xs)
    index = b.allocate((n,), _INDEX, keys_vary) if stable and n > _IN_REGISTERS else None

    def column(*rest: Index) -> None:
        def at(i: Index) -> tuple[Index, ...]:
            return (*rest[:dimension], i, *rest[dimension:])

        def sort(index: Memory | None) -> list[ir.Value]:
            _sort_column(order, out, at, n, index)
            return []

        floats = [x for x in out if x.dtype.kind not in "iub"]
        if index is None or not all_keys or len(floats) > 1:
            sort(index)
        elif not floats:
            sort(None)
        else:
            b.branch(_hides_order(b, floats[0], at, n), lambda: sort(index), lambda: sort(None))

    b.for_each((*shape[:dimension], *shape[dimension + 1:]), column)
    return out


def _sort_elements(b: Emitter, xs: Sequence[Array], dimension: int, keys: tuple[np.dtype, ...]) -> list[Array]:
    """All columns of some small arrays, in registers."""
    shape = xs[0].shape
    values = [np.moveaxis(b.unrolled(x).values, dimension, 0).copy() for x in xs]
    for rest in np.ndindex(*values[0].shape[1:]):
        rows = [[v[(i, *rest)] for v in values] for i in range(shape[dimension])]
        for i, row in enumerate(_sort_registers(Order(b, keys), rows)):
            for v, value in zip(values, row, strict=True):
                v[(i, *rest)] = value
    return [b.elements(np.moveaxis(v, 0, dimension), shape, x.dtype) for v, x in zip(values, xs, strict=True)]


# -- primitives ------------------------------------------------------------------------------------------------------
def _why_no_sort(avals_in: tuple[Any, ...], avals_out: tuple[Any, ...], params: Mapping[str, Any]) -> str | None:
    """Up to 1024 elements along the axis."""
    n = avals_in[0].shape[params["dimension"]]
    return f"sort of {n} elements: more than {_LONGEST} are not in lanes" if n > _LONGEST else None


@register("sort", supports=_why_no_sort, cost=20.0)
def _sort_rule(ctx: Context, *xs: Array, dimension: int, is_stable: bool, num_keys: int, **_: Any) -> list[Array]:
    b = ctx.b
    n, size = xs[0].shape[dimension], xs[0].size
    if n < 2 or size == 0:
        return list(xs)
    keys = tuple(x.dtype for x in xs[:num_keys])
    exchanges = size // n * (n * (n - 1) // 2)
    if size <= UNROLL and n <= _IN_REGISTERS and exchanges <= _EXCHANGES:
        return _sort_elements(b, xs, dimension, keys)
    out = _sort_in_memory(b, xs, dimension, keys, is_stable or num_keys < len(xs))
    return [b.unrolled(x) if b.is_small(x) else x for x in out]


def _why_no_top_k(avals_in: tuple[Any, ...], avals_out: tuple[Any, ...], params: Mapping[str, Any]) -> str | None:
    """`k` up to 16, or up to 1024 elements along the axis."""
    n, k = avals_in[0].shape[params["axis"]], params["k"]
    if k > _LARGEST_K and n > _LONGEST:
        return f"top_k of {n} elements with k = {k}: only k up to {_LARGEST_K}, or {_LONGEST} elements, are in lanes"
    return None


@register("top_k", supports=_why_no_top_k, cost=10.0)
def _top_k_rule(ctx: Context, x: Array, *, k: int, axis: int, **_: Any) -> list[Array]:
    """By IEEE's total order, descending; equal elements by index."""
    b = ctx.b
    kind = t.lane_type(x.dtype).lane
    bits = np.dtype(f"i{t.bit_width(kind) // 8}") if t.is_float(kind) else x.dtype
    keys = b.map(lambda v: b.not_(_total_order(b, b.bits(v)) if t.is_float(kind) else v), bits, x)

    def value(key: ir.Value) -> ir.Value:
        return b.float_of_bits(_total_order(b, b.not_(key))) if t.is_float(kind) else b.not_(key)

    shape = ctx.avals_out[0].shape
    if k > _LARGEST_K:
        index = b.lazy(x.shape, _INDEX, lambda *i: _as_int32(b, i[axis]), ())
        sorted_keys, sorted_index = _sort_in_memory(b, [keys, index], axis, (bits,), stable=True)
        return [b.lazy(shape, x.dtype, lambda *i: value(sorted_keys.at(*i)), (sorted_keys,)),
                b.view(sorted_index, shape, lambda *i: i)]
    return _select_largest(b, keys, axis, shape, x.dtype, value)


def _as_int32(b: Emitter, i: Index) -> ir.Value:
    return b.const(t.I32, i) if isinstance(i, int) else b.resize_int(i, t.I32)


def _total_order(b: Emitter, bits: ir.Value) -> ir.Value:
    """The bits of a float as an integer that orders as IEEE's total order does, and back."""
    return b.xor(bits, b.lshr(b.ashr(bits, t.bit_width(bits.type) - 1), 1))


def _select_largest(b: Emitter, keys: Array, axis: int, shape: tuple[int, ...], dtype: np.dtype,
                    value: Callable[[ir.Value], ir.Value]) -> list[Array]:
    """Without sorting everything: `k` rows are kept in registers."""
    n, k = keys.shape[axis], shape[axis]
    out = [b.allocate(shape, d, keys.varying) for d in (dtype, _INDEX)]
    unroll = b.is_small(keys) and keys.size * k <= _EXCHANGES
    source = keys if unroll else readable(b, keys, 1)

    def column(*rest: Index) -> None:
        def at(i: Index) -> tuple[Index, ...]:
            return (*rest[:axis], i, *rest[axis:])

        def load(i: Index) -> Row:
            row = [source.at(*at(i)), _as_int32(b, i)]
            return [b.splat(v) for v in row] if keys.varying else row

        for j, (key, i) in enumerate(_first_rows(Order(b, (keys.dtype,)), n, k, load, unroll)):
            out[0].put(at(j), value(key))
            out[1].put(at(j), i)

    b.for_each((*shape[:axis], *shape[axis + 1:]), column)
    return [b.unrolled(x) if b.is_small(x) else x for x in out]


def _first_rows(order: Order, n: int, k: int, load: Callable[[Index], Row], unroll: bool) -> list[Row]:
    """The first `k` of `n` rows in order, equal ones by position: each in turn is sorted in."""
    b = order.b
    rows: list[Row] = []

    def insert(rows: list[Row], new: Row) -> list[Row]:
        """The rows and a new one: those that it must stand before move one place down."""
        out, moving = [], new
        for row in rows:
            moves = order.before(new, row)
            out.append([b.select(moves, u, v) for u, v in zip(moving, row, strict=True)])
            moving = [b.select(moves, u, v) for u, v in zip(row, new, strict=True)]
        return [*out, moving]

    def step(i: Index, flat: Row) -> Row:
        rows = insert([flat[2 * j: 2 * j + 2] for j in range(k)], load(b.iadd(i, k)))
        return [v for row in rows[:k] for v in row]

    for i in range(k):
        rows = insert(rows, load(i))
    flat = [v for row in rows for v in row]
    if unroll:
        for i in range(n - k):
            flat = step(i, flat)
    elif k:
        flat = b.count(n - k, flat, step)
    return [flat[2 * j: 2 * j + 2] for j in range(k)]
