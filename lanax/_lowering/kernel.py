"""Builds the LLVM module of one kernel: whole steps of `lanes` examples where they lie, the tail through padded copies.

The kernel is `void kernel(ptr buffers, i64 begin, i64 end, i64 axis_size, ptr scratch)`: it computes the examples
[begin, end) from the buffers of all inputs, then all outputs; `scratch` is memory of its own, aligned to 64 bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from llvmlite import ir

from lanax._llvm import types as t
from lanax._lowering import rules as _rules
from lanax._lowering.emitter import Emitter, out_of_line
from lanax._lowering.jaxpr import lower_jaxpr
from lanax._lowering.length import is_long
from lanax._lowering.meter import Meter
from lanax._lowering.operands import Operand, input_array, store_output
from lanax._lowering.refill import RefilledLoop
from lanax._lowering.summed import SummedResult, group_of, in_groups, row_operand, side_by_side
from lanax._planning.refill import Loop
from lanax._planning.uniformity import Uniformity
from lanax._rewrite.surgery import read_whole
from lanax._target import Target

assert _rules  # importing the package registers the rules

KERNEL = "kernel"


@dataclasses.dataclass(frozen=True)
class KernelSource:
    """A kernel as LLVM text and what its caller must bring.

    Attributes:
      text: the module; its entry is called `kernel`.
      lanes: examples of one step.
      scratch_bytes: memory for each thread.
      meter: what it counts; None where it is not profiled.
    """

    text: str
    lanes: int
    scratch_bytes: int
    meter: Meter | None = None


def build_kernel(found: Uniformity, in_axes: Sequence[int | None], out_axes: Sequence[int | None], target: Target,
                 lanes: int, mask_bits: int, loop: Loop | None = None, wait: int = 0,
                 meter: Meter | None = None, block: int = 0, fast: bool = False, few: bool = False) -> KernelSource:
    """The kernel of a per-example jaxpr (`found.jaxpr`: no consts), whose results all vary or are splat.

    A result without a batch axis is one row of sums for each `block` examples; a run of the kernel then starts at a
    whole block, and ends at one or with the last example. There is no `loop` then.
    Where `loop` is given, lanes that have left it are refilled as soon as they have waited `wait` trips each. `few`:
    batches are so small that the last examples count.
    Where `meter` is given, the kernel takes one buffer more: rows of counters, one for each step; a run of the kernel
    fills the row of its first step. Where it is to be `fast`, functions are those of the faster tier.
    """
    jaxpr = found.jaxpr
    inputs = [Operand.of(v.aval, axis) for v, axis in zip(jaxpr.invars, in_axes, strict=True)]
    outputs = [row_operand(v.aval) if axis is None else Operand.of(v.aval, axis)
               for v, axis in zip(jaxpr.outvars, out_axes, strict=True)]
    module = ir.Module(name="lanax", context=ir.Context())
    module.triple = target.triple
    build = _Builder(module, target, inputs, outputs, lanes, mask_bits, meter, fast, loop is None and is_long(jaxpr))
    if loop is not None:
        build.refilled(loop, wait, max(1, lanes // target.native_lanes(mask_bits)), few)
    else:
        build.stepped(found, block)
    return KernelSource(_text(module), lanes, build.scratch_bytes, meter)


def _text(module: ir.Module) -> str:
    """The module as text, with attributes that llvmlite does not have: LLVM must know that subnormals are zero when it
    folds, and what is spilled must not lie across two lines of the cache."""
    return str(module).replace(" nounwind", ' nounwind alignstack(64) "denormal-fp-math"="preserve-sign,preserve-sign"')


Frame = tuple[Sequence[ir.Value], ir.Value, ir.Value, ir.Value, ir.Value]


class _Builder:
    """One module: a body that computes examples, and the kernel's entry, which calls it."""

    def __init__(self, module: ir.Module, target: Target, inputs: list[Operand], outputs: list[Operand], lanes: int,
                 mask_bits: int, meter: Meter | None, fast: bool, long: bool):
        self.module = module
        self.target = target
        self.inputs, self.outputs = inputs, outputs
        self.lanes, self.mask_bits = lanes, None if target.mask_registers else mask_bits
        self.meter = meter
        self.fast = fast
        self.long = long
        self.buffers = len(inputs) + len(outputs) + (meter is not None)
        self.scratch_bytes = 0

    def refilled(self, loop: Loop, wait: int, vectors: int, few: bool) -> None:
        """The kernel of a program around its loop, whose values lie in so many registers each."""
        body, b, (buffers, first, last, size, _) = self._body()
        operands = buffers[:len(self.inputs) + len(self.outputs)]
        RefilledLoop(b, loop, self.inputs, self.outputs, operands, size, last, wait, vectors, few).emit(first)
        self._close(b, body)
        self._entry(lambda b, frame: b.ir.call(body, [*frame[0], *frame[1:]]))

    def stepped(self, found: Uniformity, block: int) -> None:
        """The kernel of whole steps, and of the tail on copies padded with its last example."""
        body = self._steps(found, max(self.lanes, group_of(block)))

        def run(b: Emitter, frame: Frame) -> None:
            pointers, begin, end, size, scratch = frame
            sums = {k: SummedResult(b, op, pointers[k], block, self.lanes)
                    for k, op in enumerate(self.outputs, len(self.inputs)) if op.axis is None}
            if not sums:
                self._range(b, body, frame)
                return
            places = [sums[k].values if k in sums else pointer for k, pointer in enumerate(pointers)]
            in_groups(b, list(sums.values()), begin, end,
                      lambda start, stop: self._range(b, body, (places, start, stop, size, scratch)))

        self._entry(run)

    def _range(self, b: Emitter, body: ir.Function, frame: Frame) -> None:
        """Whole steps of the examples [begin, end) of a frame, and the tail."""
        pointers, begin, end, size, scratch = frame
        count = b.sub(end, begin)
        steps, rest = b.ir.sdiv(count, b.i64(self.lanes)), b.ir.srem(count, b.i64(self.lanes))
        with b.ir.if_then(b.gt(steps, 0)):
            b.ir.call(body, [*pointers, begin, steps, size, scratch])
        with b.ir.if_then(b.gt(rest, 0)):
            done = b.mul(steps, self.lanes)
            self._tail(b, body, [self._behind(b, k, p, done) for k, p in enumerate(pointers)], b.add(begin, done), rest,
                       size, scratch)

    def _behind(self, b: Emitter, k: int, pointer: ir.Value, done: ir.Value) -> ir.Value:
        """The pointer to a buffer; for a result to be summed, to what comes behind `done` examples of its group."""
        operands = [*self.inputs, *self.outputs]
        if not len(self.inputs) <= k < len(operands) or (op := operands[k]).axis is not None:
            return pointer
        return b.ir.gep(pointer, [b.mul(done, op.itemsize)], source_etype=t.I8)

    def _steps(self, found: Uniformity, group: int) -> ir.Function:
        """`body(buffers..., first, steps, size, scratch)`: `steps` whole steps from example `first`, where `size` is
        the length of the batch axis in the buffers. What is to be summed is written from the start of a buffer of
        `group` examples, which lie side by side."""
        function, b, (buffers, first, steps, size, _) = self._body()
        shared = {i: input_array(b, op, buffers[i], size, 0) for i, op in enumerate(self.inputs) if op.axis is None}
        whole = read_whole(found.jaxpr)

        def step(i: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            start = b.add(first, b.mul(i, self.lanes))
            args = [shared[k] if k in shared else input_array(b, op, buffers[k], size, start, whole[k])
                    for k, op in enumerate(self.inputs)]
            results = lower_jaxpr(b, found.jaxpr, args, found, None)
            for op, pointer, result in zip(self.outputs, buffers[len(self.inputs):], results, strict=False):
                if op.axis is None:
                    store_output(b, side_by_side(op), pointer, b.i64(group), b.mul(i, self.lanes), result)
                else:
                    store_output(b, op, pointer, size, start, result)
            return []

        b.count(steps, [], step)
        self._close(b, function)
        return function

    def _close(self, b: Emitter, body: ir.Function) -> None:
        b.ir.ret_void()
        self.scratch_bytes = b.scratch_bytes
        if self.meter is not None:
            self.meter.count_blocks(b, body)

    def _tail(self, b: Emitter, body: ir.Function, pointers: Sequence[ir.Value], start: ir.Value, rest: ir.Value,
              size: ir.Value, scratch: ir.Value) -> None:
        """One step of the `rest` examples from `start`, on copies that hold the last of them again and again."""
        lanes, none = b.i64(self.lanes), b.i64(0)
        operands = [*self.inputs, *self.outputs]
        copies = [pointer if op.axis is None else b.reserve(op.example_bytes * self.lanes)
                  for op, pointer in zip(operands, pointers, strict=False)]
        mapped = [(op, pointer, copy, k < len(self.inputs)) for k, (op, pointer, copy)
                  in enumerate(zip(operands, pointers, copies, strict=False)) if op.axis is not None]
        for op, pointer, copy, is_input in mapped:
            if is_input:
                _copy_rows(b, op, copy, lanes, none, pointer, size, start, lanes, rest)
        b.ir.call(body, [*copies, *pointers[len(operands):], none, b.i64(1), lanes, scratch])
        for op, pointer, copy, is_input in mapped:
            if not is_input:
                _copy_rows(b, op, pointer, size, start, copy, lanes, none, rest, rest)

    def _body(self) -> tuple[ir.Function, Emitter, Frame]:
        """A function of the frame that computes examples: it, an emitter in it, and its arguments. Its buffers and its
        scratch do not overlap."""
        function = out_of_line(self.module, "body", [t.PTR] * self.buffers + [t.I64] * 3 + [t.PTR])
        *buffers, first, last, size, scratch = function.args
        b = Emitter(ir.IRBuilder(function.append_basic_block("entry")), self.lanes, self.mask_bits, scratch)
        b.fast = self.fast
        b.registers, b.register_bytes = self.target.registers, self.target.register_bits // 8
        if self.long:
            b.keep_loops()
        if self.meter is not None:
            b.meter, self.meter.row = self.meter, buffers[-1]
        return function, b, (buffers, first, last, size, scratch)

    def _entry(self, run: Callable[[Emitter, Frame], object]) -> None:
        """The kernel's entry, which runs [begin, end)."""
        function = ir.Function(self.module, ir.FunctionType(t.VOID, [t.PTR, t.I64, t.I64, t.I64, t.PTR]), KERNEL)
        function.attributes.add("nounwind")
        table, begin, end, size, scratch = function.args
        b = Emitter(ir.IRBuilder(function.append_basic_block("entry")), 1, None, scratch)
        b.scratch_bytes = self.scratch_bytes
        buffers = [b.ir.load(b.ir.gep(table, [b.i64(i)], source_etype=t.PTR), typ=t.PTR) for i in range(self.buffers)]
        frame = buffers, begin, end, size, scratch
        if self.meter is None:
            run(b, frame)
        else:
            buffers[-1] = self.meter.open(b, buffers[-1], b.ir.sdiv(begin, b.i64(self.lanes)), end, scratch)
            run(b, frame)
            self.meter.close(b)
        b.ir.ret_void()
        self.scratch_bytes = b.scratch_bytes


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
