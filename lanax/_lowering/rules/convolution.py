"""`conv_general_dilated` of one example's arrays, as a product of the input's windows with the kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lanax._llvm.memory import Index
from lanax._lowering.arrays import Array, Lazy
from lanax._lowering.context import Context
from lanax._lowering.padded import Padded
from lanax._lowering.product import LARGEST_PRODUCT, is_unrolled, multiplied
from lanax._lowering.registry import register

Where = Callable[..., tuple[Index, ...]]


def _supports(avals_in: tuple[Any, ...], avals_out: tuple[Any, ...], params: Mapping[str, Any]) -> str | None:
    """Up to 64 x 64 x 64 multiply-adds for each example."""
    kernel, features = avals_in[1], params["dimension_numbers"].rhs_spec[0]
    work = math.prod(avals_out[0].shape) * math.prod(n for a, n in enumerate(kernel.shape) if a != features)
    if work > LARGEST_PRODUCT:
        return f"a convolution of {work} multiply-adds per example is faster in XLA"
    return None


@register("conv_general_dilated", supports=_supports, cost=8.0)
def _conv_general_dilated_rule(ctx: Context, x: Array, kernel: Array, *, window_strides: Sequence[int],
                               padding: Sequence[tuple[int, int]], lhs_dilation: Sequence[int],
                               rhs_dilation: Sequence[int], dimension_numbers: Any, feature_group_count: int,
                               batch_group_count: int, **_: Any) -> Array:
    """A border counts as zeros, as in XLA: zero times an infinity is NaN."""
    # Results are numbered (group, batch, *positions, feature); each sums over (feature of the input, *offsets). What
    # falls into the holes of a dilated input is left out where that is known.
    b = ctx.b
    (aval,) = ctx.avals_out
    dtype = np.dtype(aval.dtype)
    x_spec, kernel_spec, out_spec = dimension_numbers
    groups = feature_group_count * batch_group_count
    batch, features = aval.shape[out_spec[0]], aval.shape[out_spec[1]] // groups
    positions = tuple(aval.shape[a] for a in out_spec[2:])
    inner, offsets = kernel.shape[kernel_spec[1]], tuple(kernel.shape[a] for a in kernel_spec[2:])
    rank = len(positions)

    spread = Padded(x.shape, _by_axis(x_spec, padding, (0, 0)), _by_axis(x_spec, lhs_dilation, 1))

    def window(group: Index, n: Index, *index: Index) -> tuple[Index, ...]:
        place, feature, offset = index[:rank], index[rank], index[rank + 1:]
        if batch_group_count > 1:
            n = b.iadd(b.imul(group, batch), n)
        else:
            feature = b.iadd(b.imul(group, inner), feature)
        where = [b.iadd(b.imul(i, stride), b.imul(k, step))
                 for i, k, stride, step in zip(place, offset, window_strides, rhs_dilation, strict=True)]
        return _placed(x_spec, (n, feature, *where))

    def weight(group: Index, feature: Index, *index: Index) -> tuple[Index, ...]:
        return _placed(kernel_spec, (b.iadd(b.imul(group, features), feature), *index))

    zero, hole = b.constant(0, x.dtype), None
    dilated = any(step > 1 for step in lhs_dilation)
    small = b.is_small(x) and b.is_small(kernel) and is_unrolled(b, aval.shape, (inner, *offsets)) and (
        dilated or b.may_unroll(math.prod((*aval.shape, inner, *offsets))))
    if small:
        hole = zero if dilated else None
        source = Lazy(spread.sizes, x.dtype, lambda *i: spread.read(x, i, zero), (x,), view=True)
    else:
        source, kernel = spread.laid_out(b, x, zero), b.indexable(kernel)
    windows = Lazy((groups, batch, *positions, inner, *offsets), x.dtype, lambda *i: source.at(*window(*i)), (source,),
                   view=True)
    weights = Lazy((groups, features, inner, *offsets), kernel.dtype, lambda *i: kernel.at(*weight(*i)), (kernel,),
                   view=True)
    left = tuple(range(2 + rank, 3 + 2 * rank))
    numbers = ((left, tuple(range(2, 3 + rank))), ((0,), (0,)))
    result = multiplied(b, windows, weights, numbers, dtype, hole, small)

    def of_result(*index: Index) -> tuple[Index, ...]:
        group, feature = b.idivmod(index[out_spec[1]], features) if groups > 1 else (0, index[out_spec[1]])
        return (group, index[out_spec[0]], *(index[a] for a in out_spec[2:]), feature)

    return b.view(result, aval.shape, of_result)


def _by_axis(spec: Sequence[int], spatial: Sequence[Any], other: Any) -> tuple[Any, ...]:
    """A parameter of the spatial axes as one of all axes, in the order in which the array has them."""
    return _placed(spec, (other, other, *spatial))


def _placed(spec: Sequence[int], values: Sequence[Any]) -> tuple[Any, ...]:
    """Values for (batch, feature, *spatial), or the like, in the order of the array's axes."""
    out: list[Any] = [None] * len(values)
    for axis, value in zip(spec, values, strict=True):
        out[axis] = value
    return tuple(out)
