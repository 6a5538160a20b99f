"""Programs that make mutable arrays and use them, as programs of plain ones."""

from __future__ import annotations

from typing import Any

from jax._src import core
from jax._src.core import ShapedArray
from jax._src.state import discharge as _discharge
from jax._src.state import types as _state_types

from lanax._jax.classes import ClosedJaxpr, Jaxpr, JaxprEqn
from lanax._jax.jaxprs import jaxprs_in

#: From 0.12 on loops and branches that are rid of refs are rid of the rules for derivatives inside them as well.
_RULES_ARE_LOST_INSIDE = not hasattr(_discharge, "discharge_state2")


def has_refs(jaxpr: Jaxpr) -> bool:
    """Whether a program makes, reads or writes mutable arrays."""
    return any(isinstance(e, (core.InternalMutableArrayEffect, _state_types.RefEffect)) for e in jaxpr.effects)


def without_refs(closed: ClosedJaxpr) -> ClosedJaxpr:
    """A program that makes mutable arrays and uses them as one of plain arrays; the same program where JAX knows no
    way, or where a rule for differentiation would be lost."""
    if not has_refs(closed.jaxpr) or _refs_meet_rules(closed.jaxpr) or _takes_refs(closed.jaxpr):
        return closed
    state: Any = _discharge
    try:
        pure = state.discharge_state(closed, lower=False) if _RULES_ARE_LOST_INSIDE else state.discharge_state2(closed)
    except NotImplementedError:
        return closed
    return closed if _takes_others(pure.jaxpr) else pure


def _takes_refs(jaxpr: Jaxpr) -> bool:
    return any(isinstance(v.aval, _state_types.AbstractRef) for v in (*jaxpr.constvars, *jaxpr.invars))


def _takes_others(jaxpr: Jaxpr) -> bool:
    """Whether a variable is of another type than an array."""
    variables = [*jaxpr.constvars, *jaxpr.invars, *(v for e in jaxpr.eqns for v in e.outvars)]
    return any(not isinstance(v.aval, ShapedArray) for v in variables) or any(
        _takes_others(inner) for e in jaxpr.eqns for inner in jaxprs_in(e))


def _refs_meet_rules(jaxpr: Jaxpr) -> bool:
    """Whether JAX would drop a rule for a derivative with the mutable arrays."""
    def dropped(eqn: JaxprEqn, inside: bool) -> bool:
        refs = any(map(has_refs, jaxprs_in(eqn)))
        if eqn.primitive.name.startswith("custom_") and (refs or inside):
            return True
        below = _RULES_ARE_LOST_INSIDE and (refs or inside)
        return any(dropped(e, below) for inner in jaxprs_in(eqn) for e in inner.eqns)

    return any(dropped(e, False) for e in jaxpr.eqns)
