"""Results that a kernel gives summed over the batch: one row of sums for each block of examples.

The order of the additions tells nothing of lanes or threads. The values of a group of consecutive examples are first
written side by side; then the upper half of the group is added to the lower half, and so on until one sum is left. The
sums of a block's groups are added one after another.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from lanax._llvm import types as t
from lanax._llvm.memory import address
from lanax._lowering.emitter import Emitter
from lanax._lowering.operands import Operand


def row_operand(aval: Any) -> Operand:
    """One row of sums of a type; those of 16-bit floats are float32."""
    op = Operand.of(aval, None)
    return dataclasses.replace(op, dtype=np.dtype(np.float32)) if op.itemsize == 2 else op


def side_by_side(op: Operand) -> Operand:
    """A result to be summed as an output of a group of examples: the batch axis is the last one."""
    return dataclasses.replace(op, axis=len(op.shape))


def sum_block(axis_size: int) -> int:
    """Examples whose sum is one row: few where there are few examples, which are to be spread over threads."""
    return 16 if axis_size < 2048 else 64 if axis_size < 1 << 18 else 1024


def group_of(block: int) -> int:
    """Examples of a group: as many as the longest step has, or the whole block."""
    return min(block, 64)


class SummedResult:
    """The place of one group's values, `[element][example]` in scratch, and the rows that their sums go to."""

    def __init__(self, b: Emitter, op: Operand, rows: ir.Value, block: int, lanes: int):
        self.op, self.rows, self.block = op, rows, block
        self.group = group_of(block)
        self.width = max(self.group, lanes)
        self.elements = math.prod(op.shape)
        self.kind = t.lane_type(op.dtype).memory
        self.values = b.reserve(self.elements * self.width * op.itemsize)

    def add(self, b: Emitter, start: ir.Value, count: ir.Value) -> None:
        """Add the values of the `count` examples from `start` on, the first of a group, to their row."""
        self._clear(b, count)
        for first in range(0, self.width, self.group):
            with b.ir.if_then(b.lt(b.i64(first), count)):
                self._add_group(b, first, b.add(start, first))

    def _clear(self, b: Emitter, count: ir.Value) -> None:
        """-0.0, which changes no sum, where there is no example."""
        nothing = ir.Constant(self.kind, -0.0)

        def clear(k: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            place = b.add(count, k)
            b.count(self.elements, [], lambda e, _: put(b.add(b.mul(e, self.width), place)))
            return []

        def put(offset: ir.Value) -> list[ir.Value]:
            b.ir.store(nothing, address(b, self.values, offset, self.kind), align=self.op.itemsize)
            return []

        b.count(b.sub(b.i64(self.width), count), [], clear)

    def _add_group(self, b: Emitter, first: int, start: ir.Value) -> None:
        row = b.mul(b.ir.sdiv(start, b.i64(self.block)), self.elements)
        later = b.ne(b.ir.srem(start, b.i64(self.block)), 0)

        def each(e: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            total = self._total(b, b.add(b.mul(e, self.width), first))
            place = address(b, self.rows, b.add(row, e), self.kind)
            if self.block > self.group:
                total = b.branch(later, lambda: [b.add(b.ir.load(place, typ=self.kind, align=width), total)],
                                 lambda: [total])[0]
            b.ir.store(total, place, align=width)
            return []

        width = self.op.itemsize
        b.count(self.elements, [], each)

    def _total(self, b: Emitter, offset: ir.Value) -> ir.Value:
        """The sum of a group's values of one element."""
        half = self.group // 2
        low, high = (b.ir.load(address(b, self.values, b.add(offset, k), self.kind),
                               typ=ir.VectorType(self.kind, half), align=self.op.itemsize) for k in (0, half))
        total = b.add(low, high)
        while half > 1:
            half //= 2
            total = b.add(*(b.part(total, k, half) for k in (0, half)))
        return b.extract(total, 0)


def in_groups(b: Emitter, results: list[SummedResult], begin: ir.Value, end: ir.Value,
              run: Callable[[ir.Value, ir.Value], None]) -> None:
    """`run(start, end)` for one group of the examples [begin, end) after another, each then added to the sums."""
    width = results[0].width

    def group(i: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        start = b.add(begin, b.mul(i, width))
        count = b.ir.sub(end, start)
        count = b.select(b.lt(count, b.i64(width)), count, b.i64(width))
        run(start, b.add(start, count))
        for result in results:
            result.add(b, start, count)
        return []

    steps = b.ir.sdiv(b.add(b.sub(end, begin), width - 1), b.i64(width))
    b.count(steps, [], group)
