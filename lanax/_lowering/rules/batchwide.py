"""Equinox's reductions over the batch where they only choose: over the active lanes of the step. See `_unvmap`."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
from llvmlite import ir

from lanax._llvm import types as t
from lanax._lowering.arrays import Array
from lanax._lowering.context import Context
from lanax._lowering.registry import register


def _all_elements(ctx: Context, x: Array, join: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
    return reduce(join, ctx.b.unrolled(x).values.flat)


def _small(avals_in: Any, avals_out: Any, params: Any) -> str | None:
    """Integers and bools, at most 64, where the value only chooses between ways to the same result."""
    del avals_out, params
    (x,) = avals_in
    if x.dtype.kind not in "biu":
        return f"it reduces {x.dtype} over the batch"
    return None if 0 < x.size <= 64 else "it reduces a large or empty array over the batch"


@register("unvmap_any", supports=_small)
def _unvmap_any_rule(ctx: Context, x: Array, **_: Any) -> Array:
    b = ctx.b
    found = _all_elements(ctx, x, b.or_)
    return b.scalar(b.any(b.mask_and(found, ctx.mask)) if x.varying else found, np.dtype(bool))


@register("unvmap_all", supports=_small)
def _unvmap_all_rule(ctx: Context, x: Array, **_: Any) -> Array:
    b = ctx.b
    found = _all_elements(ctx, x, b.and_)
    if x.varying:
        found = b.not_(b.any(b.mask_and(b.not_(found), ctx.mask)))
    return b.scalar(found, np.dtype(bool))


@register("unvmap_max", supports=_small)
def _unvmap_max_rule(ctx: Context, x: Array, **_: Any) -> Array:
    """The largest of the active lanes. (There is at least one: code that no lane takes is jumped over.)"""
    b, signed = ctx.b, x.dtype.kind == "i"

    def larger(u: ir.Value, v: ir.Value) -> ir.Value:
        return b.select(b.compare(">", u, v, signed), u, v)

    found = _all_elements(ctx, x, larger)
    if not isinstance(found.type, ir.VectorType):
        return b.scalar(found, x.dtype)
    if ctx.mask is not None:
        lowest = 0 if not signed else -(1 << (t.bit_width(found.type) - 1))
        found = b.select(b.of_mask(ctx.mask), found, lowest)
    name = "vector.reduce.smax" if signed else "vector.reduce.umax"
    return b.scalar(b.intrinsic(name, t.element(found.type), found, overload=found.type), x.dtype)
