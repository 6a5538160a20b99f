"""Derivatives of a mapped call: its jvp is a mapped call of the tangent program, whose transpose is a mapped call of
the transposed program. Both recompute inside the lanes, so no whole-batch residuals are kept; what an unmapped argument
gets is summed over the batch in the kernel. Also: a mapped call of which some results are not used, and one that
`checkify` looks into."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lanax import _jax
from lanax._devices.varying import alike, is_untyped, untyped, without_types
from lanax._example import run_mapped
from lanax._jax import Zero, ad
from lanax._pipeline import Axes
from lanax._plan import Plan
from lanax._primitive import batched_call_p, bind, run_as_vmap, run_spread_as_vmap, spread_call_p
from lanax._program import Program


def _chosen(items: Sequence[Any], which: Sequence[bool]) -> list[Any]:
    return [x for x, w in zip(items, which, strict=True) if w]


def _differentiable(aval: Any) -> bool:
    return jnp.issubdtype(aval.dtype, jnp.inexact)


def _lean(closed: Any, wanted: Sequence[bool]) -> tuple[Any, list[bool]]:
    """A closed jaxpr as an open one of the wanted results alone; and which of its constants and inputs are its
    inputs."""
    return _jax.with_used_inputs(_jax.without_consts(closed), wanted)


@dataclasses.dataclass(frozen=True)
class _Forward:
    """A program differentiated forwards.

    Attributes:
      program: that program.
      closed: (primals, tangents that are not zero) -> results, then their tangents that are not zero.
      moving: which results have such a tangent.
    """

    program: Program
    closed: Any
    moving: list[bool]

    @classmethod
    def of(cls, program: Program, nonzero: Sequence[bool], axis_size: int) -> _Forward:
        with _jax.axis_named(program.axis_name, axis_size):
            return cls(program, *_jax.jvp_jaxpr(program.jaxpr, nonzero))

    @property
    def consts(self) -> list[Any]:
        """The arrays that derivative rules close over, which are the first inputs of the programs below."""
        return _jax.consts_of(self.closed)

    def part(self, results: bool) -> tuple[Program, list[bool]]:
        """The program of the results, or of their tangents; and which of all inputs it has."""
        wanted = [results] * len(self.moving) + [not results] * sum(self.moving)
        jaxpr, used = _lean(self.closed, wanted)
        name = self.program.name if results else f"jvp({self.program.name})"
        return self.program.replace(jaxpr, name), used


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, program: Program, in_axes: Axes, out_axes: Axes,
         axis_size: int, plan: Plan) -> tuple[list[Any], list[Any]]:
    nonzero = [type(t) is not Zero and _differentiable(v.aval)
               for t, v in zip(tangents, program.jaxpr.invars, strict=True)]
    forward = None
    if any(nonzero):
        with untyped(program, primals):
            forward = _Forward.of(program, nonzero, axis_size)

    def run(results: bool, out_axes: Axes) -> list[Any]:
        assert forward is not None
        part, used = forward.part(results)
        operands = [*forward.consts, *primals, *_chosen(tangents, nonzero)]
        if is_untyped(program, primals):
            operands, part = alike(operands), part.replace(without_types(part.jaxpr))
        axes = [*[None] * len(forward.consts), *in_axes, *_chosen(in_axes, nonzero)]
        linear = [False] * (len(forward.consts) + len(primals)) + [True] * sum(nonzero)
        return run_mapped(_chosen(operands, used), part, tuple(_chosen(axes, used)), out_axes, axis_size, plan,
                          [] if results else _chosen(linear, used))

    # A function with `custom_vjp` is from here on what its rule says: it may be differentiated again.
    ruled = forward is not None and _jax.holds(program.jaxpr, *_RULED)
    outs = run(True, out_axes) if ruled else bind(primals, program, in_axes, out_axes, axis_size, plan)
    zeros = [Zero(_jax.tangent_type(out)) for out in outs]
    if forward is None or not any(forward.moving):
        return outs, zeros
    dots = iter(run(False, tuple(_chosen(out_axes, forward.moving))))
    return outs, [next(dots) if m else z for m, z in zip(forward.moving, zeros, strict=True)]


#: Calls with a rule for reverse mode alone.
_RULED = ("custom_vjp_call", "custom_vjp_call_jaxpr")


def _transpose(cotangents: Sequence[Any], *args: Any, program: Program, in_axes: Axes, out_axes: Axes,
               axis_size: int, plan: Plan) -> list[Any]:
    linear = [ad.is_undefined_primal(x) for x in args]
    live = [type(ct) is not Zero for ct in cotangents]
    if not any(live):
        return [Zero(x.aval) if is_linear else None for x, is_linear in zip(args, linear, strict=True)]
    fixed = [not x for x in linear]
    known = [*_chosen(args, fixed), *_chosen(cotangents, live)]
    with untyped(program, known):
        transposed, consts, used = _transposed_program(program, linear, live, axis_size)
    operands = alike([*consts, *known]) if is_untyped(program, known) else [*consts, *known]
    axes = [*[None] * len(consts), *_chosen(in_axes, fixed), *_chosen(out_axes, live)]
    # What an unmapped argument gets is the sum over all examples. Under `shard_map` there are sums over its axes in it.
    outs = iter(run_mapped(_chosen(operands, used), transposed, tuple(_chosen(axes, used)),
                           tuple(_chosen(in_axes, linear)), axis_size, plan))
    return [None if not is_linear else next(outs) if axis is not None else _jax.weak_as(next(outs), x.aval)
            for x, is_linear, axis in zip(args, linear, in_axes, strict=True)]


def _transposed_program(program: Program, linear: Sequence[bool], live: Sequence[bool],
                        axis_size: int) -> tuple[Program, list[Any], list[bool]]:
    """The program (arrays that derivative rules close over, other arguments, cotangents of live results) -> cotangents
    of the linear arguments; those arrays; and which of all these inputs it has."""
    avals = [v.aval for v in program.jaxpr.invars]
    fun, fixed = _jax.jaxpr_as_fun(program.jaxpr), [not x for x in linear]
    count = sum(fixed)

    def back(*args: Any) -> list[Any]:
        residuals, given = args[:count], args[count:]

        def forward(*moving: Any) -> list[Any]:
            known, new = iter(residuals), iter(moving)
            return _chosen(fun(*(next(new) if x else next(known) for x in linear)), live)

        types = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type, sharding=a.sharding,
                                      manual_axis_type=a.manual_axis_type)
                 for a in _chosen(avals, linear)]
        return list(jax.linear_transpose(forward, *types)(list(given)))

    ins = [*_chosen(avals, fixed), *_chosen([v.aval for v in program.jaxpr.outvars], live)]
    with _jax.axis_named(program.axis_name, axis_size):
        closed = _jax.trace(back, ins, f"transpose({program.name})")
    jaxpr, used = _lean(closed, [True] * sum(linear))
    return program.replace(jaxpr, f"transpose({program.name})"), _jax.consts_of(closed), used


ad.primitive_jvps[batched_call_p] = _jvp
ad.primitive_transposes[batched_call_p] = _transpose


def _dead_code_rule(wanted: list[bool], eqn: Any) -> tuple[list[bool], Any]:
    """What nobody reads is not computed, and what only that needs is not handed in."""
    if not any(wanted):
        return [False] * len(eqn.invars), None
    params = eqn.params
    program = params["program"]
    jaxpr, used = _jax.with_used_inputs(program.jaxpr, wanted)
    if all(wanted) and all(used):
        return used, eqn
    new = dict(params, program=program.replace(jaxpr), in_axes=tuple(_chosen(params["in_axes"], used)),
               out_axes=tuple(_chosen(params["out_axes"], wanted)))
    return used, eqn.replace(invars=_chosen(eqn.invars, used), outvars=_chosen(eqn.outvars, wanted), params=new)


_jax.register_dead_code_rule(batched_call_p, _dead_code_rule)
_jax.register_checks(batched_call_p, run_as_vmap)

# What several devices share is told apart by its plan alone.
ad.primitive_jvps[spread_call_p] = lambda primals, tangents, where, **params: _jvp(primals, tangents, **params)
ad.primitive_transposes[spread_call_p] = lambda cts, *args, where, **params: _transpose(cts, *args, **params)
_jax.register_dead_code_rule(spread_call_p, _dead_code_rule)
_jax.register_checks(spread_call_p, run_spread_as_vmap)
