"""Updates at run-time indices, in place where nothing else needs the old contents: at the cost of the update."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from llvmlite import ir

from lanax._jax import ClosedJaxpr, open_and_consts
from lanax._llvm import types as t
from lanax._llvm.memory import Index
from lanax._lowering.arrays import Array, Memory
from lanax._lowering.context import Context
from lanax._lowering.emitter import Emitter
from lanax._lowering.jaxpr import lower_jaxpr
from lanax._lowering.lanewise.rounding import round_to
from lanax._lowering.registry import COMPOSITIONS, RULES, Supports, register
from lanax._lowering.windows import Positions, Windows, aside, readable
from lanax._planning.uniformity import analyse
from lanax._rewrite.trace import expand

#: An unrolled array is updated by at most this many selects; where it would take more, in memory.
_SELECTS = 256

#: (emitter, dtype, old element, update) -> new element
Combine = Callable[[Emitter, np.dtype, ir.Value, ir.Value], ir.Value]


@dataclasses.dataclass(frozen=True)
class Update:
    """An update of windows of an array.

    Attributes:
      windows: where; one window for each group of coordinates.
      values: what.
      position: (group, offset in the window) -> the index of the update's element.
      combine: what is written, given the old element and the update's; None: the update's.
    """

    windows: Windows
    values: Array
    position: Callable[[tuple[Index, ...], tuple[Index, ...]], tuple[Index, ...]]
    combine: Combine | None = None

    def new(self, b: Emitter, value: ir.Value, old: Callable[[], ir.Value], dtype: np.dtype) -> ir.Value:
        """The element to be written."""
        return value if self.combine is None else self.combine(b, dtype, old(), value)


def _updated(ctx: Context, x: Array, update: Update) -> Array:
    """The array `x` after an update."""
    windows = update.windows
    if ctx.b.is_small(x) and not ctx.may_overwrite(0, x) and windows.count * windows.size <= _SELECTS:
        positions = [windows.positions(ctx.b, group) for group in np.ndindex(*windows.groups)]
        if windows.size * sum(math.prod(len(dim) for dim in dims) for dims in positions) <= _SELECTS:
            return _update_elements(ctx.b, x, update, positions)
    return _update_memory(ctx, x, update)


def _update_elements(b: Emitter, x: Array, update: Update, positions: list[list[Positions]]) -> Array:
    """By selects between the old element and the new one, for every position at which a window may lie."""
    windows = update.windows
    values: dict[tuple[int, ...], ir.Value] = dict(np.ndenumerate(b.unrolled(x).values))
    offsets = list(np.ndindex(*windows.sizes))
    for group, dims in zip(np.ndindex(*windows.groups), positions, strict=True):
        pieces = [update.values.at(*update.position(group, offset)) for offset in offsets]
        for start in itertools.product(*dims):
            tests = [dim[i] for dim, i in zip(dims, start, strict=True)]
            here = functools.reduce(b.and_, [test() for test in tests if test] or [ir.Constant(t.I1, 1)])
            for offset, piece in zip(offsets, pieces, strict=True):
                at = tuple(s + o for s, o in zip(start, offset, strict=True))
                new = update.new(b, piece, lambda at=at: values[at], x.dtype)
                values[at] = new if isinstance(here, ir.Constant) else b.select(here, new, values[at])
    return b.elements(list(values.values()), x.shape, x.dtype)


def _update_memory(ctx: Context, x: Array, update: Update) -> Array:
    """In the array's own memory where that is allowed, else in a copy."""
    b, windows = ctx.b, update.windows
    varying = x.varying or update.values.varying or windows.varying
    if ctx.may_overwrite(0, x) and x.varying == varying:
        assert isinstance(x, Memory)
        out, buffer = x, x.buffer
        mask = None if x.born is ctx.mask else ctx.mask
        update = dataclasses.replace(update, windows=windows.with_coordinates(lambda c: aside(b, c, buffer)),
                                     values=aside(b, update.values, buffer))
        _write(b, out, update, mask)
        return out
    out = b.allocate(x.shape, x.dtype, varying)
    out.born = ctx.mask
    b.copy(x, out)
    _write(b, out, update, None)
    return b.unrolled(out) if b.is_small(out) else out


def _write(b: Emitter, out: Memory, update: Update, mask: ir.Value | None) -> None:
    """Update memory, one window after the other; only in the active lanes where a mask is given."""
    windows, values = update.windows, update.values
    if windows.count > b.loop_unroll:
        windows = windows.with_coordinates(lambda c: readable(b, c, 1))
    if max(windows.count, windows.size) > b.loop_unroll:
        values = readable(b, values, 1)

    def window(*group: Index) -> None:
        start = windows.start(b, group)

        def element(*offset: Index) -> None:
            at = tuple(b.iadd(s, o) for s, o in zip(start.index, offset, strict=True))
            new = update.new(b, values.at(*update.position(group, offset)), lambda: out.at(*at), out.dtype)
            if start.inside is not None:
                new = b.select(start.inside, new, out.at(*at))
            b.put(out, at, new, mask)

        b.for_each(windows.sizes, element)

    b.for_each(windows.groups, window)


