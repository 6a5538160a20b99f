"""Rules that move elements about: almost all are views, that is maps from an index of the result to one of the operand.
Knows nothing of what the elements mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from lanax._llvm import types as t
from lanax._llvm.memory import Index
from lanax._lowering.arrays import Array, Memory
from lanax._lowering.context import Context
from lanax._lowering.emitter import Emitter
from lanax._lowering.lanewise.rounding import round_to
from lanax._lowering.registry import register

#: Where an element of a part of an array goes.
Where = Callable[..., tuple[Index, ...]]


# -- the same elements under another index ---------------------------------------------------------------------------
@register("reshape", cost=0.0)
def _reshape_rule(ctx: Context, x: Array, *, new_sizes: Sequence[int], dimensions: Any = None, **_: Any) -> Array:
    return reshaped(ctx.b, x if dimensions is None else transposed(ctx.b, x, dimensions), new_sizes)


@register("squeeze", cost=0.0)
def _squeeze_rule(ctx: Context, x: Array, **_: Any) -> Array:
    return reshaped(ctx.b, x, ctx.avals_out[0].shape)


def reshaped(b: Emitter, x: Array, shape: Sequence[int]) -> Array:
    """The elements of `x` in row-major order as an array of another shape."""
    if x.shape == tuple(shape):
        return x
    runs = _matching_runs(x.shape, shape)

    def where(*index: Index) -> tuple[Index, ...]:
        source: list[Index] = [0] * len(x.shape)
        for old, new in runs:
            flat = b.flat_index([index[a] for a in new], [shape[a] for a in new])
            for axis, i in zip(old, b.split_index(flat, [x.shape[a] for a in old]), strict=True):
                source[axis] = i
        return tuple(source)

    return b.view(x, shape, where)


def _matching_runs(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """The shortest runs of axes of two shapes that hold as many elements, without axes of size 1: within a run an index
    must be flattened and split, between runs not."""
    if 0 in old:
        return []
    left, right = ([a for a, n in enumerate(shape) if n != 1] for shape in (old, new))
    runs = []
    while left:
        i, j = 1, 1
        p, q = old[left[0]], new[right[0]]
        while p != q:
            if p < q:
                p, i = p * old[left[i]], i + 1
            else:
                q, j = q * new[right[j]], j + 1
        runs.append((left[:i], right[:j]))
        left, right = left[i:], right[j:]
    return runs


@register("broadcast_in_dim", cost=0.0)
def _broadcast_in_dim_rule(ctx: Context, x: Array, *_dynamic: Array, broadcast_dimensions: Sequence[int],
                           **_: Any) -> Array:
    shape = ctx.avals_out[0].shape
    return ctx.b.view(x, shape, lambda *i: tuple(
        0 if n == 1 else i[axis] for n, axis in zip(x.shape, broadcast_dimensions, strict=True)))


@register("transpose", cost=0.0)
def _transpose_rule(ctx: Context, x: Array, *, permutation: Sequence[int], **_: Any) -> Array:
    return transposed(ctx.b, x, permutation)


def transposed(b: Emitter, x: Array, permutation: Sequence[int]) -> Array:
    """`x` with axis `permutation[k]` as its axis k."""
    place = np.argsort(permutation).tolist()
    return b.view(x, [x.shape[a] for a in permutation], lambda *i: tuple(i[p] for p in place))


@register("slice", cost=0.0)
def _slice_rule(ctx: Context, x: Array, *, start_indices: Sequence[int], strides: Sequence[int] | None,
                **_: Any) -> Array:
    return sliced(ctx.b, x, start_indices, strides or (1,) * len(x.shape), ctx.avals_out[0].shape)


def sliced(b: Emitter, x: Array, start: Sequence[int], strides: Sequence[int], shape: Sequence[int]) -> Array:
    """`shape` elements of `x` from `start`, every `strides`-th one."""
    return b.view(x, shape, lambda *index: tuple(
        b.iadd(b.imul(i, step), first) for i, first, step in zip(index, start, strides, strict=True)))


@register("rev", cost=0.0)
def _rev_rule(ctx: Context, x: Array, *, dimensions: Sequence[int], **_: Any) -> Array:
    b = ctx.b
    return b.view(x, x.shape, lambda *i: tuple(
        b.isub(n - 1, i[axis]) if axis in dimensions else i[axis] for axis, n in enumerate(x.shape)))


@register("tile", cost=0.0)
def _tile_rule(ctx: Context, x: Array, **_: Any) -> Array:
    b = ctx.b
    shape = ctx.avals_out[0].shape
    sizes = (1,) * (len(shape) - len(x.shape)) + x.shape

    def where(*index: Index) -> tuple[Index, ...]:
        inside = [i if n == m else b.idivmod(i, n)[1] for i, n, m in zip(index, sizes, shape, strict=True)]
        return tuple(inside[len(shape) - len(x.shape):])

    return b.view(x, shape, where)


@register("split", cost=0.0)
def _split_rule(ctx: Context, x: Array, *, sizes: Sequence[int], axis: int, **_: Any) -> list[Array]:
    starts = np.cumsum([0, *sizes]).tolist()
    ones = (1,) * len(x.shape)
    return [sliced(ctx.b, x, [start if a == axis else 0 for a in range(len(x.shape))], ones, aval.shape)
            for start, aval in zip(starts, ctx.avals_out, strict=False)]


@register("unstack", cost=0.0)
def _unstack_rule(ctx: Context, x: Array, *, axis: int, **_: Any) -> list[Array]:
    return [ctx.b.view(x, aval.shape, lambda *i, k=k: (*i[:axis], k, *i[axis:]))
            for k, aval in enumerate(ctx.avals_out)]


# -- new elements ----------------------------------------------------------------------------------------------------
@register("iota")
def _iota_rule(ctx: Context, *_dynamic: Array, dimension: int, **_: Any) -> Array:
    b = ctx.b
    dtype = np.dtype(ctx.avals_out[0].dtype)
    kind = t.lane_type(dtype).lane

    def number(*index: Index) -> Any:
        i = index[dimension]
        if isinstance(i, int):
            return round_to(b, b.const(kind, i), dtype)
        if isinstance(kind, ir.IntType):
            return b.resize_int(i, kind)
        return round_to(b, b.to_float(i, kind), dtype)

    return b.lazy(ctx.avals_out[0].shape, dtype, number, (), view=True)


@register("empty")
@register("empty2")
def _empty_rule(ctx: Context, **_: Any) -> Array:
    """Zeros, as XLA gives on the CPU."""
    (aval,) = ctx.avals_out
    return ctx.b.full(aval.shape, 0, np.dtype(aval.dtype))


# -- arrays put together ---------------------------------------------------------------------------------------------
def assembled(b: Emitter, shape: Sequence[int], dtype: np.dtype, parts: Sequence[tuple[Array, Where]]) -> Array:
    """An array put together from parts, each with where its elements go; where they overlap the later part wins.

    Written to memory where it is large: to find an element's part at run time would cost more.
    """
    if math.prod(shape) <= b.unroll:
        box = {where(*index): x.at(*index) for x, where in parts for index in np.ndindex(*x.shape)}
        return b.elements([box[index] for index in np.ndindex(*shape)], shape, dtype)
    out = b.allocate(shape, dtype, any(x.varying for x, _ in parts))
    for x, where in parts:
        _write(b, x, out, where)
    return out


def _write(b: Emitter, x: Array, out: Memory, where: Where) -> None:
    """Every element of `x` to where it goes in `out`."""
    if b.is_small(x):
        for index in np.ndindex(*x.shape):
            out.put(where(*index), x.at(*index))
    else:
        b.for_each(x.shape, lambda *i: out.put(where(*i), x.at(*i)))


@register("concatenate")
def _concatenate_rule(ctx: Context, *arrays: Array, dimension: int, **_: Any) -> Array:
    b = ctx.b
    starts = np.cumsum([0, *(x.shape[dimension] for x in arrays)]).tolist()
    parts = [(x, lambda *i, start=start: (*i[:dimension], b.iadd(i[dimension], start), *i[dimension + 1:]))
             for x, start in zip(arrays, starts, strict=False)]
    return assembled(b, ctx.avals_out[0].shape, arrays[0].dtype, parts)


@register("stack")
def _stack_rule(ctx: Context, *arrays: Array, axis: int, **_: Any) -> Array:
    parts = [(x, lambda *i, k=k: (*i[:axis], k, *i[axis:])) for k, x in enumerate(arrays)]
    return assembled(ctx.b, ctx.avals_out[0].shape, arrays[0].dtype, parts)


@register("pad")
def _pad_rule(ctx: Context, x: Array, value: Array, *, padding_config: Sequence[tuple[int, int, int]],
              **_: Any) -> Array:
    """Element j of an axis goes to low + j * (interior + 1); those that fall outside are left out."""
    b = ctx.b
    shape = ctx.avals_out[0].shape
    lows = [low for low, _, _ in padding_config]
    steps = [interior + 1 for _, _, interior in padding_config]
    first = [max(0, -(low // step)) for low, step in zip(lows, steps, strict=True)]
    after = [min(n, -((low - m) // step)) for n, m, low, step in zip(x.shape, shape, lows, steps, strict=True)]
    counts = [max(0, end - start) for start, end in zip(first, after, strict=True)]
    inside = sliced(b, x, first, (1,) * len(first), counts)

    def where(*index: Index) -> tuple[Index, ...]:
        return tuple(b.iadd(b.imul(i, step), low + start * step)
                     for i, low, start, step in zip(index, lows, first, steps, strict=True))

    if inside.size == math.prod(shape):
        return inside
    filling = b.view(value, shape, lambda *_: ())
    return assembled(b, shape, x.dtype, [(filling, lambda *i: i), (inside, where)])
