"""Shifts and bit counts on lane values. No arrays here."""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from lanax._llvm import types as t
from lanax._lowering.emitter import Emitter
from lanax._lowering.lanewise.arithmetic import Fn, is_signed


def shift(op: str) -> Fn:
    """Past the width a shift gives 0, an arithmetic one the sign in every bit."""

    def fn(b: Emitter, dtype: np.dtype, x: ir.Value, y: ir.Value) -> ir.Value:
        x, y = b.join(x, y)
        width = t.bit_width(x.type)
        fits = b.compare("<", y, width, signed=False)
        if op == "ashr":
            return b.ashr(x, b.select(fits, y, width - 1))
        shifted = getattr(b, op)(x, b.select(fits, y, 0))
        return b.select(fits, shifted, 0)

    return fn


def count_bits(name: str) -> Fn:
    def fn(b: Emitter, dtype: np.dtype, x: ir.Value) -> ir.Value:
        flags = () if name == "ctpop" else (ir.Constant(t.I1, 0),)
        return b.intrinsic(name, x.type, x, *flags)

    return fn


def multiply_high(b: Emitter, dtype: np.dtype, x: ir.Value, y: ir.Value) -> ir.Value:
    x, y = b.join(x, y)
    width = t.bit_width(x.type)
    wide = ir.IntType(2 * width)
    signed = is_signed(dtype)
    product = b.mul(b.resize_int(x, wide, signed), b.resize_int(y, wide, signed))
    return b.resize_int(b.lshr(product, width), ir.IntType(width))