# -- primitives ------------------------------------------------------------------------------------------------------
@register("dynamic_update_slice", cost=4.0)
def _dynamic_update_slice_rule(ctx: Context, x: Array, values: Array, *starts: Array, **_: Any) -> Array:
    windows = Windows.slice(x.shape, values.shape, starts)
    return _updated(ctx, x, Update(windows, values, lambda _, offset: offset))


def _scatter_rule(ctx: Context, x: Array, indices: Array, values: Array, *, combine: Combine | None,
                  numbers: Any, clips: bool) -> Array:
    b = ctx.b
    groups = indices.shape[:-1]
    dropped = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    window_dims = [d for d in range(len(x.shape)) if d not in dropped]
    group_dims = [d for d in range(len(values.shape)) if d not in numbers.update_window_dims]
    sizes = [1] * len(x.shape)
    for dim, position in zip(window_dims, numbers.update_window_dims, strict=True):
        sizes[dim] = values.shape[position]

    def place(group: tuple[Index, ...], offset: tuple[Index, ...]) -> tuple[Index, ...]:
        index: list[Index] = [0] * len(values.shape)
        for position, i in zip(group_dims, group, strict=True):
            index[position] = i
        for dim, position in zip(window_dims, numbers.update_window_dims, strict=True):
            index[position] = offset[dim]
        return tuple(index)

    coordinates = {dim: b.view(indices, groups, lambda *g, k=k: (*g, k))
                   for k, dim in enumerate(numbers.scatter_dims_to_operand_dims)}
    batching = dict(zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True))
    windows = Windows(x.shape, tuple(sizes), groups, coordinates, batching, checked=not clips)
    return _updated(ctx, x, Update(windows, values, place, combine))


def _register_scatter(name: str, combine: Combine | None, supports: Supports | None = None) -> None:
    def rule(ctx: Context, x: Array, indices: Array, values: Array, *, dimension_numbers: Any, mode: Any,
             update_jaxpr: Any, update_consts: Any, **_: Any) -> Array:
        by = combine if supports is None or update_jaxpr is None else _by_jaxpr(_expanded(update_jaxpr, update_consts))
        return _scatter_rule(ctx, x, indices, values, combine=by, numbers=dimension_numbers, clips=mode.name == "CLIP")

    rule.__name__ = f"_{name.replace('-', '_')}_rule"
    register(name, supports=supports, cost=6.0)(rule)


# -- functions of the user's (jax.numpy.ndarray.at[...].apply) --------------------------------------------------------
def _expanded(update_jaxpr: Any, consts: Any) -> ClosedJaxpr:
    """A function of the old element and the update's, in primitives that have a rule."""
    closed = update_jaxpr if hasattr(update_jaxpr, "consts") else ClosedJaxpr(update_jaxpr, list(consts))
    return expand(closed, lambda primitive, _: primitive.name in RULES, COMPOSITIONS)


def _by_jaxpr(closed: ClosedJaxpr) -> Combine:
    found = analyse(open_and_consts(closed)[0], [True, True])

    def combine(b: Emitter, dtype: np.dtype, old: ir.Value, value: ir.Value) -> ir.Value:
        (new,) = lower_jaxpr(b, found.jaxpr, [b.scalar(old, dtype), b.scalar(value, dtype)], found, None)
        return new.at()

    return combine


def _why_no_scatter(avals_in: tuple[Any, ...], avals_out: tuple[Any, ...], params: Mapping[str, Any]) -> str | None:
    """A function given to `.at[].apply` must be made of primitives with a rule, and hold no arrays."""
    if params["update_jaxpr"] is None:
        return None
    closed = _expanded(params["update_jaxpr"], params["update_consts"])
    jaxpr, consts = open_and_consts(closed)
    missing = [e.primitive.name for e in jaxpr.eqns if e.primitive.name not in RULES]
    if missing:
        return f"scatter that applies a function with `{missing[0]}`, which has no lowering rule"
    return "scatter that applies a function of other arrays" if consts else None


# -- what the other scatters do with the old element and the update's -------------------------------------------------
def _arithmetic(op: Callable[[Emitter, ir.Value, ir.Value], ir.Value], on_bool: str) -> Combine:
    def combine(b: Emitter, dtype: np.dtype, old: ir.Value, value: ir.Value) -> ir.Value:
        if dtype == np.bool_:
            return getattr(b, on_bool)(old, value)
        return round_to(b, op(b, old, value), dtype)

    return combine


def _extreme(name: str, op: str, on_bool: str) -> Combine:
    def combine(b: Emitter, dtype: np.dtype, old: ir.Value, value: ir.Value) -> ir.Value:
        if dtype == np.bool_:
            return getattr(b, on_bool)(old, value)
        old, value = b.join(old, value)
        if t.is_float(old.type):
            return b.intrinsic(name, old.type, old, value)
        return b.select(b.compare(op, old, value, dtype.kind == "i"), old, value)

    return combine


_register_scatter("scatter", None, _why_no_scatter)
_register_scatter("scatter-add", _arithmetic(lambda b, x, y: b.add(x, y), "or_"))
_register_scatter("scatter-sub", _arithmetic(lambda b, x, y: b.sub(x, y), "xor"))
_register_scatter("scatter-mul", _arithmetic(lambda b, x, y: b.mul(x, y), "and_"))
_register_scatter("scatter-min", _extreme("minimum", "<", "and_"))
_register_scatter("scatter-max", _extreme("maximum", ">", "or_"))
