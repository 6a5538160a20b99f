"""Conversions of lane values with XLA's meaning: saturating float-to-int, NaN to 0, truthiness to bool."""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from lanax._llvm import types as t
from lanax._lowering.emitter import Emitter
from lanax._lowering.lanewise.rounding import round_to


def convert(b: Emitter, x: ir.Value, old: np.dtype, new: np.dtype) -> ir.Value:
    """One lane value of dtype `old` as dtype `new`."""
    old, new = np.dtype(old), np.dtype(new)
    have, want = t.lane_type(old), t.lane_type(new)
    if old == new:
        return x
    if new == np.bool_:
        return b.ne(x, 0)
    if t.is_float(want.lane):
        if t.is_float(have.lane):
            return round_to(b, b.resize_float(x, want.lane), new)
        return round_to(b, b.to_float(x, want.lane, signed=old.kind == "i"), new)
    assert isinstance(want.lane, ir.IntType)
    if t.is_float(have.lane):
        return _saturate(b, x, want.lane, new.kind == "i")
    return b.resize_int(x, want.lane, signed=old.kind == "i")


def _saturate(b: Emitter, x: ir.Value, kind: ir.IntType, signed: bool) -> ir.Value:
    """A float as an integer towards zero; out of range the nearest end, NaN 0."""
    bits = kind.width
    low = -(1 << (bits - 1)) if signed else 0
    high = (1 << (bits - 1)) - 1 if signed else (1 << bits) - 1
    top = float(high + 1)  # a power of two: exact in either float
    wide = ir.IntType(max(bits, 32))
    above, below = b.ge(x, top), b.le(x, float(low))
    safe = b.select(b.or_(b.or_(above, below), b.isnan(x)), 0.0, x)
    number = b.to_int(safe, wide, signed=signed or bits < 32)
    number = b.resize_int(number, kind)
    return b.select(above, high, b.select(below, low, number))
