"""What rules emit code with: lane operations, control flow, scratch memory and arrays. Knows no primitive."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from llvmlite import ir

from lanax._llvm import types as t
from lanax._llvm.control import Control
from lanax._llvm.memory import Index, index_add, index_mul, index_sum, load, store
from lanax._lowering.arrays import UNROLL, Array, Buffer, Elements, Lazy, Memory, is_cheap
from lanax._lowering.meter import Meter

_ALIGN = 64


class Emitter(Control):
    """Emits one kernel. Scratch is laid out while the kernel is built: `scratch_bytes` is what a thread must bring.

    Attributes:
      unroll: elements of the largest array that is unrolled.
      loop_unroll: elements that `for_each` runs without a loop.
      registers, register_bytes: SIMD registers of the target, and the size of one.
    """

    def __init__(self, builder: ir.IRBuilder, lanes: int, mask_bits: int | None, scratch: ir.Value):
        super().__init__(builder, lanes, mask_bits)
        self.scratch = scratch
        self.scratch_bytes = 0
        self.unroll, self.loop_unroll = UNROLL, LOOP_UNROLL
        self.registers, self.register_bytes = 16, 32
        self.meter: Meter | None = None
        self.unrolled_products = 0

    def one_lane(self) -> Emitter:
        """An emitter of scalar code at the same position."""
        return self.some_lanes(1)

    def some_lanes(self, count: int) -> Emitter:
        """An emitter for so many of the lanes at the same position, which has laid out no scratch."""
        some = Emitter(self.ir, count, self.mask_bits if count > 1 else None, self.scratch)
        some.take_settings(self)
        return some

    def take_settings(self, other: Emitter) -> None:
        """Emit code in the way of another emitter."""
        self.fast, self.keeps_loops = other.fast, other.keeps_loops
        self.unroll, self.loop_unroll = other.unroll, other.loop_unroll
        self.registers, self.register_bytes = other.registers, other.register_bytes

    def keep_loops(self) -> None:
        """Emit short code from here on: few elements are unrolled, and LLVM unrolls no loop."""
        self.unroll, self.loop_unroll, self.keeps_loops = SHORT_UNROLL, SHORT_LOOP_UNROLL, True

    def may_unroll(self, multiply_adds: int) -> bool:
        """Whether a product of this size may be emitted without a loop: a program has many, and the compiler's time
        grows with all of them together."""
        if self.unrolled_products + multiply_adds > UNROLLED_PRODUCTS:
            return False
        self.unrolled_products += multiply_adds
        return True

    def function(self, name: str, args: int, fill: Callable[[Emitter, Sequence[ir.Value]], None]) -> ir.Function:
        """A function of so many addresses, made once in a kernel: `fill(b, addresses)` emits what it does, without
        scratch. What it writes at one of them is not read at another."""
        function = self.ir.module.globals.get(name)
        if function is None:
            function = out_of_line(self.ir.module, name, [t.PTR] * args)
            inner = Emitter(ir.IRBuilder(function.append_basic_block("entry")), self.lanes, self.mask_bits,
                            ir.Constant(t.PTR, ir.Undefined))
            inner.take_settings(self)
            fill(inner, function.args)
            inner.ir.ret_void()
        return function

    # -- index arithmetic ----------------------------------------------------------------------------------------
    def i64(self, value: int) -> ir.Constant:
        return ir.Constant(t.I64, value)

    def iadd(self, x: Index, y: Index) -> Index:
        return index_add(self, x, y)

    def imul(self, x: Index, y: Index) -> Index:
        return index_mul(self, x, y)

    def isub(self, x: Index, y: Index) -> Index:
        """x - y, folded where both are known."""
        if isinstance(x, int) and isinstance(y, int):
            return x - y
        if isinstance(y, int) and y == 0:
            return x
        return self.sub(x, y)

    def idivmod(self, x: Index, n: int) -> tuple[Index, Index]:
        """Quotient and remainder of an index that is not negative."""
        if isinstance(x, int):
            return divmod(x, n)
        if n == 1:
            return x, 0
        q = self.ir.udiv(x, self.like(x, n))
        return q, self.sub(x, self.mul(q, n))

    def flat_index(self, index: Sequence[Index], shape: Sequence[int]) -> Index:
        """Row-major position of an index."""
        return index_sum(self, index, row_major(shape))

    def split_index(self, flat: Index, shape: Sequence[int]) -> tuple[Index, ...]:
        """The index at a row-major position."""
        out: list[Index] = []
        for n in reversed(shape[1:]):
            flat, i = self.idivmod(flat, n)
            out.append(i)
        return tuple(reversed([*out, flat])) if shape else ()

    # -- making arrays -------------------------------------------------------------------------------------------
    def elements(self, values: Sequence[ir.Value] | np.ndarray, shape: Sequence[int], dtype: np.dtype) -> Elements:
        """An unrolled array from its lane values in row-major order."""
        box = np.empty(math.prod(shape), dtype=object)
        for i, v in enumerate(np.asarray(values, dtype=object).flat if isinstance(values, np.ndarray) else values):
            box[i] = v
        return Elements(box.reshape(tuple(shape)), dtype, self._pick)

    def scalar(self, value: ir.Value, dtype: np.dtype) -> Elements:
        """A rank-0 array."""
        return self.elements([value], (), dtype)

    def constant(self, value: object, dtype: np.dtype) -> ir.Constant:
        """A NumPy scalar as a uniform lane constant."""
        kind = t.lane_type(dtype)
        number = np.asarray(value, dtype=dtype)
        return self.const(kind.lane, float(number) if t.is_float(kind.lane) else int(number))

    def full(self, shape: Sequence[int], value: object, dtype: np.dtype) -> Array:
        """An array of one constant."""
        c = self.constant(value, dtype)
        return self.settle(Lazy(tuple(shape), dtype, lambda *_: c, (), view=True))

    def lazy(self, shape: Sequence[int], dtype: np.dtype, fn: Callable[..., ir.Value], operands: Sequence[Array],
             view: bool = False, varying: bool | None = None) -> Array:
        """The array whose element at an index is `fn(*index)`; unrolled at once where small."""
        return self.settle(Lazy(tuple(shape), dtype, fn, operands, view, varying))

    def view(self, x: Array, shape: Sequence[int], where: Callable[..., Sequence[Index]]) -> Array:
        """The array whose element at an index is `x.at(*where(*index))`: reshapes, slices, transposes."""
        size = math.prod(shape)
        (source,) = self.operands(shape, x)
        if size > source.size and not is_cheap(source):
            source = self.stored(source)
        return self.lazy(shape, x.dtype, lambda *i: source.at(*where(*i)), (source,), view=True)

    def map(self, fn: Callable[..., ir.Value], dtype: np.dtype, *arrays: Array) -> Array:
        """`fn` on the lane values of arrays; one of rank 0, and an axis of length 1, serves every element."""
        shape = np.broadcast_shapes(*(a.shape for a in arrays))
        arrays = self.operands(shape, *arrays)

        def at(*index: Index) -> ir.Value:
            return fn(*(a.at(*within(a, index, shape)) for a in arrays))

        return self.lazy(shape, dtype, at, arrays)

    # -- forms of an array ---------------------------------------------------------------------------------------
    def operands(self, shape: Sequence[int], *arrays: Array) -> tuple[Array, ...]:
        """The arrays as an array of this shape can be computed from them: in a loop, unless it is unrolled."""
        return tuple(map(self.indexable, arrays)) if math.prod(shape) > self.unroll else arrays

    def is_small(self, x: Array) -> bool:
        """Whether the array is unrolled: it has few elements, or not many and is given as lane values already."""
        return x.size <= (UNROLL if isinstance(x, Elements) else self.unroll)

    def settle(self, x: Array) -> Array:
        """A small array unrolled; a large one as it is."""
        return self.unrolled(x) if self.is_small(x) and isinstance(x, Lazy) else x

    def unrolled(self, x: Array) -> Elements:
        """The array as lane values, however it was given."""
        if isinstance(x, Elements):
            return x
        return self.elements([x.at(*i) for i in np.ndindex(*x.shape)], x.shape, x.dtype)

    def indexable(self, x: Array) -> Array:
        """The array in memory, where an index known only at run time can read it."""
        if not isinstance(x, Elements) or x.size <= 1:
            return x
        if x.copied is None or x.copied[0] is not self.ir.block:
            x.copied = self.ir.block, self.stored(x).borrowed()
        return x.copied[1]

    def stored(self, x: Array) -> Memory:
        """The array in memory; evaluated into fresh scratch where it is not there yet."""
        return x if isinstance(x, Memory) else self.copied(x)

    def copied(self, x: Array) -> Memory:
        """The array in fresh scratch."""
        out = self.allocate(x.shape, x.dtype, x.varying)
        self.copy(x, out)
        return out

    def settled(self, x: Array) -> Array:
        """The array in a form that may leave the region in which it was computed: unrolled, or in memory."""
        if isinstance(x, Memory):
            return x
        return self.unrolled(x) if self.is_small(x) else self.stored(x)

    def copy(self, source: Array, out: Memory, mask: ir.Value | None = None) -> None:
        """Evaluate every element of `source` into `out`; where a mask is given, only in its active lanes."""
        if isinstance(source, Elements):  # a loop would have to index it
            for index in np.ndindex(*out.shape):
                self.put(out, index, source.at(*index), mask)
            return
        if isinstance(source, Memory) and source.copy_to and out.base is not None and mask is None:
            source.copy_to(out.base)
            return
        self.for_each(out.shape, lambda *i: self.put(out, i, source.at(*i), mask))

    def put(self, out: Memory, index: tuple[Index, ...], value: ir.Value, mask: ir.Value | None = None) -> None:
        """Write one element, in the active lanes only where a mask is given."""
        if mask is not None and out.varying:
            value = self._merged(mask, value, out.at(*index))
        out.put(index, value)

    def _merged(self, mask: ir.Value, new: ir.Value, old: ir.Value) -> ir.Value:
        """`new` in the active lanes, `old` elsewhere, to be stored where `old` lies. By bits where that can be: of a
        select LLVM makes a masked store, which takes tens of cycles on some processors."""
        new, old = self.splat(new), self.splat(old)
        width = t.bit_width(mask.type)
        if width == 1 or width != t.bit_width(new.type):
            return self.select(self.of_mask(mask), new, old)
        x, y = (self.bits(v) if t.is_float(v.type) else v for v in (new, old))
        merged = self.xor(y, self.and_(self.xor(x, y), mask))
        return self.float_of_bits(merged) if t.is_float(new.type) else merged

    # -- memory --------------------------------------------------------------------------------------------------
    def reserve(self, count: int) -> ir.Value:
        """The address of `count` fresh bytes of scratch."""
        base = self.ir.gep(self.scratch, [self.i64(self.scratch_bytes)], source_etype=t.I8)
        self.scratch_bytes += -(-count // _ALIGN) * _ALIGN
        return base

    def allocate(self, shape: Sequence[int], dtype: np.dtype, varying: bool) -> Memory:
        """Fresh scratch, `[element][lane]`; of a uniform array, one element for all lanes."""
        lanes = self.lanes if varying else 1
        base = self.reserve(math.prod(shape) * t.lane_type(np.dtype(dtype)).itemsize * lanes)
        return self.dense(base, shape, dtype, varying)

    def dense(self, base: ir.Value, shape: Sequence[int], dtype: np.dtype, varying: bool) -> Memory:
        """The array that `allocate` has laid out at `base`."""
        lanes = self.lanes if varying else 1
        strides = [s * lanes for s in row_major(shape)]
        memory = self.memory(base, shape, dtype, strides, int(varying), 0, aligned=True, owned=True)
        memory.base = base
        return memory

    def memory(self, base: ir.Value, shape: Sequence[int], dtype: np.dtype, strides: Sequence[Index],
               lane_stride: Index, offset: Index, aligned: bool = False, owned: bool = False) -> Memory:
        """The array at `base`: element strides, lane stride and the offset of the first lane, in elements.

        A lane stride of 0 means that all lanes share the elements.
        """
        kind = t.lane_type(np.dtype(dtype))
        varying = not (isinstance(lane_stride, int) and lane_stride == 0)

        def position(index: tuple[Index, ...]) -> Index:
            return index_add(self, offset, index_sum(self, index, strides))

        def read(index: tuple[Index, ...]) -> ir.Value:
            return load(self, base, position(index), lane_stride, kind, aligned)

        def write(index: tuple[Index, ...], value: ir.Value) -> None:
            store(self, value, base, position(index), lane_stride, kind, aligned)

        return Memory(tuple(shape), dtype, varying, Buffer(), read, write, owned)

    def for_each(self, shape: Sequence[int], fn: Callable[..., None]) -> None:
        """Call `fn(*index)` for every index of a shape, row by row: unrolled where it is small, else in loops."""
        if math.prod(shape) <= self.loop_unroll:
            for index in np.ndindex(*shape):
                fn(*index)
            return
        head, *rest = shape
        if head == 1:
            self.for_each(rest, lambda *inner: fn(0, *inner))
            return

        def body(i: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            self.for_each(rest, lambda *inner: fn(i, *inner))
            return []

        self.count(head, [], body)

    def _pick(self, x: Elements, index: tuple[Index, ...]) -> ir.Value:
        """One element of an unrolled array at an index of which a part, at least, is known only at run time."""
        here = x.values[tuple(i if isinstance(i, int) else slice(None) for i in index)]
        values = list(here.flat)
        if len(values) == 1:
            return values[0]
        flat = self.flat_index([i for i in index if not isinstance(i, int)], here.shape)
        assert isinstance(flat, ir.Value)
        flat = self.splat(self.resize_int(flat, t.I32)) if x.varying else self.resize_int(flat, t.I32)
        bit = 1
        while len(values) > 1:  # halve the choice by each bit of the index
            odd = self.ne(self.and_(flat, bit), 0)
            pairs = [values[k: k + 2] for k in range(0, len(values), 2)]
            values = [self.select(odd, pair[-1], pair[0]) for pair in pairs]
            bit *= 2
        return values[0]


#: Multiply-adds of products that one kernel unrolls.
UNROLLED_PRODUCTS = 1536

#: `for_each` runs up to this many elements without a loop.
LOOP_UNROLL = 16

#: Elements of the largest array that is unrolled, and elements that `for_each` runs without a loop, in short code.
SHORT_UNROLL, SHORT_LOOP_UNROLL = 16, 4


def out_of_line(module: ir.Module, name: str, args: Sequence[ir.Type]) -> ir.Function:
    """A function without a body that is never inlined; what its addresses point to does not overlap."""
    function = ir.Function(module, ir.FunctionType(t.VOID, args), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    function.attributes.add("nounwind")
    for arg in function.args:
        if isinstance(arg.type, ir.PointerType):
            arg.add_attribute("noalias")
    return function


def within(x: Array, index: tuple[Index, ...], shape: tuple[int, ...]) -> tuple[Index, ...]:
    """Where the element of `x` is that an index of the broadcast `shape` reads."""
    if x.shape == shape:
        return index
    return tuple(0 if n == 1 else i for i, n in zip(index, x.shape, strict=True)) if x.shape else ()


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Element strides of a dense array."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))
