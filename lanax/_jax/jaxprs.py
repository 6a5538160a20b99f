"""Jaxprs read, built and changed: constants, effects, dead code, the parameters of `scan`.

Up to 0.11 an open `Jaxpr` and a `ClosedJaxpr` are two classes; from 0.12 on they are one, in which a constvar without
a value attached is an ordinary leading invar.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax._src import core
from jax._src.interpreters import partial_eval as _partial_eval

from lanax._jax.classes import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var


def open_and_consts(jaxpr: Any) -> tuple[Jaxpr, Sequence[Any]]:
    """The open jaxpr of an open or closed one, and its constants; `constvars` of it pair with the constants."""
    return getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())


def make_open(invars: Sequence[Var], outvars: Sequence[Atom], eqns: Sequence[JaxprEqn], like: Any = None) -> Jaxpr:
    """An open jaxpr without constants; its effects are those of its equations, its debug info that of `like`."""
    effects = _partial_eval.make_jaxpr_effects((), invars, outvars, eqns)
    return Jaxpr((), invars, outvars, eqns, effects, _debug_info(like, len(invars), len(outvars)))


def make_closed(jaxpr: Jaxpr, constvars: Sequence[Var] = (), consts: Sequence[Any] = ()) -> ClosedJaxpr:
    """Close an open jaxpr from `make_open`, with constants for `constvars`."""
    if constvars:
        effects = _partial_eval.make_jaxpr_effects(constvars, jaxpr.invars, jaxpr.outvars, jaxpr.eqns)
        jaxpr = Jaxpr(constvars, jaxpr.invars, jaxpr.outvars, jaxpr.eqns, effects, jaxpr.debug_info)
    return ClosedJaxpr(jaxpr, list(consts))


def _debug_info(like: Any, num_in: int, num_out: int) -> core.DebugInfo:
    known = getattr(like, "debug_info", None)
    if known is None:
        return core.DebugInfo("lanax", "<lanax>", ("",) * num_in, ("",) * num_out)
    names = known.arg_names if len(known.arg_names or ()) == num_in else ("",) * num_in
    paths = known.result_paths if len(known.result_paths or ()) == num_out else ("",) * num_out
    return core.DebugInfo(known.traced_for, known.func_src_info, names, paths)


def without_consts(closed: ClosedJaxpr) -> Jaxpr:
    """A closed jaxpr as an open one whose constants, `consts_of`, are its first inputs."""
    jaxpr, _ = open_and_consts(closed)
    invars = [*jaxpr.constvars, *jaxpr.invars]
    return Jaxpr((), invars, jaxpr.outvars, jaxpr.eqns, jaxpr.effects,
                 _debug_info(jaxpr, len(invars), len(jaxpr.outvars)))


def consts_of(closed: ClosedJaxpr) -> list[Any]:
    """The constants of a closed jaxpr."""
    return list(open_and_consts(closed)[1])


def with_variables(eqn: JaxprEqn, invars: Sequence[Atom], outvars: Sequence[Var]) -> JaxprEqn:
    """An equation for other operands and results of the same types."""
    effects: Any = eqn.effects
    if effects:
        # From 0.12 on an effect on a mutable array names its variable, before that its position.
        renamed = {old: new for old, new in zip(eqn.invars, invars, strict=True) if isinstance(old, Var)}
        effects = {e.replace(renamed[e.input]) if getattr(e, "input", None) in renamed else e for e in effects}
    return eqn.replace(invars=list(invars), outvars=list(outvars), effects=effects)


def has_lasting_effects(eqn: JaxprEqn) -> bool:
    """True where an equation must run even if nobody reads its results."""
    return any(not _partial_eval.dceable_effects.contains(effect) for effect in eqn.effects)


def jaxprs_in(eqn: JaxprEqn) -> list[Jaxpr]:
    """The open jaxprs among an equation's parameters."""
    found: Any = core.jaxprs_in_params(eqn.params)
    return list(found)


def holds_any(jaxpr: Jaxpr, test: Callable[[JaxprEqn], bool]) -> bool:
    """Whether a test holds for an equation of a jaxpr, at any depth."""
    return any(test(e) or any(holds_any(inner, test) for inner in jaxprs_in(e)) for e in jaxpr.eqns)


def holds(jaxpr: Jaxpr, *names: str) -> bool:
    """Whether a primitive of one of these names occurs in a jaxpr, at any depth."""
    return holds_any(jaxpr, lambda eqn: eqn.primitive.name in names)


def with_used_inputs(jaxpr: Jaxpr, wanted: Sequence[bool]) -> tuple[Jaxpr, list[bool]]:
    """An open jaxpr with some of its results and the inputs that they need; and which inputs those are."""
    eliminate: Any = _partial_eval.dce_jaxpr
    return eliminate(jaxpr, list(wanted))


def with_results(jaxpr: Jaxpr, wanted: Sequence[bool]) -> Jaxpr:
    """An open jaxpr with some of its results only; dead code goes, inputs stay."""
    eliminate: Any = _partial_eval.dce_jaxpr
    return eliminate(jaxpr, list(wanted), instantiate=True)[0]


def reads(jaxpr: Jaxpr, result: int, inputs: Sequence[bool]) -> bool:
    """Whether computing one result reads any of the chosen inputs."""
    eliminate: Any = _partial_eval.dce_jaxpr
    _, used = eliminate(jaxpr, [i == result for i in range(len(jaxpr.outvars))])
    return any(u and chosen for u, chosen in zip(used, inputs, strict=True))


def literal(value: Any, aval: Any) -> Literal:
    """A scalar constant as a literal of an equation."""
    return Literal(np.asarray(value)[()], aval)


def zero(aval: Any) -> Atom:
    """A scalar zero as a literal."""
    return literal(np.zeros((), aval.dtype), aval)


eval_jaxpr: Any = core.eval_jaxpr


def jaxpr_as_fun(jaxpr: Jaxpr) -> Callable[..., list[Any]]:
    """An open jaxpr without constants as a function of its inputs."""
    return functools.partial(eval_jaxpr, jaxpr, ())


# Scan. From 0.12 on its parameters group the operands by trees instead of counting them.


def scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """Number of constants and of carries of a `scan`."""
    if "num_carry" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def scan_params(params: Mapping[str, Any], jaxpr: ClosedJaxpr, num_consts: int, num_carry: int) -> dict[str, Any]:
    """Parameters of a `scan` with another body."""
    new = dict(params, jaxpr=jaxpr)
    if "num_carry" in params:
        return dict(new, num_consts=num_consts, num_carry=num_carry)
    num_xs, num_ys = len(jaxpr.in_avals) - num_consts - num_carry, len(jaxpr.out_avals) - num_carry
    new["ft_in"] = _groups(num_consts, num_carry, num_xs)
    new["ft_out"] = _groups(num_carry, num_ys)
    return new


def _groups(*sizes: int) -> Any:
    from jax._src import flattree  # pyright: ignore[reportAttributeAccessIssue]  (absent before 0.12)

    return flattree.pack(tuple(flattree.nones(size) for size in sizes))
