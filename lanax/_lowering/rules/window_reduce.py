"""Reductions over windows of one example's array, as pooling does them, and what their derivatives are made of."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from lanax._jax import eval_jaxpr, open_and_consts
from lanax._lowering.arrays import Array, Lazy
from lanax._lowering.context import Context
from lanax._lowering.lanewise.rounding import round_to
from lanax._lowering.padded import Padded
from lanax._lowering.reduction import MAX, MIN, SUM, Monoid, highest, lowest, reduced
from lanax._lowering.registry import register, register_composition

#: Elements that all windows have together, up to which a small array is reduced without a loop.
_UNROLLED = 512
#: Elements of a window up to which a reduction written in JAX has no loop.
_WITHOUT_LOOP = 32
#: Elements of a window after which XLA looks for no more loops to take the last trip out of.
_PEELED = 64


def _window_rule(monoid: Monoid) -> Callable[..., Array]:
    def rule(ctx: Context, x: Array, *, window_dimensions: Sequence[int], window_strides: Sequence[int],
             padding: Sequence[tuple[int, int]], base_dilation: Sequence[int], window_dilation: Sequence[int],
             **_: Any) -> Array:
        b, dtype = ctx.b, x.dtype
        shape, window = tuple(ctx.avals_out[0].shape), tuple(window_dimensions)
        identity = b.constant(monoid.identity(dtype), dtype)
        if 0 in (*shape, *x.shape):
            return b.full(shape, monoid.identity(dtype), dtype)
        spread, rank = Padded(x.shape, tuple((lo, hi) for lo, hi in padding), tuple(base_dilation)), len(shape)

        def place(index: Sequence[Any]) -> tuple[Any, ...]:
            return tuple(b.iadd(b.imul(i, stride), b.imul(k, step)) for i, k, stride, step in zip(
                index[:rank], index[rank:], window_strides, window_dilation, strict=True))

        if b.is_small(x) and math.prod(shape) <= b.unroll and math.prod((*shape, *window)) <= _UNROLLED:
            def one(index: tuple[int, ...]) -> Any:
                places = (spread.source(place((*index, *k))) for k in np.ndindex(*window))
                values = [x.at(*where) for where in places if where is not None]
                combine = functools.partial(monoid.combine, b, dtype)
                return round_to(b, functools.reduce(combine, values), dtype) if values else identity

            return b.elements([one(index) for index in np.ndindex(*shape)], shape, dtype)
        laid_out = spread.laid_out(b, x, identity)
        windows = Lazy((*shape, *window), dtype, lambda *i: laid_out.at(*place(i)), (laid_out,), view=True)
        return reduced(b, windows, range(rank, 2 * rank), monoid)

    return rule


register("reduce_window_sum", cost=8.0)(_window_rule(SUM))
register("reduce_window_max", cost=8.0)(_window_rule(MAX))
register("reduce_window_min", cost=8.0)(_window_rule(MIN))


# -- in JAX ----------------------------------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True)
class _Geometry:
    """Where windows lie: element k of window o of a padded array is at o * strides + k * steps, by axis."""

    count: tuple[int, ...]
    window: tuple[int, ...]
    strides: tuple[int, ...]
    steps: tuple[int, ...]

    @classmethod
    def of(cls, sizes: Sequence[int], window: Sequence[int], strides: Sequence[int],
           steps: Sequence[int] | None = None) -> _Geometry:
        """Windows in a padded array of some sizes."""
        steps = tuple(steps or (1,) * len(sizes))
        count = [max(0, (n - (w - 1) * step - 1) // stride + 1) if w else 0
                 for n, w, stride, step in zip(sizes, window, strides, steps, strict=True)]
        return cls(tuple(count), tuple(window), tuple(strides), steps)

    @property
    def span(self) -> list[int]:
        """From the first window to the last one, by axis."""
        return [(n - 1) * stride + 1 for n, stride in zip(self.count, self.strides, strict=True)]

    def start(self, k: Any) -> list[Any]:
        """Where the first window has its element k."""
        return [k[axis] * step for axis, step in enumerate(self.steps)]

    def elements(self, x: Any, k: Any) -> Any:
        """Element k of every window."""
        part = lax.dynamic_slice(x, self.start(k), self.span)
        return lax.slice(part, [0] * part.ndim, part.shape, self.strides)

    def each(self, visit: Callable[[Any, Any, Any], Any], state: Any, backwards: bool = False,
             late: Callable[[Any], bool] = lambda k: False) -> Any:
        """`visit(state, k, number)` for every element k of a window, in row-major order; the `late` ones come last."""
        order = sorted(np.ndindex(*self.window), key=lambda k: (late(k), k), reverse=backwards)
        numbers = [int(np.ravel_multi_index(k, self.window)) if k else 0 for k in order]
        if len(order) <= _WITHOUT_LOOP:
            for k, number in zip(order, numbers, strict=True):
                state = visit(state, k, np.int32(number))
            return state
        rows = np.array(order, np.int32).reshape(len(order), -1), np.array(numbers, np.int32)
        return lax.scan(lambda s, row: (visit(s, *row), None), state, rows)[0]


def _padded(x: Any, padding: Sequence[tuple[int, int]], dilation: Sequence[int], filling: Any = None) -> Any:
    filling = np.zeros((), x.dtype) if filling is None else np.asarray(filling, x.dtype)
    return lax.pad(x, filling, [(low, high, step - 1) for (low, high), step in zip(padding, dilation, strict=True)])


def _fold_windows(step: Callable[[Any, Any], Any], state: Sequence[Any], arrays: Sequence[Any], *,
                  window_dimensions: Sequence[int], window_strides: Sequence[int],
                  padding: Sequence[tuple[int, int]], base_dilation: Sequence[int],
                  window_dilation: Sequence[int]) -> list[Any]:
    """`step(state, elements)` over the elements of all windows at once; `state` is broadcast to their shape.

    Padding is passed over, and elements are visited in the order of XLA's CPU code, which tells between equal elements.
    """
    shape = arrays[0].shape
    arrays = [_padded(x, padding, base_dilation) for x in arrays]
    geometry = _Geometry.of(arrays[0].shape, window_dimensions, window_strides, window_dilation)
    everywhere = arrays[0].shape == shape and not any(low for low, _ in padding)
    inside = None if everywhere else _padded(lax.full(shape, True), padding, base_dilation)

    def visit(state: list[Any], k: Any, _number: Any) -> list[Any]:
        new = step(state, [geometry.elements(x, k) for x in arrays])
        if inside is None:
            return list(new)
        on = geometry.elements(inside, k)
        return [lax.select(on, x, y) for x, y in zip(new, state, strict=True)]

    state = [lax.broadcast(x, geometry.count) for x in state]
    if 0 in geometry.count:
        return state
    last = _visited_last(shape, geometry, [low for low, _ in padding], base_dilation)
    return geometry.each(visit, state, late=lambda k: last is not None and k[last[0]] == last[1])


def _visited_last(shape: Sequence[int], geometry: _Geometry, lows: Sequence[int],
                  dilation: Sequence[int]) -> tuple[int, int] | None:
    """The axis and the number there of those elements of windows that XLA visits after all others, or None.

    Where a border must be watched along an axis, and need not without the last element, XLA takes that out of the loop.
    """
    trips = 1
    for axis in reversed(range(len(shape))):
        line = _Line(shape[axis], lows[axis], dilation[axis], geometry.count[axis], geometry.strides[axis],
                     geometry.steps[axis])
        elements = line.elements(geometry.window[axis])
        if line.is_split(elements):
            return axis, elements[-1]
        trips *= max(1, len(elements))
        if trips >= _PEELED:
            break
    return None


@dataclasses.dataclass(frozen=True)
class _Line:
    """Windows along one axis of an array."""

    size: int
    low: int
    dilation: int
    count: int
    stride: int
    step: int

    def elements(self, window: int) -> list[int]:
        """Elements of a window that can lie on elements of the array, as far as all windows agree."""
        apart = self.stride % self.dilation
        return [k for k in range(window) if apart or (k * self.step - self.low) % self.dilation == 0]

    def is_split(self, elements: Sequence[int]) -> bool:
        if len(elements) < 2 or self.inside(elements) or (self.stride % self.dilation and self.step % self.dilation):
            return False
        return len(elements) == 2 or self.inside(elements[:-1])

    def inside(self, elements: Sequence[int]) -> bool:
        """Whether these elements of all windows lie between the ends of the array."""
        end = (self.count - 1) * self.stride + elements[-1] * self.step - self.low
        return elements[0] * self.step >= self.low and end <= (self.size - 1) * self.dilation


def _elementwise(jaxpr: Any, consts: Sequence[Any], rank: int) -> Callable[..., Any]:
    """A jaxpr of scalars as a function of arrays."""
    opened, own = open_and_consts(jaxpr)

    def fun(*args: Any) -> Any:
        return eval_jaxpr(opened, own or consts, *args)

    for _axis in range(rank):
        fun = jax.vmap(fun)
    return fun


def _reduce_window(*operands: Any, jaxpr: Any, consts: Sequence[Any], **windows: Any) -> list[Any]:
    """By a function of the user's, of any number of arrays."""
    half = len(operands) // 2
    combine = _elementwise(jaxpr, consts, operands[0].ndim)
    return _fold_windows(lambda totals, elements: combine(*totals, *elements), operands[half:], operands[:half],
                         **windows)


