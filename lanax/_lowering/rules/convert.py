"""Conversions between dtypes, with XLA's meaning: saturating float-to-int, NaN to 0, truthiness to bool."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from lanax._llvm import types as t
from lanax._llvm.memory import to_lane, to_memory
from lanax._lowering.arrays import Array
from lanax._lowering.context import Context
from lanax._lowering.lanewise.conversion import convert
from lanax._lowering.registry import register


@register("convert_element_type")
def _convert_element_type_rule(ctx: Context, x: Array, *, new_dtype: Any, **_: Any) -> Array:
    b, old, new = ctx.b, x.dtype, np.dtype(new_dtype)
    return b.map(lambda v: convert(b, v, old, new), new, x) if old != new else x


@register("bitcast_convert_type")
def _bitcast_convert_type_rule(ctx: Context, x: Array, *, new_dtype: Any, **_: Any) -> Array:
    """Between dtypes of different widths the last axis is split or joined, low part first."""
    b = ctx.b
    have, want = t.lane_type(x.dtype), t.lane_type(np.dtype(new_dtype))
    old_bits, new_bits = 8 * have.itemsize, 8 * want.itemsize
    old_int, new_int = ir.IntType(old_bits), ir.IntType(new_bits)
    shape = ctx.avals_out[0].shape

    def raw(v: ir.Value) -> ir.Value:
        v = to_memory(b, v, have)
        return v if v.type == t.like(old_int, v.type) else b.ir.bitcast(v, t.like(old_int, v.type))

    def cooked(v: ir.Value) -> ir.Value:
        v = v if want.memory == new_int else b.ir.bitcast(v, t.like(want.memory, v.type))
        return to_lane(b, v, want)

    if old_bits == new_bits:
        return b.map(lambda v: cooked(raw(v)), want.dtype, x)
    if old_bits > new_bits:
        source = x if b.is_small(x) else b.stored(x)
        (source,) = b.operands(shape, source)

        def part(*index: Any) -> ir.Value:
            *i, k = index
            word = raw(source.at(*i))
            shift = b.imul(k, new_bits)
            amount = b.like(word, shift) if isinstance(shift, int) else b.resize_int(shift, old_int)
            return cooked(b.resize_int(b.lshr(word, amount), new_int))

        return b.lazy(shape, want.dtype, part, (source,))
    ratio = new_bits // old_bits
    (x,) = b.operands(shape, x)

    def whole(*index: Any) -> ir.Value:
        out = None
        for k in range(ratio):
            piece = b.shl(b.resize_int(raw(x.at(*index, k)), new_int, signed=False), k * old_bits)
            out = piece if out is None else b.or_(out, piece)
        assert out is not None
        return cooked(out)

    return b.lazy(shape, want.dtype, whole, (x,))
