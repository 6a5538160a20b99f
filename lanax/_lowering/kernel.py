"""Builds the LLVM module of one kernel: whole steps of `lanes` examples where they lie, the tail through padded copies.

The kernel is `void kernel(ptr buffers, i64 begin, i64 end, i64 axis_size, ptr scratch)`: it computes the examples
[begin, end) from the buffers of all inputs, then all outputs; `scratch` is memory of its own, aligned to 64 bytes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from lanax._llvm import types as t
from lanax._llvm.memory import Index, index_mul
from lanax._lowering import rules as _rules
from lanax._lowering.arrays import Array, Memory
from lanax._lowering.emitter import Emitter, row_major
from lanax._lowering.jaxpr import lower_jaxpr
from lanax._lowering.keys import is_key, words_shape
from lanax._target import Target
from lanax._uniformity import Uniformity

assert _rules  # importing the package registers the rules

KERNEL = "kernel"
_ALIGN = 64


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


@dataclasses.dataclass(frozen=True)
class KernelSource:
    """A kernel as LLVM text and what its caller must bring.

    Attributes:
      text: the module; its entry is called `kernel`.
      lanes: examples of one step.
      scratch_bytes: memory for each thread.
    """

    text: str
    lanes: int
    scratch_bytes: int


def build_kernel(found: Uniformity, in_axes: Sequence[int | None], out_axes: Sequence[int], target: Target,
                 lanes: int, mask_bits: int) -> KernelSource:
    """The kernel of a per-example jaxpr (`found.jaxpr`: no consts), whose results all vary or are splat."""
    jaxpr = found.jaxpr
    inputs = [Operand.of(v.aval, axis) for v, axis in zip(jaxpr.invars, in_axes, strict=True)]
    outputs = [Operand.of(v.aval, axis) for v, axis in zip(jaxpr.outvars, out_axes, strict=True)]
    module = ir.Module(name="lanax", context=ir.Context())
    module.triple = target.triple
    bits = None if target.mask_registers else mask_bits
    body, used = _build_body(module, found, inputs, outputs, lanes, bits)
    total = _build_entry(module, body, inputs, outputs, lanes, used)
    return KernelSource(str(module), lanes, total)


def _build_body(module: ir.Module, found: Uniformity, inputs: list[Operand], outputs: list[Operand], lanes: int,
                mask_bits: int | None) -> tuple[ir.Function, int]:
    """`body(buffers..., first, steps, size, scratch)`: `steps` whole steps from example `first`, where `size` is the
    length of the batch axis in the buffers. Gives the function and the scratch that it uses."""
    pointers = len(inputs) + len(outputs)
    function = ir.Function(module, ir.FunctionType(t.VOID, [t.PTR] * pointers + [t.I64] * 3 + [t.PTR]), "body")
    function.linkage = "internal"
    function.attributes.add("noinline")
    function.attributes.add("nounwind")
    for arg in (*function.args[:pointers], function.args[-1]):
        arg.add_attribute("noalias")
    *buffers, first, steps, size, scratch = function.args
    b = Emitter(ir.IRBuilder(function.append_basic_block("entry")), lanes, mask_bits, scratch)
    shared = {i: _input(b, op, buffers[i], size, 0) for i, op in enumerate(inputs) if op.axis is None}

    def step(i: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        start = b.add(first, b.mul(i, lanes))
        args = [shared[k] if k in shared else _input(b, op, buffers[k], size, start) for k, op in enumerate(inputs)]
        results = lower_jaxpr(b, found.jaxpr, args, found, None)
        for op, pointer, result in zip(outputs, buffers[len(inputs):], results, strict=True):
            b.copy(result, _strided(b, op, pointer, size, start))
        return []

    b.count(steps, [], step)
    b.ir.ret_void()
    return function, b.scratch_bytes


def _strided(b: Emitter, op: Operand, pointer: ir.Value, size: ir.Value, start: Index) -> Memory:
    """An input or output where it lies, from example `start` on."""
    axis = op.axis
    if axis is None:
        return b.memory(pointer, op.shape, op.dtype, row_major(op.shape), 0, 0)
    dense = row_major(op.shape)
    strides: list[Index] = [index_mul(b, size, s) if i < axis else s for i, s in enumerate(dense)]
    return b.memory(pointer, op.shape, op.dtype, strides, op.inner, index_mul(b, start, op.inner))


def _input(b: Emitter, op: Operand, pointer: ir.Value, size: ir.Value, start: Index) -> Array:
    """An input as an array: small ones are loaded at once."""
    memory = _strided(b, op, pointer, size, start)
    memory = Memory(memory.shape, memory.dtype, memory.varying, memory.buffer, memory._load)
    return b.unrolled(memory) if memory.small else memory


def _build_entry(module: ir.Module, body: ir.Function, inputs: list[Operand], outputs: list[Operand], lanes: int,
                 scratch_used: int) -> int:
    """The kernel's entry: whole steps, then the tail on copies padded with its last example. Gives the scratch."""
    operands = [*inputs, *outputs]
    function = ir.Function(module, ir.FunctionType(t.VOID, [t.PTR, t.I64, t.I64, t.I64, t.PTR]), KERNEL)
    function.attributes.add("nounwind")
    buffers, begin, end, size, scratch = function.args
    b = Emitter(ir.IRBuilder(function.append_basic_block("entry")), lanes, None, scratch)
    b.scratch_bytes = scratch_used
    pointers = [b.ir.load(b.ir.gep(buffers, [b.i64(i)], source_etype=t.PTR), typ=t.PTR) for i in range(len(operands))]
    count = b.sub(end, begin)
    steps = b.ir.sdiv(count, b.i64(lanes))
    rest = b.ir.srem(count, b.i64(lanes))
    with b.ir.if_then(b.gt(steps, 0)):
        b.ir.call(body, [*pointers, begin, steps, size, scratch])
    with b.ir.if_then(b.gt(rest, 0)):
        start = b.add(begin, b.mul(steps, lanes))
        padded = list(pointers)
        for i, op in enumerate(operands):
            if op.axis is not None:
                padded[i] = b.ir.gep(scratch, [b.i64(b.scratch_bytes)], source_etype=t.I8)
                b.scratch_bytes += -(-op.example_bytes * lanes // _ALIGN) * _ALIGN
        for op, pointer, copy in list(zip(operands, pointers, padded, strict=True))[: len(inputs)]:
            if op.axis is not None:
                _copy_rows(b, op, copy, b.i64(lanes), b.i64(0), pointer, size, start, b.i64(lanes), rest)
        b.ir.call(body, [*padded, b.i64(0), b.i64(1), b.i64(lanes), scratch])
        for op, pointer, copy in list(zip(operands, pointers, padded, strict=True))[len(inputs):]:
            _copy_rows(b, op, pointer, size, start, copy, b.i64(lanes), b.i64(0), rest, rest)
    b.ir.ret_void()
    return b.scratch_bytes


def _copy_rows(b: Emitter, op: Operand, to: ir.Value, to_size: ir.Value, to_start: ir.Value, source: ir.Value,
               size: ir.Value, start: ir.Value, count: ir.Value, available: ir.Value) -> None:
    """Copy `count` examples; past the `available` ones, the last of these again."""
    row = op.inner * op.itemsize
    if row == 0 or op.outer == 0:
        return
    last = b.sub(available, 1)

    def where(base: ir.Value, length: ir.Value, outer: ir.Value, example: ir.Value) -> ir.Value:
        offset = b.mul(b.add(b.mul(outer, length), example), row)
        return b.ir.gep(base, [offset], source_etype=t.I8)

    def copy_one(outer: ir.Value, k: ir.Value) -> list[ir.Value]:
        at = b.select(b.lt(k, last), k, last)
        target, origin = where(to, to_size, outer, b.add(to_start, k)), where(source, size, outer, b.add(start, at))
        _memcpy(b, target, origin, row)
        return []

    b.count(op.outer, [], lambda o, _: b.count(count, [], lambda k, _: copy_one(o, k)))


def _memcpy(b: Emitter, to: ir.Value, source: ir.Value, count: int) -> None:
    module = b.ir.module
    name = "llvm.memcpy.p0.p0.i64"
    function = module.globals.get(name)
    if function is None:
        function = ir.Function(module, ir.FunctionType(t.VOID, [t.PTR, t.PTR, t.I64, t.I1]), name)
    b.ir.call(function, [to, source, b.i64(count), ir.Constant(t.I1, 0)])
