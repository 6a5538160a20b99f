"""Under `shard_map`, a mapped call whose operands all vary over the same axes of the mesh. Knows no kernel.

JAX writes into a program over which axes of the mesh each value varies. Where a program reads a replicated array, it
makes it varying inside, the transpose of which is a sum over devices, for each example. Here operands are made varying
before the call, so that there is one sum over devices, of what the batch has summed up; and the types in the program
say nothing of the mesh.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from lanax import _jax
from lanax._jax import Atom, ClosedJaxpr, DropVar, Jaxpr, JaxprEqn, Literal, Var
from lanax._program import Program, has_rules, programs_in

_inside: contextvars.ContextVar[bool] = contextvars.ContextVar("lanax_inside_an_example", default=False)


@contextlib.contextmanager
def inside_an_example() -> Iterator[None]:
    """While a program for one example is traced: calls in it keep their types until the whole program loses them."""
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


def made_alike(args: Sequence[Any], program: Program) -> tuple[Sequence[Any], Program]:
    """Operands that vary over the same axes, and the program without types that say so, where the results of the call
    have the same types then; else both as they are."""
    axes = _axes(args)
    if not axes or _inside.get() or any(found != axes for found in _axes_of_results(args, program.jaxpr)):
        return args, program
    bare = without_types(program.jaxpr)
    return (alike(args), program.replace(bare)) if _is_bare(bare) and not _rules_sum(bare) else (args, program)


def alike(args: Sequence[Any]) -> list[Any]:
    """Values made varying over all the axes over which any of them varies."""
    axes = _axes(args)
    missing = [tuple(a for a in _ordered(axes) if a not in _axes([x])) for x in args]
    return [_jax.core.pvary(x, some) if some else x for x, some in zip(args, missing, strict=True)]


def typed_results(avals: Sequence[Any], program: Program, results: Sequence[Any]) -> list[Any]:
    """The types of the results of a call whose operands have these types, which say over which axes they vary: those of
    all that a result reads. (The type of a `cond` does not speak of its index.)"""
    axes = _axes(avals)
    if not axes:
        return list(results)
    alike = all(_axes([a]) == axes for a in avals)
    found = [axes] * len(results) if alike else _axes_of_results(avals, program.jaxpr)
    mesh = next(a.sharding.mesh for a in avals if _axes([a]))
    return [_varying(x, more, mesh) if more else x for x, more in zip(results, found, strict=True)]


def _varying(aval: Any, axes: frozenset[Any], mesh: Any) -> Any:
    """A type as one that varies over more axes; that of a constant may be of no mesh yet."""
    if aval.sharding.mesh.empty:
        aval = aval.update(sharding=NamedSharding(mesh, PartitionSpec(*[None] * aval.ndim)))
    return aval.update(manual_axis_type=aval.mat.update(varying=aval.mat.varying | axes))


def _axes_of_results(args: Sequence[Any], jaxpr: Jaxpr) -> list[frozenset[Any]]:
    """For each result of a program, the axes over which anything varies that it reads."""
    given = [_axes([x]) for x in args]
    return [frozenset(a for a in _axes(args) if _jax.reads(jaxpr, i, [a in axes for axes in given]))
            for i in range(len(jaxpr.outvars))]


def traced(fun: Callable[..., Any], avals: Sequence[Any], name: str) -> ClosedJaxpr:
    """The jaxpr of a program for one example, for arguments of these types. Where it does not fit JAX's types under
    `shard_map`, since a loop or a branch of it starts from a constant, which varies over no axis of the mesh, it is
    traced without them; not if it speaks of an axis itself."""
    try:
        return _jax.trace(fun, avals, name)
    except TypeError:
        if not _axes(avals):
            raise
        with _jax.unchecked_manual_axes():
            closed = _jax.trace(fun, list(map(_bare, avals)), name)
        if _jax.names_an_axis(_jax.open_and_consts(closed)[0]):
            raise
        return closed


def untyped(program: Program, args: Sequence[Any]) -> contextlib.AbstractContextManager[Any]:
    """A context in which programs can be made of one of `made_alike`, for operands like these."""
    return _jax.unchecked_manual_axes() if is_untyped(program, args) else contextlib.nullcontext()


def is_untyped(program: Program, args: Sequence[Any]) -> bool:
    """Whether a program and its operands are as `made_alike` makes them."""
    return bool(_axes(args)) and not _axes([v.aval for v in program.jaxpr.invars])


def _axes(values: Sequence[Any]) -> frozenset[Any]:
    """The axes of the mesh over which any of some values, or types, varies."""
    types = (x if isinstance(x, _jax.ShapedArray) else _jax.typeof(x) for x in values)
    return frozenset().union(*(t.mat.varying for t in types if hasattr(t, "mat")))


def _ordered(axes: frozenset[Any]) -> list[Any]:
    return sorted(axes, key=str)


def _is_bare(jaxpr: Jaxpr) -> bool:
    """Whether nothing is left in a program that speaks of the mesh, and no rule for a whole derivative is hidden in it.
    """
    return all(e.primitive is not _jax.core.pvary_p and not _axes([v.aval for v in (*e.invars, *e.outvars)])
               and (not e.primitive.name.startswith("custom_") or e.primitive.name == "custom_jvp_call")
               and all(map(_is_bare, programs_in(e))) for e in jaxpr.eqns)


def _rules_sum(jaxpr: Jaxpr) -> bool:
    """Whether rules for derivatives in a program exchange values over a named axis."""
    if not has_rules(jaxpr):
        return False
    with _jax.unchecked_manual_axes():
        moving = [jnp.issubdtype(v.aval.dtype, jnp.inexact) for v in jaxpr.invars]
        tangent = without_types(_jax.without_consts(_jax.jvp_jaxpr(jaxpr, moving)[0]))
    return _jax.names_an_axis(tangent)


def _has_types(jaxpr: Jaxpr) -> bool:
    return any(e.primitive is _jax.core.pvary_p or _axes([v.aval for v in (*e.invars, *e.outvars)])
               or any(map(_has_types, programs_in(e))) for e in jaxpr.eqns) or bool(
                   _axes([v.aval for v in (*jaxpr.invars, *jaxpr.outvars)]))


def _bare(aval: Any) -> Any:
    if not isinstance(aval, _jax.ShapedArray) or not aval.mat.varying:
        return aval
    return aval.update(manual_axis_type=aval.mat.update(varying=frozenset()))


def without_types(jaxpr: Jaxpr) -> Jaxpr:
    """An open jaxpr whose types say nothing of what varies over a mesh, and which makes nothing varying; itself where
    that is so."""
    if not _has_types(jaxpr):
        return jaxpr
    env: dict[Atom, Atom] = {}

    def bound(v: Var) -> Var:
        new = DropVar(_bare(v.aval)) if isinstance(v, DropVar) else Var(_bare(v.aval))
        env[v] = new
        return new

    def read(v: Atom) -> Atom:
        return Literal(v.val, _bare(v.aval)) if isinstance(v, Literal) else env[v]

    invars = [bound(v) for v in jaxpr.invars]
    eqns: list[JaxprEqn] = []
    for eqn in jaxpr.eqns:
        operands = [read(v) for v in eqn.invars]
        if eqn.primitive is _jax.core.pvary_p:
            env.update(zip(eqn.outvars, operands, strict=True))
            continue
        params = {name: _jax.rule_with(value, _bare_rule) if name == "jvp_jaxpr_fun" else _bare_parameter(value)
                  for name, value in eqn.params.items()}
        eqns.append(eqn.replace(invars=operands, outvars=[bound(v) for v in eqn.outvars], params=params))
    return _jax.make_open(invars, [read(v) for v in jaxpr.outvars], eqns, jaxpr)


def _bare_parameter(value: Any) -> Any:
    if isinstance(value, Program):
        return value.replace(without_types(value.jaxpr))
    if not isinstance(value, (Jaxpr, ClosedJaxpr)):
        return tuple(map(_bare_parameter, value)) if type(value) is tuple else value
    inner, consts = _jax.open_and_consts(value)
    return _closed(inner, consts) if isinstance(value, ClosedJaxpr) else without_types(inner)


def _closed(jaxpr: Jaxpr, consts: Sequence[Any]) -> ClosedJaxpr:
    """A jaxpr with constants, without types."""
    count = len(jaxpr.constvars)
    bare = without_types(_jax.make_open([*jaxpr.constvars, *jaxpr.invars], jaxpr.outvars, jaxpr.eqns, jaxpr))
    return _jax.make_closed(_jax.make_open(bare.invars[count:], bare.outvars, bare.eqns, bare), bare.invars[:count],
                            consts)


def _bare_rule(rule: Callable[..., Any], *zeros: Any) -> Any:
    """The jaxpr of a rule for a jvp, which was to be traced for types that speak of the mesh, without them."""
    with _jax.checked_manual_axes():
        jaxpr, consts, *more = rule(*zeros)
    return (*_jax.open_and_consts(_closed(jaxpr, consts)), *more)
