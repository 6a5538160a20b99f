"""How a dtype lives in a kernel: its type in a lane and its type in memory."""

from __future__ import annotations

import dataclasses
import functools

import ml_dtypes
import numpy as np
from llvmlite import ir

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
PTR = ir.PointerType()
VOID = ir.VoidType()

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT16 = np.dtype(np.float16)


@dataclasses.dataclass(frozen=True)
class LaneType:
    """A dtype's LLVM types: `lane` in registers, `memory` where it is stored.

    They differ for bool (i1 in a lane, a byte in memory) and for the 16-bit floats, which are float32 in a lane,
    rounded to 16 bits after each operation.
    """

    dtype: np.dtype
    lane: ir.Type
    memory: ir.Type

    @property
    def itemsize(self) -> int:
        """Bytes of one element in memory."""
        return self.dtype.itemsize


@functools.cache
def lane_type(dtype: np.dtype) -> LaneType:
    """The types of `dtype`; raises TypeError for one that has no lane form (complex numbers, strings, ...)."""
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return LaneType(dtype, I1, I8)
    if dtype == BFLOAT16:
        return LaneType(dtype, F32, I16)
    if dtype == FLOAT16:
        return LaneType(dtype, F32, F16)
    if dtype == np.float32:
        return LaneType(dtype, F32, F32)
    if dtype == np.float64:
        return LaneType(dtype, F64, F64)
    if dtype.kind in "iu" and dtype.itemsize in (1, 2, 4, 8) and dtype.name.startswith(("int", "uint")):
        integer = ir.IntType(8 * dtype.itemsize)
        if dtype.name.endswith(str(8 * dtype.itemsize)):
            return LaneType(dtype, integer, integer)
    raise TypeError(f"dtype {dtype} has no lane form")


def has_lane_type(dtype: object) -> bool:
    """Whether values of `dtype` can live in lanes."""
    try:
        lane_type(dtype)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


def element(type_: ir.Type) -> ir.Type:
    """The type of one lane of a scalar or vector type."""
    return type_.element if isinstance(type_, ir.VectorType) else type_


def is_float(type_: ir.Type) -> bool:
    """Whether a scalar or vector type holds floating-point numbers."""
    return isinstance(element(type_), (ir.HalfType, ir.FloatType, ir.DoubleType))


def bit_width(type_: ir.Type) -> int:
    """Bits of one lane of a scalar or vector type."""
    kind = element(type_)
    if isinstance(kind, ir.IntType):
        return kind.width
    return {ir.HalfType: 16, ir.FloatType: 32, ir.DoubleType: 64}[type(kind)]


def like(kind: ir.Type, shape_of: ir.Type) -> ir.Type:
    """`kind` as a vector where `shape_of` is one, with as many lanes."""
    return ir.VectorType(kind, shape_of.count) if isinstance(shape_of, ir.VectorType) else kind
