"""Reductions and cumulative reductions over axes of one example's array. The order in which elements are combined
depends on the shape alone, never on the lanes. The 16-bit floats are accumulated in float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from llvmlite import ir

from lanax._jax import jaxpr_as_fun, open_and_consts
from lanax._llvm import types as t
from lanax._llvm.memory import Index, to_lane, to_memory
from lanax._lowering.arrays import UNROLL, Array, is_cheap
from lanax._lowering.context import Context
from lanax._lowering.emitter import Emitter, within
from lanax._lowering.fold import Values, each, fold, pairwise
from lanax._lowering.lanewise.arithmetic import maximum, minimum
from lanax._lowering.lanewise.rounding import round_to
from lanax._lowering.registry import register, register_composition
from lanax._math.exponential import exp
from lanax._math.logarithm import log1p

Position = tuple[Index, ...]
#: Reduces at several positions of the axes that stay, in one loop: one lane value for each.
Run = Callable[[Sequence[Position]], list[ir.Value]]

#: Accumulators of one long reduction: enough to hide the latency of an addition.
_CHAINS = 4
#: Results of a large array up to which they are computed in one loop.
_TOGETHER = 8
#: Elements that one trip of a loop reads; where each is computed there, one for each result.
_BLOCK = 16


class Monoid(NamedTuple):
    """What a reduction combines elements with: `combine(b, dtype, x, y)`, and what it gives of no element."""

    identity: Callable[[np.dtype], Any]
    combine: Callable[[Emitter, np.dtype, Any, Any], ir.Value]


def _lowest(dtype: np.dtype) -> Any:
    if t.is_float(t.lane_type(dtype).lane):
        return -math.inf
    return False if dtype == np.bool_ else np.iinfo(dtype).min


def _highest(dtype: np.dtype) -> Any:
    if t.is_float(t.lane_type(dtype).lane):
        return math.inf
    return True if dtype == np.bool_ else np.iinfo(dtype).max


def _logaddexp(b: Emitter, dtype: np.dtype, x: ir.Value, y: ir.Value) -> ir.Value:
    """log(exp(x) + exp(y)); where the difference is NaN the sum of both: a NaN, or the infinity that they share."""
    x, y = b.join(x, y)
    distance = b.sub(x, y)
    smooth = b.add(maximum(b, dtype, x, y), log1p(b, exp(b, b.neg(b.fabs(distance)))))
    return b.select(b.isnan(distance), b.add(x, y), smooth)


SUM = Monoid(lambda d: 0, lambda b, d, x, y: b.add(x, y))
PRODUCT = Monoid(lambda d: 1, lambda b, d, x, y: b.mul(x, y))
MAX = Monoid(_lowest, maximum)
MIN = Monoid(_highest, minimum)
LOGSUMEXP = Monoid(lambda d: -math.inf, _logaddexp)
AND = Monoid(lambda d: np.invert(np.zeros((), d)), lambda b, d, x, y: b.and_(x, y))
OR = Monoid(lambda d: 0, lambda b, d, x, y: b.or_(x, y))
XOR = Monoid(lambda d: 0, lambda b, d, x, y: b.xor(x, y))


# -- reductions ------------------------------------------------------------------------------------------------------
def _at(shape: Sequence[int], axes: Sequence[int], kept: Position, reduced: Position) -> Position:
    """The index of an element, given the index along the reduced axes and along the others."""
    left, right = iter(kept), iter(reduced)
    return tuple(next(right) if axis in axes else next(left) for axis in range(len(shape)))


def _results(ctx: Context, x: Array, run: Run) -> Array:
    """The array of a reduction's results: few of them at once, else one after the other in a loop, so that the code
    that computes an element is not repeated; very many each where it is read."""
    b = ctx.b
    (aval,) = ctx.avals_out
    shape, dtype = tuple(aval.shape), np.dtype(aval.dtype)
    count = math.prod(shape)
    if count > UNROLL:
        return b.lazy(shape, dtype, lambda *kept: run([kept])[0], (x,))
    if x.small or count <= _TOGETHER:
        return b.elements(run(list(np.ndindex(*shape))), shape, dtype)
    out = b.allocate(shape, dtype, x.varying)
    each(b, shape, lambda *kept: out.put(kept, run([kept])[0]))
    return b.unrolled(out)


def _unroll(x: Array, results: int) -> int:
    """Elements that one trip reads for each of some results. It tells the order of a sum: so no lanes in here."""
    if x.small:
        return UNROLL
    return max(1, _BLOCK // results) if is_cheap(x) else 1


def _splat(b: Emitter, x: Array, value: ir.Value) -> ir.Value:
    """An accumulator in the width that it keeps through a loop."""
    return b.splat(value) if x.varying else value


def _reduction_rule(monoid: Monoid) -> Callable[..., Array]:
    def rule(ctx: Context, x: Array, *, axes: Sequence[int], **_: Any) -> Array:
        b, dtype = ctx.b, x.dtype
        sizes = [x.shape[axis] for axis in sorted(axes)]
        count = math.prod(sizes)
        if count == 0:
            return b.full(ctx.avals_out[0].shape, monoid.identity(dtype), dtype)
        if count == 1:
            return b.view(x, ctx.avals_out[0].shape, lambda *kept: _at(x.shape, axes, kept, (0,) * len(sizes)))
        include = _including(b, x, monoid)

        def run(positions: Sequence[Position]) -> list[ir.Value]:
            if not positions:
                return []
            unroll = _unroll(x, len(positions))
            chains = max(1, _CHAINS // len(positions)) if count >= 4 * _CHAINS and unroll > 1 else 1
            start = None if count <= unroll else _splat(b, x, b.constant(monoid.identity(dtype), dtype))

            def visit(values: Values, index: Position, k: int) -> Values:
                values = list(values)
                for j, kept in enumerate(positions):
                    slot = j * chains + k % chains
                    values[slot] = _splat(b, x, include(values[slot], _at(x.shape, axes, kept, index)))
                return values

            values = fold(b, sizes, [start] * (chains * len(positions)), visit, unroll)
            totals = [pairwise(values[j * chains:(j + 1) * chains], lambda u, v: monoid.combine(b, dtype, u, v))
                      for j in range(len(positions))]
            return [round_to(b, total, dtype) for total in totals]

        return _results(ctx, x, run)

    return rule


def _including(b: Emitter, x: Array, monoid: Monoid) -> Callable[[Any, Position], ir.Value]:
    """How an element joins a total (None: it is the first). In a sum of products by FMA."""
    dtype = x.dtype
    if monoid is not SUM or x.factors is None or dtype not in (np.float32, np.float64):
        return lambda total, index: (
            x.at(*index) if total is None else monoid.combine(b, dtype, total, x.at(*index)))
    left, right = x.factors

    def include(total: Any, index: Position) -> ir.Value:
        u = left.at(*within(left, index, x.shape))
        v = u if right is left else right.at(*within(right, index, x.shape))
        return b.mul(u, v) if total is None else b.fma(u, v, total)

    return include


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
                    value = _splat(b, x, x.at(*_at(x.shape, axes, kept, index)))
                    if best is not None:
                        take = better(best, value)
                        value, number_ = b.select(take, value, best), b.select(take, number, place)
                    else:
                        number_ = number
                    values[2 * j:2 * j + 2] = value, _splat(b, x, number_)
                return values

            if not positions:
                return []
            start, unroll = [None, None], _unroll(x, len(positions))
            if x.shape[axis] > unroll:
                start = [_splat(b, x, b.constant(identity(dtype), dtype)), _splat(b, x, b.const(kind, 0))]
            return fold(b, [x.shape[axis]], start * len(positions), visit, unroll)[1::2]

        return _results(ctx, x, run)

    return rule


register("argmax", cost=8.0)(_extreme_position_rule(">", _lowest))
register("argmin", cost=8.0)(_extreme_position_rule("<", _highest))


# -- cumulative reductions -------------------------------------------------------------------------------------------
def _cumulative_rule(monoid: Monoid) -> Callable[..., Array]:
    def rule(ctx: Context, x: Array, *, axis: int, reverse: bool, **_: Any) -> Array:
        b, dtype = ctx.b, x.dtype
        others = (*x.shape[:axis], *x.shape[axis + 1:])
        box: dict[Position, ir.Value] = {}
        out = None if x.small else b.allocate(x.shape, dtype, x.varying)

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
                    where = _at(x.shape, (axis,), kept, (i,))
                    value = x.at(*where)
                    total = value if values[j] is None else monoid.combine(b, dtype, values[j], value)
                    values[j] = _splat(b, x, total)
                    put(where, total)
                return values

            start = None if out is None else _splat(b, x, b.constant(monoid.identity(dtype), dtype))
            fold(b, [x.shape[axis]], [start] * len(positions), visit, _unroll(x, len(positions)))

        if out is None or math.prod(others) <= _TOGETHER:
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
    opened, consts = open_and_consts(jaxpr)
    if consts:
        raise NotImplementedError("constants inside the function")
    combine = jaxpr_as_fun(opened)
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
