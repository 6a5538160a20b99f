"""Loops over rows and columns of matrices in memory, and views of such matrices."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from lanax._llvm.memory import Index
from lanax._lowering.arrays import Memory
from lanax._lowering.emitter import Emitter

Values = list[ir.Value]

#: Columns that are worked on in one trip, so that their sums do not wait for each other.
_BLOCK = 4


def span(b: Emitter, first: Index, end: Index, values: Values, fn: Callable[[Index, Values], Values]) -> Values:
    """`fn(i, values)` for i = first, first + 1, ..., end - 1, each with what the one before gave."""
    trips = b.isub(end, first) if isinstance(end, int) and isinstance(first, int) else b.sub(as_i64(b, end), first)
    return b.count(trips, values, lambda i, v: fn(b.iadd(first, i), v))


def each_of(b: Emitter, first: Index, end: Index, fn: Callable[[Index], None]) -> None:
    """`fn(i)` for i = first, first + 1, ..., end - 1."""

    def body(i: Index, _: Values) -> Values:
        fn(i)
        return []

    span(b, first, end, [], body)


def each_block(b: Emitter, first: Index, end: int, fn: Callable[[list[Index]], None]) -> None:
    """`fn` for runs of four numbers from `first` to `end` - 1, then for what is left one by one."""
    count = b.isub(end, first) if isinstance(first, int) else b.sub(b.i64(end), first)
    full, _ = b.idivmod(count, _BLOCK)
    each_of(b, 0, full, lambda i: fn([b.iadd(b.iadd(first, b.imul(i, _BLOCK)), j) for j in range(_BLOCK)]))
    each_of(b, b.iadd(first, b.imul(full, _BLOCK)), end, lambda i: fn([i]))


def as_i64(b: Emitter, i: Index) -> ir.Value:
    return b.i64(i) if isinstance(i, int) else i


def window(b: Emitter, x: Memory, *first: Index, shape: tuple[int, ...]) -> Memory:
    """The part of `x` that begins at an index, to be read and written; of leading axes one element each."""
    lost = len(first) - len(shape)

    def place(index: tuple[Index, ...]) -> tuple[Index, ...]:
        return (*first[:lost], *(b.iadd(i, j) for i, j in zip(first[lost:], index, strict=True)))

    return Memory(shape, x.dtype, x.varying, x.buffer, lambda i: x.at(*place(i)), lambda i, v: x.put(place(i), v))


def turned(x: Memory) -> Memory:
    """A matrix with rows and columns exchanged, in the same memory."""
    return Memory(x.shape[::-1], x.dtype, x.varying, x.buffer, lambda i: x.at(*i[::-1]),
                  lambda i, v: x.put(i[::-1], v))


def reverse(b: Emitter, x: Memory) -> Memory:
    """A matrix or a vector with all axes in reverse order, in the same memory."""

    def place(index: tuple[Index, ...]) -> tuple[Index, ...]:
        return tuple(n - 1 - i if isinstance(i, int) else b.sub(n - 1, i) for n, i in zip(x.shape, index, strict=True))

    return Memory(x.shape, x.dtype, x.varying, x.buffer, lambda i: x.at(*place(i)), lambda i, v: x.put(place(i), v))


def swap_elements(x: Memory, i: tuple[Index, ...], j: tuple[Index, ...]) -> None:
    """Exchange two elements; where they are may differ from lane to lane."""
    here, there = x.at(*i), x.at(*j)
    x.put(j, here)
    x.put(i, there)


def like_lanes(b: Emitter, x: Memory, *values: ir.Value) -> Values:
    """Values that enter a loop over `x`: in all lanes where it varies."""
    return [b.splat(v) if x.varying else v for v in values]
