"""One example's program where `jax.vmap` has its batch tracers: bound as one primitive, or cut into several of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp

from lanax import _jax
from lanax._devices.varying import made_alike
from lanax._jax import NOT_MAPPED, Atom, Literal, Primitive, batching
from lanax._pipeline import Axes, stages
from lanax._plan import Plan
from lanax._planning.gains import BESIDE_XLA, gains
from lanax._planning.partition import Miss
from lanax._primitive import bind
from lanax._program import Program
from lanax._reports.report import record, record_pieces, recording
from lanax._rewrite.effects import Piece, is_pure, opened, pieces
from lanax._runtime.plans import with_stored_plan

#: One example's program, bound where `jax.vmap` has its batch tracers; exists only until `jax.vmap` applies its rule.
example_p = Primitive("lanax_example")
example_p.multiple_results = True


def _example_rule(axis_data: Any, args: Sequence[Any], dims: Sequence[Any], *, program: Program,
                  out_axes: tuple[int, ...], plan: Plan) -> tuple[list[Any], list[Any]]:
    """Varying results by one mapped call; uniform ones, which have no batch axis, by JAX as they are."""
    in_axes = tuple(None if d is NOT_MAPPED else int(d) for d in dims)
    plan = with_stored_plan(program, in_axes, int(axis_data.size), plan)
    count = len(program.jaxpr.outvars)
    varying = stages(program, in_axes, out_axes, plan).uniformity.varying_out[:count]
    mapped = [axis is not None for axis in in_axes]
    varying = [v or _jax.reads(program.jaxpr, i, mapped) for i, v in enumerate(varying)]
    outs: list[Any] = [None] * count
    fixed, moving = (_jax.with_results(program.jaxpr, w) for w in ([not v for v in varying], varying))
    axes = tuple(a for a, v in zip(out_axes, varying, strict=True) if v)
    uniform = iter(_jax.jaxpr_as_fun(fixed)(*args)) if not all(varying) else iter(())
    call = program if all(varying) else program.replace(moving)
    record(call, in_axes, axes, int(axis_data.size), plan)
    given, call = made_alike(args, call)
    batched = iter(bind(given, call, in_axes, axes, int(axis_data.size), plan)) if any(varying) else iter(())
    outs = [next(batched) if v else next(uniform) for v in varying]
    out_dims = [a if v else NOT_MAPPED for a, v in zip(out_axes, varying, strict=True)]
    return outs, out_dims


batching.fancy_primitive_batchers[example_p] = _example_rule


def run_example(operands: Sequence[Any], program: Program, out_axes: tuple[int, ...], axis_size: int, plan: Plan,
                linear: Sequence[bool] = ()) -> list[Any]:
    """Run one example's program in the trace of a `jax.vmap`, where it is the current one.

    Where `jax.vmap` must see some equations itself, they are bound one after another as it would have them, and what
    lies between them as programs of their own. `linear`: the operands in which the program is linear, if it is to be
    transposed; what does not depend on them is then computed apart.
    """
    if is_pure(program.jaxpr):
        return example_p.bind(*operands, program=program, out_axes=out_axes, plan=plan)
    closed = opened(_jax.make_closed(program.jaxpr))
    jaxpr = _jax.without_consts(closed)
    values: dict[Atom, Any] = dict(zip(jaxpr.invars, [*_jax.consts_of(closed), *operands], strict=True))
    axes = {v: a for v, a in zip(jaxpr.outvars, out_axes, strict=True) if not isinstance(v, Literal)}
    moving: set[Atom] = {v for v, moves in zip(jaxpr.invars[::-1], linear[::-1], strict=False) if moves}
    done: list[Any] = []
    cut = [_as_is(piece, plan) for piece in pieces(jaxpr)]
    for piece in _apart(cut, moving) if moving else cut:
        args = [values[v] for v in piece.jaxpr.invars]
        with recording() as calls:
            outs = _run_piece(piece, args, program, axes, plan)
        values.update(zip(piece.jaxpr.outvars, outs, strict=True))
        done.append(piece.misses or calls[-1])
    record_pieces(program, axis_size, plan, done)
    return [v.val if isinstance(v, Literal) else values[v] for v in jaxpr.outvars]


def _as_is(piece: Piece, plan: Plan) -> Piece:
    """A piece; one that gains nothing in lanes is left to `jax.vmap`, unless the plan says otherwise."""
    bound = plan.route in ("lanes", "serial") or plan.chunk or plan.memory
    if piece.misses or bound or gains(piece.jaxpr):
        return piece
    source = next((line for e in piece.jaxpr.eqns if (line := _jax.source_line(e))), "")
    return Piece(piece.jaxpr, (Miss("program", source, BESIDE_XLA),))


def _run_piece(piece: Piece, args: Sequence[Any], program: Program, axes: dict[Any, int], plan: Plan) -> list[Any]:
    if piece.misses:
        return _jax.jaxpr_as_fun(piece.jaxpr)(*args)
    wanted = tuple(axes.get(v, 0) for v in piece.jaxpr.outvars)
    return example_p.bind(*args, program=program.replace(piece.jaxpr), out_axes=wanted, plan=plan)


def _apart(cut: Sequence[Piece], moving: set[Atom]) -> Iterator[Piece]:
    """The pieces, with results that depend on what moves and others in pieces of their own."""
    for piece in cut:
        reads = [v in moving for v in piece.jaxpr.invars]
        moves = [_jax.reads(piece.jaxpr, i, reads) for i in range(len(piece.jaxpr.outvars))]
        moving.update(v for v, m in zip(piece.jaxpr.outvars, moves, strict=True) if m)
        if piece.misses or all(moves) or not any(moves):
            yield piece
        else:
            for wanted in ([not m for m in moves], moves):
                yield Piece(_jax.with_used_inputs(piece.jaxpr, wanted)[0], ())


def run_mapped(args: Sequence[Any], program: Program, in_axes: Axes, out_axes: Axes, axis_size: int,
               plan: Plan, linear: Sequence[bool] = ()) -> list[Any]:
    """Run a program on every example, as `bind` does, though `jax.vmap` may have to see some of its equations.

    `linear`: as for `run_example`.
    """
    with _jax.axis_named(program.axis_name, axis_size):
        pure = is_pure(program.jaxpr)
    if pure:
        return bind(args, program, in_axes, out_axes, axis_size, plan)

    def example(*operands: Any) -> list[Any]:
        return run_example(operands, program, axes, axis_size, plan, linear)

    axes = tuple(axis or 0 for axis in out_axes)
    mapped = _jax.vmap(example, in_axes=in_axes, out_axes=list(axes), axis_name=program.axis_name,
                       axis_size=axis_size)
    with recording():  # it is nobody's call
        outs = mapped(*args)
    return [jnp.sum(x, 0) if axis is None else x for x, axis in zip(outs, out_axes, strict=True)]
