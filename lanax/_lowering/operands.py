"""Inputs and outputs of a kernel where they lie in memory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from lanax._llvm.memory import Index, index_add, index_mul
from lanax._lowering.arrays import UNROLL, Array, Memory
from lanax._lowering.emitter import Emitter, row_major
from lanax._lowering.keys import is_key, words_shape


@dataclasses.dataclass(frozen=True)
class Operand:
    """An input or output of a kernel: shape and dtype of one example, and where the batch axis stands (None: it has
    none, all examples share it)."""

    shape: tuple[int, ...]
    dtype: np.dtype
    axis: int | None

    @classmethod
    def of(cls, aval: Any, axis: int | None) -> Operand:
        """The operand of a type; keys are arrays of their words."""
        if is_key(aval):
            return cls((*aval.shape, *words_shape(aval)), np.dtype(np.uint32), axis)
        return cls(tuple(aval.shape), np.dtype(aval.dtype), axis)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def outer(self) -> int:
        """Elements before the batch axis."""
        return math.prod(self.shape[: self.axis])

    @property
    def inner(self) -> int:
        """Elements after the batch axis: the distance from one example to the next."""
        return math.prod(self.shape[self.axis:]) if self.axis is not None else 0

    @property
    def example_bytes(self) -> int:
        """Bytes that one example has of its own."""
        return 0 if self.axis is None else math.prod(self.shape) * self.itemsize


def strided(b: Emitter, op: Operand, pointer: ir.Value, size: ir.Value, start: Index) -> Memory:
    """An input or output where it lies, from example `start` on; where that is a vector, the example of each lane."""
    axis = op.axis
    if axis is None:
        return b.memory(pointer, op.shape, op.dtype, row_major(op.shape), 0, 0)
    strides: list[Index] = [index_mul(b, size, s) if i < axis else s for i, s in enumerate(row_major(op.shape))]
    apart = isinstance(start, ir.Value) and isinstance(start.type, ir.VectorType)
    return b.memory(pointer, op.shape, op.dtype, strides, 0 if apart else op.inner, index_mul(b, start, op.inner))


class Slots:
    """An input or output of the examples that the lanes hold, in scratch: `[element][lane]`."""

    def __init__(self, b: Emitter, op: Operand):
        self.b, self.op = b, op
        self._strides = [s * b.lanes for s in row_major(op.shape)]
        self._base = b.reserve(math.prod(op.shape) * op.itemsize * b.lanes)

    def all(self) -> Memory:
        """The elements of all lanes."""
        return self.b.memory(self._base, self.op.shape, self.op.dtype, self._strides, 1, 0, aligned=True)

    def one(self, scalar: Emitter, lane: ir.Value) -> Memory:
        """The elements of one lane."""
        return scalar.memory(self._base, self.op.shape, self.op.dtype, self._strides, 0, lane)


#: Rows of small arrays of more than this many elements in all lanes are transposed by a loop, below it by inserts.
_INSERTS = 128


def _by_loop(b: Emitter, op: Operand) -> bool:
    size = math.prod(op.shape)
    return op.axis is not None and op.inner > 1 and size <= UNROLL and size * b.lanes > _INSERTS


def input_array(b: Emitter, op: Operand, pointer: ir.Value, size: ir.Value, start: Index) -> Array:
    """An input as an array, to be read only; small ones are loaded at once, unless all examples share them: those are
    read where they are needed, at any index."""
    if _by_loop(b, op):
        slots = Slots(b, op)
        _each_row(b, op, pointer, size, start, lambda row, lane: b.copy(row, lane), slots)
        return b.unrolled(slots.all())
    memory = strided(b, op, pointer, size, start).borrowed()
    shared = op.axis is None and op.shape != ()
    return b.unrolled(memory) if memory.small and not shared else memory


def store_output(b: Emitter, op: Operand, pointer: ir.Value, size: ir.Value, start: Index, result: Array) -> None:
    """Write an output where it belongs."""
    if not _by_loop(b, op):
        b.copy(result, strided(b, op, pointer, size, start))
        return
    slots = Slots(b, op)
    b.copy(result, slots.all())
    _each_row(b, op, pointer, size, start, lambda row, lane: b.copy(lane, row), slots)


def _each_row(b: Emitter, op: Operand, pointer: ir.Value, size: ir.Value, start: Index,
              move: Callable[[Memory, Memory], None], slots: Slots) -> None:
    """`move(row, slot)` for the row and the slot of each lane."""
    scalar = b.one_lane()

    def step(lane: ir.Value, values: list[ir.Value]) -> list[ir.Value]:
        move(strided(scalar, op, pointer, size, index_add(b, start, lane)), slots.one(scalar, lane))
        return values

    b.count(b.lanes, [], step)
