"""Builds the LLVM module of one kernel: whole steps of `lanes` examples where they lie, the tail through padded copies.

The kernel is `void kernel(ptr buffers, i64 begin, i64 end, i64 axis_size, ptr scratch)`: it computes the examples
[begin, end) from the buffers of all inputs, then all outputs; `scratch` is memory of its own, aligned to 64 bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from llvmlite import ir

from lanax._llvm import types as t
from lanax._lowering import rules as _rules
from lanax._lowering.emitter import Emitter
from lanax._lowering.jaxpr import lower_jaxpr
from lanax._lowering.operands import Operand, input_array, store_output
from lanax._lowering.refill import RefilledLoop
from lanax._refill import Loop
from lanax._target import Target
from lanax._uniformity import Uniformity

assert _rules  # importing the package registers the rules

KERNEL = "kernel"


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
                 lanes: int, mask_bits: int, loop: Loop | None = None, enough: int = 0) -> KernelSource:
    """The kernel of a per-example jaxpr (`found.jaxpr`: no consts), whose results all vary or are splat.

    Where `loop` is given, lanes that have left it are refilled as soon as not more than `enough` lanes are active.
    """
    jaxpr = found.jaxpr
    inputs = [Operand.of(v.aval, axis) for v, axis in zip(jaxpr.invars, in_axes, strict=True)]
    outputs = [Operand.of(v.aval, axis) for v, axis in zip(jaxpr.outvars, out_axes, strict=True)]
    module = ir.Module(name="lanax", context=ir.Context())
    module.triple = target.triple
    bits = None if target.mask_registers else mask_bits
    if loop is not None:
        total = _build_refilled(module, loop, inputs, outputs, lanes, bits, enough)
        return KernelSource(_text(module), lanes, total)
    body, used = _build_body(module, found, inputs, outputs, lanes, bits)
    total = _build_entry(module, body, inputs, outputs, lanes, used)
    return KernelSource(_text(module), lanes, total)


def _text(module: ir.Module) -> str:
    """The module as text. llvmlite has no such attribute: LLVM must know that subnormals are zero when it folds."""
    return str(module).replace(" nounwind", ' nounwind "denormal-fp-math"="preserve-sign,preserve-sign"')


def _build_refilled(module: ir.Module, loop: Loop, inputs: list[Operand], outputs: list[Operand], lanes: int,
                    mask_bits: int | None, enough: int) -> int:
    """The kernel of a program around its loop. Gives the scratch that it uses."""
    signature = ir.FunctionType(t.VOID, [t.PTR] * (len(inputs) + len(outputs)) + [t.I64] * 3 + [t.PTR])
    body = ir.Function(module, signature, "body")
    *buffers, first, last, size, scratch = _prepared(body)
    b = Emitter(ir.IRBuilder(body.append_basic_block("entry")), lanes, mask_bits, scratch)
    RefilledLoop(b, loop, inputs, outputs, buffers, size, last, enough).emit(first)
    b.ir.ret_void()
    entry, (pointers, begin, end, total, memory) = _entry(module, len(buffers))
    entry.ir.call(body, [*pointers, begin, end, total, memory])
    entry.ir.ret_void()
    return b.scratch_bytes


def _prepared(function: ir.Function) -> Sequence[ir.Value]:
    """The arguments of a body; its buffers and its scratch do not overlap."""
    function.linkage = "internal"
    function.attributes.add("noinline")
    function.attributes.add("nounwind")
    for arg in function.args:
        if isinstance(arg.type, ir.PointerType):
            arg.add_attribute("noalias")
    return function.args


Frame = tuple[list[ir.Value], ir.Value, ir.Value, ir.Value, ir.Value]


def _entry(module: ir.Module, count: int) -> tuple[Emitter, Frame]:
    """The kernel's entry: an emitter in it, and its buffers, begin, end, axis_size and scratch."""
    function = ir.Function(module, ir.FunctionType(t.VOID, [t.PTR, t.I64, t.I64, t.I64, t.PTR]), KERNEL)
    function.attributes.add("nounwind")
    buffers, begin, end, size, scratch = function.args
    b = Emitter(ir.IRBuilder(function.append_basic_block("entry")), 1, None, scratch)
    pointers = [b.ir.load(b.ir.gep(buffers, [b.i64(i)], source_etype=t.PTR), typ=t.PTR) for i in range(count)]
    return b, (pointers, begin, end, size, scratch)


def _build_body(module: ir.Module, found: Uniformity, inputs: list[Operand], outputs: list[Operand], lanes: int,
                mask_bits: int | None) -> tuple[ir.Function, int]:
    """`body(buffers..., first, steps, size, scratch)`: `steps` whole steps from example `first`, where `size` is the
    length of the batch axis in the buffers. Gives the function and the scratch that it uses."""
    pointers = len(inputs) + len(outputs)
    function = ir.Function(module, ir.FunctionType(t.VOID, [t.PTR] * pointers + [t.I64] * 3 + [t.PTR]), "body")
    *buffers, first, steps, size, scratch = _prepared(function)
    b = Emitter(ir.IRBuilder(function.append_basic_block("entry")), lanes, mask_bits, scratch)
    shared = {i: input_array(b, op, buffers[i], size, 0) for i, op in enumerate(inputs) if op.axis is None}

    def step(i: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        start = b.add(first, b.mul(i, lanes))
        args = [shared[k] if k in shared else input_array(b, op, buffers[k], size, start)
                for k, op in enumerate(inputs)]
        results = lower_jaxpr(b, found.jaxpr, args, found, None)
        for op, pointer, result in zip(outputs, buffers[len(inputs):], results, strict=True):
            store_output(b, op, pointer, size, start, result)
        return []

    b.count(steps, [], step)
    b.ir.ret_void()
    return function, b.scratch_bytes


def _build_entry(module: ir.Module, body: ir.Function, inputs: list[Operand], outputs: list[Operand], lanes: int,
                 scratch_used: int) -> int:
    """The kernel's entry: whole steps, then the tail on copies padded with its last example. Gives the scratch."""
    operands = [*inputs, *outputs]
    b, (pointers, begin, end, size, scratch) = _entry(module, len(operands))
    b.scratch_bytes = scratch_used
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
                padded[i] = b.reserve(op.example_bytes * lanes)
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
