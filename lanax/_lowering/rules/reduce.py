"""Reductions and cumulative reductions over axes of one example's array, positions of extremes, reduced precision."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from llvmlite import ir

from lanax._jax import eval_jaxpr, open_and_consts
from lanax._llvm import types as t
from lanax._llvm.memory import to_lane, to_memory
from lanax._lowering.arrays import Array
from lanax._lowering.context import Context
from lanax._lowering.emitter import Emitter
from lanax._lowering.fold import Values, each, fold
from lanax._lowering.lanewise.rounding import round_to
from lanax._lowering.reduction import (
    AND,
    LOGSUMEXP,
    MAX,
    MIN,
    OR,
    PRODUCT,
    SUM,
    TOGETHER,
    XOR,
    Monoid,
    Position,
    element_index,
    highest,
    kept_wide,
    lowest,
    reduced,
    reduction_results,
    unrolled_steps,
)
from lanax._lowering.registry import register, register_composition


# -- reductions ------------------------------------------------------------------------------------------------------
def _reduction_rule(monoid: Monoid) -> Callable[..., Array]:
    def rule(ctx: Context, x: Array, *, axes: Sequence[int], **_: Any) -> Array:
        return reduced(ctx.b, x, axes, monoid)

    return rule


for _name, _monoid in {"reduce_sum": SUM, "reduce_prod": PRODUCT, "reduce_max": MAX, "reduce_min": MIN,
                       "reduce_and": AND, "reduce_or": OR, "reduce_xor": XOR}.items():
    register(_name, cost=4.0)(_reduction_rule(_monoid))


# -- positions of extremes -------------------------------------------------------------------------------------------
def _extreme_position_rule(op: str, identity: Callable[[np.dtype], Any]) -> Callable[..., Array]:
    """argmax and argmin: of equal elements the first; the first NaN where there is one."""

    def rule(ctx: Context, x: Array, *, axes: Sequence[int], index_dtype: Any, **_: Any) -> Array:
        b, dtype = ctx.b, x.dtype
        (axis,) = axes
        kind = ir.IntType(8 * np.dtype(index_dtype).itemsize)

        def better(best: ir.Value, value: ir.Value) -> ir.Value:
            if not t.is_float(value.type):
                return b.compare(op, value, best, signed=dtype.kind == "i")
            keep = b.compare({">": ">=", "<": "<="}[op], best, value)
            return b.not_(b.or_(keep, b.isnan(best)))

        def run(positions: Sequence[Position]) -> list[ir.Value]:
            def visit(values: Values, index: Position, _k: int) -> Values:
                values = list(values)
                (i,) = index
                number = b.const(kind, i) if isinstance(i, int) else b.resize_int(i, kind)
                for j, kept in enumerate(positions):
                    best, place = values[2 * j:2 * j + 2]
                    value = kept_wide(b, x, x.at(*element_index(x.shape, axes, kept, index)))
                    if best is not None:
                        take = better(best, value)
                        value, number_ = b.select(take, value, best), b.select(take, number, place)
                    else:
                        number_ = number
                    values[2 * j:2 * j + 2] = value, kept_wide(b, x, number_)
                return values

            if not positions:
                return []
            start, unroll = [None, None], unrolled_steps(b, x, len(positions))
            if x.shape[axis] > unroll:
                start = [kept_wide(b, x, b.constant(identity(dtype), dtype)), kept_wide(b, x, b.const(kind, 0))]
            return fold(b, [x.shape[axis]], start * len(positions), visit, unroll)[1::2]

        return reduction_results(b, x, ctx.avals_out[0].shape, np.dtype(ctx.avals_out[0].dtype), run)

    return rule


register("argmax", cost=8.0)(_extreme_position_rule(">", lowest))
register("argmin", cost=8.0)(_extreme_position_rule("<", highest))


def _approx_top_k(x: Any, *, k: int, reduction_dimension: int, is_max_k: bool, aggregate_to_topk: bool,
                  **_: Any) -> list[Any]:
    """Exactly the k largest or smallest, as JAX gives on the CPU."""
    if not aggregate_to_topk:
        raise NotImplementedError("more candidates than k")
    axis = reduction_dimension % x.ndim
    if is_max_k:
        return list(lax.top_k(x, k, axis=axis))
    numbers = lax.broadcasted_iota(np.int32, x.shape, axis)
    rows = lax.sort((x, numbers), dimension=axis, is_stable=True, num_keys=1)
    return [lax.slice_in_dim(row, 0, k, axis=axis) for row in rows]


register_composition("approx_top_k", _approx_top_k)


# -- cumulative reductions -------------------------------------------------------------------------------------------
def _cumulative_rule(monoid: Monoid) -> Callable[..., Array]:
    def rule(ctx: Context, x: Array, *, axis: int, reverse: bool, **_: Any) -> Array:
        b, dtype = ctx.b, x.dtype
        others = (*x.shape[:axis], *x.shape[axis + 1:])
        box: dict[Position, ir.Value] = {}
        out = None if b.is_small(x) else b.allocate(x.shape, dtype, x.varying)

        def put(index: Position, value: ir.Value) -> None:
            value = round_to(b, value, dtype)
            if out is None:
                box[index] = value
            else:
                out.put(index, value)

        def run(positions: Sequence[Position]) -> None:
            def visit(values: Values, index: Position, _k: int) -> Values:
                values = list(values)
                (i,) = index
                if reverse:
                    i = b.isub(x.shape[axis] - 1, i)
                for j, kept in enumerate(positions):
                    where = element_index(x.shape, (axis,), kept, (i,))
                    value = x.at(*where)
                    total = value if values[j] is None else monoid.combine(b, dtype, values[j], value)
                    values[j] = kept_wide(b, x, total)
                    put(where, total)
                return values

            start = None if out is None else kept_wide(b, x, b.constant(monoid.identity(dtype), dtype))
            fold(b, [x.shape[axis]], [start] * len(positions), visit, unrolled_steps(b, x, len(positions)))

        if out is None or math.prod(others) <= TOGETHER:
            run(list(np.ndindex(*others)))
        else:
            each(b, others, lambda *kept: run([kept]))
        return b.elements([box[i] for i in np.ndindex(*x.shape)], x.shape, dtype) if out is None else out

    return rule


for _name, _monoid in {"cumsum": SUM, "cumprod": PRODUCT, "cummax": MAX, "cummin": MIN}.items():
    register(_name, cost=2.0)(_cumulative_rule(_monoid))
register("cumlogsumexp", cost=45.0)(_cumulative_rule(LOGSUMEXP))


# -- reductions by a function of the user's --------------------------------------------------------------------------
def _reduce_by(*operands: Any, jaxpr: Any, dimensions: Sequence[int], **_: Any) -> list[Any]:
    """`lax.reduce` as a scan over the reduced elements."""
    half = len(operands) // 2
    arrays, initial = operands[:half], operands[half:]
    kept = [axis for axis in range(arrays[0].ndim) if axis not in dimensions]
    shape = [arrays[0].shape[axis] for axis in kept]
    rows = [lax.transpose(x, [*dimensions, *kept]).reshape((-1, *shape)) for x in arrays]
    combine: Callable[..., Any] = functools.partial(eval_jaxpr, *open_and_consts(jaxpr))
    for _axis in kept:
        combine = jax.vmap(combine)

    def step(totals: Any, elements: Any) -> tuple[Any, None]:
        return tuple(combine(*totals, *elements)), None

    totals, _ys = lax.scan(step, tuple(lax.broadcast(x, shape) for x in initial), tuple(rows))
    return list(totals)


register_composition("reduce", _reduce_by)


# -- precision -------------------------------------------------------------------------------------------------------
@register("reduce_precision", cost=8.0)
def _reduce_precision_rule(ctx: Context, x: Array, *, exponent_bits: int, mantissa_bits: int, **_: Any) -> Array:
    return ctx.b.map(lambda v: _with_bits(ctx.b, v, x.dtype, exponent_bits, mantissa_bits), x.dtype, x)


def _with_bits(b: Emitter, x: ir.Value, dtype: np.dtype, exponent_bits: int, mantissa_bits: int) -> ir.Value:
    """`x` rounded to fewer bits, ties to even; what is too large becomes infinite, what is too small zero.

    As XLA does it: on the bits as they are stored, so that subnormals lose digits at the same place as other numbers.
    """
    kind, width = t.lane_type(dtype), 8 * dtype.itemsize
    digits = {t.FLOAT16: 10, t.BFLOAT16: 7, np.dtype(np.float32): 23, np.dtype(np.float64): 52}[dtype]
    stored = to_memory(b, x, kind)
    bits = b.bits(stored) if t.is_float(stored.type) else stored
    if mantissa_bits < digits:
        drop = digits - mantissa_bits
        odd = b.and_(b.lshr(bits, drop), 1)
        bits = b.and_(b.add(b.add(bits, (1 << (drop - 1)) - 1), odd), -(1 << drop))
    own_bits = width - 1 - digits
    if exponent_bits < own_bits:
        bias, reduced = (1 << (own_bits - 1)) - 1, (1 << (exponent_bits - 1)) - 1
        sign = b.and_(bits, -(1 << (width - 1)))
        infinity = (2 * bias + 1) << digits
        exponent = b.and_(bits, infinity)
        bits = b.select(b.gt(exponent, (bias + reduced) << digits), b.or_(sign, infinity), bits)
        bits = b.select(b.le(exponent, (bias - reduced) << digits), sign, bits)
    stored = b.float_of_bits(bits) if t.is_float(stored.type) else bits
    return b.select(b.isnan(x), x, to_lane(b, stored, kind))
