"""`jax.vmap` and `lanax`: what a mapped example turns into, and a mapped call inside another `jax.vmap`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lanax import _jax
from lanax._jax import NOT_MAPPED, Primitive, batching
from lanax._pipeline import Axes, stages
from lanax._plan import Plan
from lanax._primitive import batched_call_p, bind, with_axis
from lanax._program import Program
from lanax._report import record

#: One example's program, bound where `jax.vmap` has its batch tracers; exists only until `jax.vmap` applies its rule.
example_p = Primitive("lanax_example")
example_p.multiple_results = True


def _example_rule(axis_data: Any, args: Sequence[Any], dims: Sequence[Any], *, program: Program,
                  out_axes: tuple[int, ...], plan: Plan) -> tuple[list[Any], list[Any]]:
    """Varying results by one mapped call; uniform ones, which have no batch axis, by JAX as they are."""
    in_axes = tuple(None if d is NOT_MAPPED else int(d) for d in dims)
    count = len(program.jaxpr.outvars)
    varying = stages(program, in_axes, out_axes, plan).uniformity.varying_out[:count]
    mapped = [axis is not None for axis in in_axes]
    varying = [v or _jax.reads(program.jaxpr, i, mapped) for i, v in enumerate(varying)]
    outs: list[Any] = [None] * count
    fixed, moving = (_jax.with_results(program.jaxpr, w) for w in ([not v for v in varying], varying))
    axes = tuple(a for a, v in zip(out_axes, varying, strict=True) if v)
    uniform = iter(_jax.jaxpr_as_fun(fixed)(*args)) if not all(varying) else iter(())
    call = program if all(varying) else Program(moving, program.name)
    record(call, in_axes, axes, int(axis_data.size), plan)
    batched = iter(bind(args, call, in_axes, axes, int(axis_data.size), plan)) if any(varying) else iter(())
    outs = [next(batched) if v else next(uniform) for v in varying]
    out_dims = [a if v else NOT_MAPPED for a, v in zip(out_axes, varying, strict=True)]
    return outs, out_dims


batching.fancy_primitive_batchers[example_p] = _example_rule


def _batch_rule(args: Sequence[Any], dims: Sequence[Any], *, program: Program, in_axes: Axes,
                out_axes: tuple[int, ...], axis_size: int, plan: Plan) -> tuple[list[Any], list[int]]:
    """A mapped call under `jax.vmap`: one batch of both axes where every operand has both or neither, else the new
    axis goes into each example."""
    new = [None if d is NOT_MAPPED else int(d) for d in dims]
    size = next(x.shape[d] for x, d in zip(args, new, strict=True) if d is not None)
    moved = [None if a is None else a + (d is not None and d <= a) for a, d in zip(in_axes, new, strict=True)]
    if all((a is None) == (d is None) for a, d in zip(in_axes, new, strict=True)):
        return _folded(args, new, moved, size, program, out_axes, axis_size, plan)
    inner = [d if d is None or a is None else d - (d > a) for d, a in zip(new, moved, strict=True)]
    fun = jax.vmap(_jax.jaxpr_as_fun(program.jaxpr), in_axes=inner, out_axes=0, axis_size=size)
    avals = [with_axis(v.aval, d, size) for v, d in zip(program.jaxpr.invars, inner, strict=True)]
    closed = _jax.trace(lambda *a: list(fun(*a)), avals, f"vmap({program.name})")
    wider = Program(_jax.without_consts(closed), f"vmap({program.name})")
    outs = bind(args, wider, tuple(moved), tuple(a + 1 for a in out_axes), axis_size, plan)
    return outs, [0] * len(outs)


def _folded(args: Sequence[Any], new: Sequence[int | None], old: Sequence[int | None], size: int, program: Program,
            out_axes: tuple[int, ...], axis_size: int, plan: Plan) -> tuple[list[Any], list[int]]:
    """Both axes as one batch, the new axis outermost."""
    flat = [x if d is None or a is None else _merge(x, d, a) for x, d, a in zip(args, new, old, strict=True)]
    axes = tuple(None if d is None else 0 for d in new)
    outs = bind(flat, program, axes, (0,) * len(out_axes), size * axis_size, plan)
    split = [out.reshape((size, axis_size, *out.shape[1:])) for out in outs]
    return [jnp.moveaxis(out, 1, a + 1) for out, a in zip(split, out_axes, strict=True)], [0] * len(outs)


def _merge(x: Any, outer: int, inner: int) -> Any:
    x = jnp.moveaxis(x, (outer, inner), (0, 1))
    return x.reshape((x.shape[0] * x.shape[1], *x.shape[2:]))


batching.primitive_batchers[batched_call_p] = _batch_rule
