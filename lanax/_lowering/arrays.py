"""Per-example arrays inside a kernel. An array is a function from an index to the lane value there: small ones are
unrolled lists of lane values, large ones lie in memory or are computed where they are read. Emits nothing itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
from llvmlite import ir

from lanax._llvm.memory import Index, is_varying
from lanax._planning.work import UNROLL as UNROLL

ALWAYS_MASKED = object()


class Buffer:
    """Identity of a piece of memory, by which aliases are told apart."""


class Array:
    """Base of the forms of an array; `at(*index)` gives the lane value of one element.

    Attributes:
      shape: dimensions of one example.
      dtype: NumPy dtype; of a key array, the dtype of its words.
      varying: whether elements may differ from lane to lane; where not, they are scalars.
      reads: buffers that evaluating an element reads.
      factors: the two arrays whose product this is, so that a following sum can become an FMA.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    varying: bool
    reads: frozenset[Buffer] = frozenset()
    factors: tuple[Array, Array] | None = None

    def at(self, *index: Index) -> ir.Value:
        raise NotImplementedError

    @property
    def size(self) -> int:
        """Number of elements of one example."""
        return math.prod(self.shape)


class Elements(Array):
    """A small array as the list of its lane values. `copied`: the block in which it was last stored to be read from
    memory, and that memory."""

    def __init__(self, values: np.ndarray, dtype: np.dtype, pick: Callable[[Elements, tuple], ir.Value] | None = None):
        self.values = values
        self.shape = values.shape
        self.dtype = np.dtype(dtype)
        self.varying = any(isinstance(v.type, ir.VectorType) for v in values.flat)
        self.copied: tuple[ir.Block, Memory] | None = None
        self._pick = pick

    def at(self, *index: Index) -> ir.Value:
        if all(isinstance(i, int) for i in index):
            return self.values[index]  # pyright: ignore[reportCallIssue, reportArgumentType]
        assert self._pick is not None, "an unrolled array needs an emitter to be indexed at run time"
        return self._pick(self, index)


class Memory(Array):
    """An array in memory: element strides and a lane stride, all in elements.

    Attributes:
      owned: nothing else needs the present contents once the last value that reads them is dead, so an update may be
        done in place.
      born: the mask under which the memory was allocated. Under that mask an update in place may write all lanes:
        those that are off have nothing there. `ALWAYS_MASKED`: where that is not known.
      base: the address of an array that is dense, as `Emitter.allocate` lays it out; None where that is not known.
      copy_to: writes the array to such an address, where its lanes lie apart, so that reading an element is slow.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, varying: bool, buffer: Buffer,
                 load: Callable[[tuple[Index, ...]], ir.Value],
                 store: Callable[[tuple[Index, ...], ir.Value], None] | None = None, owned: bool = False):
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.varying = varying
        self.buffer = buffer
        self.reads = frozenset({buffer})
        self.owned = owned
        self.born: object = ALWAYS_MASKED
        self.base: ir.Value | None = None
        self.copy_to: Callable[[ir.Value], None] | None = None
        self._load = load
        self._store = store

    def at(self, *index: Index) -> ir.Value:
        return self._load(index)

    def put(self, index: tuple[Index, ...], value: ir.Value) -> None:
        """Write one element."""
        assert self._store is not None, "this memory is read only"
        self._store(index, value)

    def borrowed(self) -> Memory:
        """The same memory, to be read only."""
        memory = Memory(self.shape, self.dtype, self.varying, self.buffer, self._load)
        memory.base, memory.copy_to = self.base, self.copy_to
        return memory


class Lazy(Array):
    """An array that is computed where it is read. `view`: reading an element costs no arithmetic."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, fn: Callable[..., ir.Value], operands: Iterable[Array],
                 view: bool = False, varying: bool | None = None):
        operands = tuple(operands)
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype)
        self.varying = any(a.varying for a in operands) if varying is None else varying
        self.reads = frozenset().union(*(a.reads for a in operands))
        self.view = view and all(is_cheap(a) for a in operands)
        self._fn = fn

    def at(self, *index: Index) -> ir.Value:
        return self._fn(*index)


def is_cheap(array: Array) -> bool:
    """Whether reading an element again costs no arithmetic."""
    return not isinstance(array, Lazy) or array.view


def index_varies(index: Iterable[Index]) -> bool:
    """Whether any part of an index differs from lane to lane."""
    return any(is_varying(i) for i in index)


def known(index: Iterable[Index]) -> bool:
    """Whether an index is known when the kernel is built."""
    return all(isinstance(i, int) for i in index)