def _select_and_gather_add(tangents: Any, operand: Any, *, select_prim: Any, **windows: Any) -> Any:
    """For each window the tangent of its largest (or smallest) element."""
    extreme = (lowest if select_prim is lax.ge_p else highest)(operand.dtype)

    def step(best: Any, new: Any) -> Any:
        keep = select_prim.bind(best[0], new[0])
        return [lax.select(keep, x, y) for x, y in zip(best, new, strict=True)]

    initial = np.asarray(extreme, operand.dtype), np.zeros((), tangents.dtype)
    return _fold_windows(step, initial, (operand, tangents), **windows)[1]


def _select_and_scatter(operand: Any, source: Any, init_value: Any, *, select_jaxpr: Any, select_consts: Sequence[Any],
                        scatter_jaxpr: Any, scatter_consts: Sequence[Any], window_dimensions: Sequence[int],
                        window_strides: Sequence[int], padding: Sequence[tuple[int, int]]) -> Any:
    select = _elementwise(select_jaxpr, select_consts, operand.ndim)
    scatter = _elementwise(scatter_jaxpr, scatter_consts, operand.ndim)
    return _scattered(operand, source, init_value, lambda x, y: select(x, y)[0], lambda x, y: scatter(x, y)[0],
                      window_dimensions, window_strides, padding)


