"""Derivatives of a mapped call: its jvp is a mapped call of the tangent program, whose transpose is a mapped call of
the transposed program. Both recompute inside the lanes, so no whole-batch residuals are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lanax import _jax
from lanax._jax import Zero, ad
from lanax._pipeline import Axes
from lanax._plan import Plan
from lanax._primitive import batched_call_p, bind, run_as_vmap
from lanax._program import Program


def _chosen(items: Sequence[Any], which: Sequence[bool]) -> list[Any]:
    return [x for x, w in zip(items, which, strict=True) if w]


def _differentiable(aval: Any) -> bool:
    return jnp.issubdtype(aval.dtype, jnp.inexact)


def tangent_program(program: Program, nonzero: Sequence[bool]) -> tuple[Program, list[bool]]:
    """The program (primals, nonzero tangents) -> tangents of the differentiable results; and which those are."""
    fun = _jax.jaxpr_as_fun(program.jaxpr)
    avals = [v.aval for v in program.jaxpr.invars]
    wanted = [_differentiable(v.aval) for v in program.jaxpr.outvars]

    def tangents(*args: Any) -> list[Any]:
        primals, dots = args[: len(avals)], args[len(avals):]

        def moved(*some: Any) -> list[Any]:
            new = iter(some)
            return fun(*(next(new) if nz else x for x, nz in zip(primals, nonzero, strict=True)))

        _, out = jax.jvp(moved, tuple(_chosen(primals, nonzero)), dots)
        return _chosen(out, wanted)

    closed = _jax.trace(tangents, [*avals, *_chosen(avals, nonzero)], f"jvp({program.name})")
    return Program(_jax.without_consts(closed), f"jvp({program.name})"), wanted


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, program: Program, in_axes: Axes,
         out_axes: tuple[int, ...], axis_size: int, plan: Plan) -> tuple[list[Any], list[Any]]:
    outs = bind(primals, program, in_axes, out_axes, axis_size, plan)
    nonzero = [type(t) is not Zero and _differentiable(v.aval)
               for t, v in zip(tangents, program.jaxpr.invars, strict=True)]
    zeros = [Zero(_jax.tangent_type(out)) for out in outs]
    if not any(nonzero):
        return outs, zeros
    tangent, wanted = tangent_program(program, nonzero)
    dots = iter(bind([*primals, *_chosen(tangents, nonzero)], tangent, (*in_axes, *_chosen(in_axes, nonzero)),
                     tuple(_chosen(out_axes, wanted)), axis_size, plan))
    return outs, [next(dots) if w else z for w, z in zip(wanted, zeros, strict=True)]


def _transpose(cotangents: Sequence[Any], *args: Any, program: Program, in_axes: Axes, out_axes: tuple[int, ...],
               axis_size: int, plan: Plan) -> list[Any]:
    linear = [ad.is_undefined_primal(x) for x in args]
    live = [type(ct) is not Zero for ct in cotangents]
    if not any(live):
        return [Zero(x.aval) if is_linear else None for x, is_linear in zip(args, linear, strict=True)]
    fixed = [not x for x in linear]
    transposed = _transposed_program(program, linear, live)
    operands = [*_chosen(args, fixed), *_chosen(cotangents, live)]
    axes = (*_chosen(in_axes, fixed), *_chosen(out_axes, live))
    wanted = [0 if axis is None else axis for axis in _chosen(in_axes, linear)]
    if transposed.jaxpr.effects:  # under `shard_map` the sums over its axes are for JAX to do
        outs = iter(run_as_vmap(*operands, program=transposed, in_axes=axes, out_axes=tuple(wanted),
                                axis_size=axis_size, plan=plan))
    else:
        outs = iter(bind(operands, transposed, axes, tuple(wanted), axis_size, plan))
    results: list[Any] = []
    for is_linear, axis in zip(linear, in_axes, strict=True):
        if not is_linear:
            results.append(None)
        else:
            # What an unmapped argument gets is the sum over all examples.
            results.append(next(outs) if axis is not None else jnp.sum(next(outs), axis=0))
    return results


def _transposed_program(program: Program, linear: Sequence[bool], live: Sequence[bool]) -> Program:
    """The program (other arguments, cotangents of live results) -> cotangents of the linear arguments."""
    fun = _jax.jaxpr_as_fun(program.jaxpr)
    avals = [v.aval for v in program.jaxpr.invars]
    fixed = [not x for x in linear]
    count = sum(fixed)

    def back(*args: Any) -> list[Any]:
        residuals, given = args[:count], args[count:]

        def forward(*moving: Any) -> list[Any]:
            known, new = iter(residuals), iter(moving)
            return _chosen(fun(*(next(new) if x else next(known) for x in linear)), live)

        types = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding, manual_axis_type=a.manual_axis_type)
                 for a in _chosen(avals, linear)]
        return list(jax.linear_transpose(forward, *types)(list(given)))

    ins = [*_chosen(avals, fixed), *_chosen([v.aval for v in program.jaxpr.outvars], live)]
    closed = _jax.trace(back, ins, f"transpose({program.name})")
    return Program(_jax.without_consts(closed), f"transpose({program.name})")


ad.primitive_jvps[batched_call_p] = _jvp
ad.primitive_transposes[batched_call_p] = _transpose
