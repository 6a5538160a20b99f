"""Inputs and outputs of a kernel where they lie in memory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from lanax._jax import words_type
from lanax._llvm import types as t
from lanax._llvm.memory import Index, address, index_add, index_mul
from lanax._llvm.transpose import block_size, transpose
from lanax._lowering.arrays import UNROLL, Array, Memory
from lanax._lowering.emitter import Emitter, row_major
from lanax._lowering.keys import is_complex


@dataclasses.dataclass(frozen=True)
class Operand:
    """An input or output of a kernel: shape and dtype of one example, and where the batch axis stands (None: it has
    none, all examples share it). `parts`: of how many elements a number is, two where they are complex."""

    shape: tuple[int, ...]
    dtype: np.dtype
    axis: int | None
    parts: int = 1

    @classmethod
    def of(cls, aval: Any, axis: int | None) -> Operand:
        """The operand of a type; keys are arrays of their words, complex numbers of their parts."""
        if is_complex(aval):
            return cls((*aval.shape, 2), np.zeros((), aval.dtype).real.dtype, axis, parts=2)
        shape, dtype = words_type(aval)
        return cls(shape, np.dtype(dtype), axis)

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

    def __init__(self, b: Emitter, op: Operand, base: ir.Value | None = None):
        self.b, self.op = b, op
        self._strides = [s * b.lanes for s in row_major(op.shape)]
        self._base = b.reserve(math.prod(op.shape) * op.itemsize * b.lanes) if base is None else base

    def all(self) -> Memory:
        """The elements of all lanes."""
        memory = self.b.dense(self._base, self.op.shape, self.op.dtype, True)
        memory.owned = False  # what the lanes hold is needed until they have the next examples
        return memory

    def address(self, element: Index, lane: ir.Value) -> ir.Value:
        """Where element `element`, in row-major order, of a lane is."""
        return address(self.b, self._base, index_add(self.b, index_mul(self.b, element, self.b.lanes), lane),
                       t.lane_type(self.op.dtype).memory)

    def one(self, scalar: Emitter, lane: ir.Value) -> Memory:
        """The elements of one lane."""
        return scalar.memory(self._base, self.op.shape, self.op.dtype, self._strides, 0, lane)


#: Of rows of small arrays that no blocks fit, up to this many elements in all lanes are transposed by inserts, more
#: through memory.
_INSERTS = 128
#: Up to this many numbers of 32 bits are transposed by blocks in registers, where there are 32 of 512 bits, and where
#: there are others; more through memory. (Measured: products of 4 x 4 matrices 1.4 to 2 times as fast as by the other
#: ways, solves 1.2 times; beyond these ends, where values are spilled, inverses and solves 0.5 times.)
_REGISTERS, _OTHER_REGISTERS = 256, 128


#: Bytes of a larger array in all lanes up to which its rows are transposed at once, by blocks. (Measured for arrays of
#: 100 to 1000 elements: 1.1 to 2.5 times as fast as element by element, in less code.)
_MOST_TRANSPOSED = 1 << 18


def _by_rows(b: Emitter, op: Operand, most: float = _MOST_TRANSPOSED) -> bool:
    """Whether rows are transposed at once; of arrays that are not small, those of up to `most` bytes."""
    size = math.prod(op.shape)
    if op.axis is None or op.inner <= 1:
        return False
    if size <= UNROLL * op.parts:
        return size * b.lanes > _INSERTS or _fits_registers(b, op)
    return _block(b, op) > 0 and size * b.lanes * op.itemsize <= most


def _block(b: Emitter, op: Operand) -> int:
    """The width of the blocks into which rows are cut; 0 for none."""
    bits = 8 * op.itemsize
    plain = op.outer == 1 and op.dtype.kind in "fiu" and bits in (32, 64)
    size = block_size(op.inner, bits) if plain else 0
    return size if size <= b.lanes else 0


def _fits_registers(b: Emitter, op: Operand) -> bool:
    wide = b.registers * b.register_bytes >= 32 * 64
    most = (_REGISTERS if wide else _OTHER_REGISTERS) * 4 // op.itemsize
    return _block(b, op) > 0 and op.inner * b.lanes <= most


def input_array(b: Emitter, op: Operand, pointer: ir.Value, size: ir.Value, start: Index,
                whole: bool = False) -> Array:
    """An input as an array, to be read only; small ones are loaded at once, unless all examples share them: those are
    read where they are needed, at any index. `whole`: it is read from end to end."""
    if _by_rows(b, op, _MOST_TRANSPOSED if whole else 0):
        rows = _Rows(b, op, pointer, size, start)
        if rows.in_registers:
            return b.elements(rows.values(), op.shape, op.dtype)
        rows.load()
        found = rows.slots.all()
        return b.unrolled(found) if b.is_small(found) else found.borrowed()
    memory = strided(b, op, pointer, size, start).borrowed()
    if op.axis is None:
        return b.unrolled(memory) if op.shape == () else memory
    if b.is_small(memory):
        return b.unrolled(memory)
    if op.inner > 1:
        memory.copy_to = lambda base: _copy(b, op, pointer, size, start, base)
    return memory


def _copy(b: Emitter, op: Operand, pointer: ir.Value, size: ir.Value, start: Index, base: ir.Value) -> None:
    """Write an input to an address as arrays in scratch are laid out."""
    if _block(b, op):
        _Rows(b, op, pointer, size, start, base).load()
    else:
        b.copy(strided(b, op, pointer, size, start), b.dense(base, op.shape, op.dtype, True))


def store_output(b: Emitter, op: Operand, pointer: ir.Value, size: ir.Value, start: Index, result: Array) -> None:
    """Write an output where it belongs."""
    base = result.base if isinstance(result, Memory) and result.varying else None
    if not _by_rows(b, op, _MOST_TRANSPOSED if base is None else math.inf):
        b.copy(result, strided(b, op, pointer, size, start))
        return
    rows = _Rows(b, op, pointer, size, start, base)
    if rows.in_registers:
        rows.put([b.splat(v) for v in b.unrolled(result).values.flat])
        return
    if base is None:
        b.copy(result, rows.slots.all())
    rows.store()


class _Rows:
    """The rows of the lanes' examples where they lie. Where they are not transposed in registers, `slots` are their
    elements in scratch, at `base` where it is given."""

    def __init__(self, b: Emitter, op: Operand, pointer: ir.Value, size: ir.Value, start: Index,
                 base: ir.Value | None = None):
        self.b, self.op, self.pointer, self.size, self.start = b, op, pointer, size, start
        self.block = _block(b, op)
        self.cut = op.inner - op.inner % self.block if self.block else 0
        self.in_registers = base is None and _fits_registers(b, op)
        if not self.in_registers:
            self.slots = Slots(b, op, base)

    def values(self) -> list[ir.Value]:
        """The elements of each row in all lanes."""
        b, n = self.b, self.block
        vector = ir.VectorType(t.lane_type(self.op.dtype).memory, n)
        values: dict[int, ir.Value] = {}
        for column in self._columns():
            blocks = [transpose(b, [b.ir.load(place, typ=vector, align=self.op.itemsize)
                                    for place in self._places(lane, column)]) for lane in range(0, b.lanes, n)]
            values.update(enumerate((b.joined(parts) for parts in zip(*blocks, strict=True)), column))
        return [values[k] for k in range(self.op.inner)]

    def put(self, values: Sequence[ir.Value]) -> None:
        """Write such elements into the rows."""
        b, n = self.b, self.block
        for lane in range(0, b.lanes, n):
            for column in self._columns():
                block = transpose(b, [b.part(x, lane, n) for x in values[column:column + n]])
                for row, place in zip(block, self._places(lane, column), strict=True):
                    b.ir.store(row, place, align=self.op.itemsize)

    def _columns(self) -> list[int]:
        """Where blocks begin; the last one overlaps the one before it where rows are no multiple of a block."""
        return sorted({*range(0, self.cut, self.block), self.op.inner - self.block})

    def _places(self, lane: Index, column: Index) -> list[ir.Value]:
        """Where the rows of a block from this lane and column on are."""
        b, inner = self.b, self.op.inner
        first = index_add(b, index_mul(b, index_add(b, self.start, lane), inner), column)
        kind = t.lane_type(self.op.dtype).memory
        return [address(b, self.pointer, index_add(b, first, i * inner), kind) for i in range(self.block)]

    def load(self) -> None:
        """Rows into slots: by blocks, and what is left of each row element by element."""
        self._blocks(lambda row, slot: (row, slot))
        self._each_row(lambda row, slot: (row, slot))

    def store(self) -> None:
        """Slots into rows."""
        self._blocks(lambda row, slot: (slot, row))
        self._each_row(lambda row, slot: (slot, row))

    def _blocks(self, direction: Callable[[Any, Any], tuple[Any, Any]]) -> None:
        if not self.block:
            return
        b, n = self.b, self.block
        vector = ir.VectorType(t.lane_type(self.op.dtype).memory, n)
        width = self.op.itemsize

        def step(group: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            lane = b.mul(group, n)
            b.for_each((self.cut // n,), lambda k: move(lane, index_mul(b, k, n)))
            return []

        def move(lane: ir.Value, column: Index) -> None:
            rows = [(place, width) for place in self._places(lane, column)]
            slots = [(self.slots.address(index_add(b, column, i), lane), n * width) for i in range(n)]
            source, target = direction(rows, slots)
            block = [b.ir.load(place, typ=vector, align=align) for place, align in source]
            for value, (place, align) in zip(transpose(b, block), target, strict=True):
                b.ir.store(value, place, align=align)

        b.count(b.lanes // n, [], step)

    def _each_row(self, direction: Callable[[Any, Any], tuple[Any, Any]]) -> None:
        """The elements behind the blocks."""
        if self.cut == self.op.inner:
            return
        b, scalar = self.b, self.b.one_lane()
        left = list(np.ndindex(*self.op.shape))[self.cut:]

        def step(lane: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            row = strided(scalar, self.op, self.pointer, self.size, index_add(b, self.start, lane))
            source, target = direction(row, self.slots.one(scalar, lane))
            for index in left:
                target.put(index, source.at(*index))
            return []

        b.count(b.lanes, [], step)