def _scattered(operand: Any, source: Any, initial: Any, select: Callable[..., Any], scatter: Callable[..., Any],
               window: Sequence[int], strides: Sequence[int], padding: Sequence[tuple[int, int]]) -> Any:
    """Each element of `source` is combined into the place of the element that is selected in its window: windows in
    row-major order, so elements of a window backwards."""
    ones = (1,) * operand.ndim
    x, inside = _padded(operand, padding, ones), _padded(lax.full(operand.shape, True), padding, ones)
    geometry = _Geometry.of(x.shape, window, strides)
    if 0 in geometry.count:
        return lax.broadcast(initial, operand.shape)

    def choose(state: Any, k: Any, number: Any) -> Any:
        best, chosen = state
        value = geometry.elements(x, k)
        take = geometry.elements(inside, k) & ((chosen < 0) | ~select(best, value))
        return lax.select(take, value, best), lax.select(take, lax.full_like(chosen, number), chosen)

    none = lax.full(geometry.count, np.int32(-1))
    _, chosen = geometry.each(choose, (lax.full(geometry.count, 0, x.dtype), none))
    zeros = ((0, 0),) * operand.ndim
    spread_source, spread_chosen = _padded(source, zeros, strides), _padded(chosen, zeros, strides, -1)

    def put(out: Any, k: Any, number: Any) -> Any:
        start = geometry.start(k)
        old = lax.dynamic_slice(out, start, geometry.span)
        new = lax.select(spread_chosen == number, scatter(old, spread_source), old)
        return lax.dynamic_update_slice(out, new, start)

    out = geometry.each(put, lax.broadcast(initial, x.shape), backwards=True)
    return _padded(out, [(-low, -high) for low, high in padding], ones, initial)


def _select_and_scatter_add(source: Any, operand: Any, *, select_prim: Any, window_dimensions: Sequence[int],
                            window_strides: Sequence[int], padding: Sequence[tuple[int, int]]) -> Any:
    """The padding takes part, as in JAX's own form of it for the CPU: it is selected where it comes first among equals
    or follows a NaN."""
    extreme = (lowest if select_prim is lax.ge_p else highest)(operand.dtype)
    ones, zeros = (1,) * operand.ndim, ((0, 0),) * operand.ndim
    x = _padded(operand, padding, ones, extreme)
    combine = lax.bitwise_or if source.dtype == np.bool_ else lax.add
    out = _scattered(x, source, np.zeros((), x.dtype), select_prim.bind, combine, window_dimensions, window_strides,
                     zeros)
    return _padded(out, [(-low, -high) for low, high in padding], ones)


register_composition("reduce_window", _reduce_window)
register_composition("select_and_gather_add", _select_and_gather_add)
register_composition("select_and_scatter", _select_and_scatter)
register_composition("select_and_scatter_add", _select_and_scatter_add)
