"""The 16-bit floats: they are float32 in a lane, rounded to 16 bits after each operation."""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from lanax._llvm import types as t
from lanax._llvm.lanes import Lanes


def round_to(b: Lanes, x: ir.Value, dtype: np.dtype) -> ir.Value:
    """The lane value `x` of an operation whose result has `dtype`, rounded where that is narrower than the lane."""
    if dtype == t.FLOAT16:
        return b.resize_float(b.resize_float(x, t.F16), t.F32)
    if dtype == t.BFLOAT16:
        return _round_bfloat16(b, x)
    return x


def _round_bfloat16(b: Lanes, x: ir.Value) -> ir.Value:
    """Round to nearest, ties to even, on the bits; a NaN stays one."""
    bits = b.bits(x)
    odd = b.and_(b.lshr(bits, 16), 1)
    rounded = b.and_(b.add(b.add(bits, 0x7FFF), odd), -0x10000)
    return b.select(b.isnan(x), b.float_of_bits(b.or_(b.and_(bits, -0x10000), 0x400000)), b.float_of_bits(rounded))
