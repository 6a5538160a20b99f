"""A mapped call inside another `jax.vmap`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from lanax import _jax
from lanax._devices.varying import alike, is_untyped, untyped
from lanax._example import run_mapped
from lanax._jax import NOT_MAPPED, batching
from lanax._pipeline import Axes
from lanax._plan import Plan
from lanax._primitive import batched_call_p, bind, spread_call_p, with_axis
from lanax._program import Program, has_rules


def _batch_rule(axis_data: Any, args: Sequence[Any], dims: Sequence[Any], *, program: Program, in_axes: Axes,
                out_axes: Axes, axis_size: int, plan: Plan) -> tuple[list[Any], Sequence[Any]]:
    """A mapped call under `jax.vmap`: one batch of both axes where every operand has both or neither, and no rule for
    a derivative may name one of them; else the new axis goes into each example."""
    if all(d is NOT_MAPPED for d in dims):
        outs = bind(args, program, in_axes, out_axes, axis_size, plan)
        return outs, [NOT_MAPPED] * len(outs)
    name = _jax.name_of_axis(axis_data) if has_rules(program.jaxpr) else None
    new = [None if d is NOT_MAPPED else int(d) for d in dims]
    size = next(x.shape[d] for x, d in zip(args, new, strict=True) if d is not None)
    moved = [None if a is None else a + (d is not None and d <= a) for a, d in zip(in_axes, new, strict=True)]
    matched = all((a is None) == (d is None) for a, d in zip(in_axes, new, strict=True))
    if matched and name is None and program.axis_name is None:
        return _folded(args, new, moved, size, program, out_axes, axis_size, plan)
    inner = [d if d is None or a is None else d - (d > a) for d, a in zip(new, moved, strict=True)]
    fun = _jax.vmap(_jax.jaxpr_as_fun(program.jaxpr), in_axes=inner, out_axes=0, axis_size=size, axis_name=name)
    avals = [with_axis(v.aval, d, size) for v, d in zip(program.jaxpr.invars, inner, strict=True)]
    with untyped(program, args):
        closed = _jax.trace(lambda *a: list(fun(*a)), avals, f"vmap({program.name})")
    wider = program.replace(_jax.without_consts(closed), f"vmap({program.name})")
    consts = _jax.consts_of(closed)  # which rules of custom_vmap close over
    operands = alike([*consts, *args]) if is_untyped(program, args) else [*consts, *args]
    outs = run_mapped(operands, wider, (*[None] * len(consts), *moved),
                      tuple(None if a is None else a + 1 for a in out_axes), axis_size, plan)
    return outs, [0] * len(outs)


def _folded(args: Sequence[Any], new: Sequence[int | None], old: Sequence[int | None], size: int, program: Program,
            out_axes: Axes, axis_size: int, plan: Plan) -> tuple[list[Any], list[int]]:
    """Both axes as one batch, the new axis outermost."""
    flat = [x if d is None or a is None else _merge(x, d, a) for x, d, a in zip(args, new, old, strict=True)]
    axes = tuple(None if d is None else 0 for d in new)
    outs = bind(flat, program, axes, (0,) * len(out_axes), size * axis_size, plan)
    split = [out.reshape((size, axis_size, *out.shape[1:])) for out in outs]
    return [jnp.sum(out, 1) if a is None else jnp.moveaxis(out, 1, a + 1)
            for out, a in zip(split, out_axes, strict=True)], [0] * len(outs)


def _merge(x: Any, outer: int, inner: int) -> Any:
    x = jnp.moveaxis(x, (outer, inner), (0, 1))
    return x.reshape((x.shape[0] * x.shape[1], *x.shape[2:]))


batching.fancy_primitive_batchers[batched_call_p] = _batch_rule
batching.fancy_primitive_batchers[spread_call_p] = lambda axis_data, args, dims, where, **params: _batch_rule(
    axis_data, args, dims, **params)
