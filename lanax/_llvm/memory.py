"""Addresses, loads and stores of lane values: contiguous, strided and indexed by each lane."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from lanax._llvm import types as t
from lanax._llvm.lanes import Lanes

#: An index or a size: known when the kernel is built, or an i64 (scalar, or a vector: another for each lane).
Index = int | ir.Value


def index_add(b: Lanes, x: Index, y: Index) -> Index:
    """x + y, folded where both are known."""
    if isinstance(x, int) and isinstance(y, int):
        return x + y
    if isinstance(x, int) and x == 0:
        return y
    if isinstance(y, int) and y == 0:
        return x
    return b.add(x, y)


def index_mul(b: Lanes, x: Index, y: Index) -> Index:
    """x * y, folded where both are known."""
    if isinstance(x, int) and isinstance(y, int):
        return x * y
    if (isinstance(x, int) and x == 0) or (isinstance(y, int) and y == 0):
        return 0
    if isinstance(x, int) and x == 1:
        return y
    if isinstance(y, int) and y == 1:
        return x
    return b.mul(x, y)


def index_sum(b: Lanes, index: Sequence[Index], strides: Sequence[Index]) -> Index:
    """The dot product of an index with strides."""
    total: Index = 0
    for i, s in zip(index, strides, strict=True):
        total = index_add(b, total, index_mul(b, i, s))
    return total


def is_varying(index: Index) -> bool:
    """Whether an index differs from lane to lane."""
    return isinstance(index, ir.Value) and isinstance(index.type, ir.VectorType)


def address(b: Lanes, base: ir.Value, offset: Index, memory: ir.Type) -> ir.Value:
    """The address of element `offset` of an array of `memory` at `base`."""
    if isinstance(offset, int):
        if offset == 0:
            return base
        offset = ir.Constant(t.I64, offset)
    return b.ir.gep(base, [offset], inbounds=False, source_etype=memory)


def to_lane(b: Lanes, raw: ir.Value, kind: t.LaneType) -> ir.Value:
    """A value as it was in memory as a lane value."""
    if kind.lane is kind.memory or kind.lane == kind.memory:
        return raw
    if kind.lane == t.I1:
        return b.ir.trunc(raw, t.like(t.I1, raw.type))
    if kind.dtype == t.BFLOAT16:
        return b.float_of_bits(b.shl(b.resize_int(raw, t.I32, signed=False), 16))
    return b.resize_float(raw, t.F32)


def to_memory(b: Lanes, x: ir.Value, kind: t.LaneType) -> ir.Value:
    """A lane value in the form in which it is stored. The 16-bit floats were rounded when they were computed."""
    if kind.lane == kind.memory:
        return x
    if kind.lane == t.I1:
        return b.ir.zext(x, t.like(t.I8, x.type))
    if kind.dtype == t.BFLOAT16:
        return b.resize_int(b.lshr(b.bits(x), 16), t.I16)
    return b.resize_float(x, t.F16)


def load(b: Lanes, base: ir.Value, offset: Index, lane_stride: Index, kind: t.LaneType, aligned: bool) -> ir.Value:
    """Element `offset + lane * lane_stride` for each lane. A lane stride of 0 gives a scalar, unless the offset
    itself varies."""
    if is_varying(offset):
        return to_lane(b, _gather(b, base, _lane_offsets(b, offset, lane_stride), kind), kind)
    if lane_stride == 0 or b.lanes == 1:
        return to_lane(b, _load(b, address(b, base, offset, kind.memory), kind.memory, kind.itemsize), kind)
    if lane_stride == 1:
        align = kind.itemsize * (b.lanes if aligned else 1)
        vector = ir.VectorType(kind.memory, b.lanes)
        return to_lane(b, _load(b, address(b, base, offset, kind.memory), vector, align), kind)
    return to_lane(b, _gather(b, base, _lane_offsets(b, offset, lane_stride), kind), kind)


def store(b: Lanes, x: ir.Value, base: ir.Value, offset: Index, lane_stride: Index, kind: t.LaneType,
          aligned: bool) -> None:
    """Write `x` (scalar: the same in all lanes) to element `offset + lane * lane_stride` for each lane."""
    raw = to_memory(b, x, kind)
    if b.lanes == 1 or (lane_stride == 0 and not is_varying(offset)):
        assert not isinstance(raw.type, ir.VectorType), "a varying value does not fit a uniform array"
        b.ir.store(raw, address(b, base, offset, kind.memory), align=kind.itemsize)
        return
    raw = b.splat(raw)
    if lane_stride == 1 and not is_varying(offset):
        b.ir.store(raw, address(b, base, offset, kind.memory), align=kind.itemsize * (b.lanes if aligned else 1))
        return
    offsets = _lane_offsets(b, offset, lane_stride)
    for lane in range(b.lanes):
        where = address(b, base, _lane(b, offsets, lane), kind.memory)
        b.ir.store(b.extract(raw, lane), where, align=kind.itemsize)


def _load(b: Lanes, where: ir.Value, type_: ir.Type, align: int) -> ir.Value:
    return b.ir.load(where, align=align, typ=type_)


def _lane_offsets(b: Lanes, offset: Index, lane_stride: Index) -> list[Index] | ir.Value:
    """The offset of each lane: a list of scalars where they are strided, one vector where the lanes differ freely."""
    if is_varying(offset):
        if lane_stride == 0 or b.lanes == 1:
            return offset  # type: ignore[return-value]
        return index_add(b, offset, index_mul(b, b.lane_ids(), lane_stride))  # type: ignore[return-value]
    return [index_add(b, offset, index_mul(b, lane, lane_stride)) for lane in range(b.lanes)]


def _lane(b: Lanes, offsets: list[Index] | ir.Value, lane: int) -> Index:
    return offsets[lane] if isinstance(offsets, list) else b.extract(offsets, lane)


def _gather(b: Lanes, base: ir.Value, offsets: list[Index] | ir.Value, kind: t.LaneType) -> ir.Value:
    """One load for each lane. (AVX2's own gather takes as long: 16 cycles for 8.)"""
    out: ir.Value = ir.Constant(ir.VectorType(kind.memory, b.lanes), ir.Undefined)
    for lane in range(b.lanes):
        where = address(b, base, _lane(b, offsets, lane), kind.memory)
        out = b.insert(out, _load(b, where, kind.memory, kind.itemsize), lane)
    return out
