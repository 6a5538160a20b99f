"""Inputs and outputs of a kernel where they lie in memory."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from llvmlite import ir

from lanax._llvm.memory import Index, index_mul
from lanax._lowering.arrays import Array, Memory
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


def input_array(b: Emitter, op: Operand, pointer: ir.Value, size: ir.Value, start: Index) -> Array:
    """An input as an array, to be read only; small ones are loaded at once."""
    memory = strided(b, op, pointer, size, start).borrowed()
    return b.unrolled(memory) if memory.small else memory
