"""Random bits: threefry on lanes, and keys as arrays of their words."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from lanax._lowering.arrays import Array
from lanax._lowering.context import Context
from lanax._lowering.emitter import Emitter, within
from lanax._lowering.registry import register

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_UINT32 = np.dtype(np.uint32)


def _rotate_left(b: Emitter, x: ir.Value, by: int) -> ir.Value:
    return b.or_(b.shl(x, by), b.lshr(x, 32 - by))


def threefry(b: Emitter, k1: ir.Value, k2: ir.Value, x1: ir.Value, x2: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Threefry-2x32 with 20 rounds (Salmon et al., SC 2011), as JAX counts its rounds."""
    keys = (k1, k2, b.xor(b.xor(k1, k2), 0x1BD11BDA))
    x1, x2 = b.add(x1, k1), b.add(x2, k2)
    for group in range(5):
        for by in _ROTATIONS[group % 2]:
            x1 = b.add(x1, x2)
            x2 = b.xor(x1, _rotate_left(b, x2, by))
        x1 = b.add(x1, keys[(group + 1) % 3])
        x2 = b.add(b.add(x2, keys[(group + 2) % 3]), group + 1)
    return x1, x2


@register("threefry2x32", cost=80.0)
def _threefry2x32_rule(ctx: Context, *operands: Array, **_: Any) -> list[Array]:
    b = ctx.b
    shape = ctx.avals_out[0].shape

    def words(*index: Any) -> tuple[ir.Value, ir.Value]:
        return threefry(b, *(x.at(*within(x, index, shape)) for x in operands))

    if all(b.is_small(x) for x in operands) and np.prod(shape) <= 64:
        pairs = [words(*i) for i in np.ndindex(*shape)]
        return [b.elements([p[k] for p in pairs], shape, _UINT32) for k in range(2)]
    varying = any(x.varying for x in operands)
    out = [b.allocate(shape, _UINT32, varying) for _ in range(2)]

    def fill(*i: Any) -> None:
        for memory, value in zip(out, words(*i), strict=True):
            memory.put(i, value)

    b.for_each(shape, fill)
    return list(out)


@register("random_wrap", keys=True)
@register("random_unwrap", keys=True)
def _words_rule(ctx: Context, x: Array, **_: Any) -> Array:
    """Keys and their words are the same array in a kernel."""
    return x
