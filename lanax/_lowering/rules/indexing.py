"""Slices at run-time indices, and gathers: index maps over the array they read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lanax._llvm import types as t
from lanax._llvm.memory import Index
from lanax._lowering.arrays import Array, Memory
from lanax._lowering.context import Context
from lanax._lowering.registry import register
from lanax._lowering.windows import Windows, read_windows


@register("dynamic_slice", cost=2.0)
def _dynamic_slice_rule(ctx: Context, x: Array, *starts: Array, slice_sizes: tuple[int, ...], **_: Any) -> Array:
    windows = Windows.slice(x.shape, slice_sizes, starts)
    return _apart(ctx, x, read_windows(ctx.b, x, windows, slice_sizes, lambda *index: ((), index)))


def _apart(ctx: Context, x: Array, part: Array) -> Array:
    """A part of an array that may be updated in place later is copied out, so that it does not stand in the way."""
    if isinstance(x, Memory) and x.owned and 0 not in ctx.dying and x.buffer in part.reads:
        return ctx.b.stored(part)
    return part


def _why_no_gather(avals_in: tuple[Any, ...], avals_out: tuple[Any, ...], params: Mapping[str, Any]) -> str | None:
    """Every mode but `one_hot`."""
    return "gather in mode `one_hot` has no meaning on CPU" if params["mode"].name == "ONE_HOT" else None


@register("gather", supports=_why_no_gather, cost=4.0)
def _gather_rule(ctx: Context, x: Array, indices: Array, *, dimension_numbers: Any, slice_sizes: tuple[int, ...],
                 mode: Any, fill_value: Any = None, **_: Any) -> Array:
    b, numbers = ctx.b, dimension_numbers
    shape = ctx.avals_out[0].shape
    fills = mode.name == "FILL_OR_DROP"
    groups = indices.shape[:-1]
    dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    window_dims = [d for d in range(len(x.shape)) if d not in dropped]
    group_dims = [d for d in range(len(shape)) if d not in numbers.offset_dims]

    def coordinate(k: int) -> Array:
        c = b.view(indices, groups, lambda *g: (*g, k))
        if fills and c.dtype.itemsize == 8 and all(n < 2**31 for n in x.shape):  # JAX checks them as int32
            return b.map(lambda v: b.resize_int(v, t.I32), np.dtype(np.int32), c)
        return c

    def split(*index: Index) -> tuple[tuple[Index, ...], tuple[Index, ...]]:
        offset: list[Index] = [0] * len(x.shape)
        for dim, position in zip(window_dims, numbers.offset_dims, strict=True):
            offset[dim] = index[position]
        return tuple(index[d] for d in group_dims), tuple(offset)

    coordinates = {dim: coordinate(k) for k, dim in enumerate(numbers.start_index_map)}
    batching = dict(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True))
    windows = Windows(x.shape, tuple(slice_sizes), groups, coordinates, batching, checked=fills)
    fill = b.constant(fill_value, x.dtype) if fills else None
    return _apart(ctx, x, read_windows(b, x, windows, shape, split, fill))
