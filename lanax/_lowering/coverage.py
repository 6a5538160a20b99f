"""Whether an equation can be in lanes, asked before anything is lowered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lanax._jax import JaxprEqn, Primitive, is_key
from lanax._llvm.types import has_lane_type
from lanax._lowering import rules as _rules
from lanax._lowering.catalogue import COMPLEX_REASONS, REASONS
from lanax._lowering.keys import is_complex
from lanax._lowering.registry import RULES

assert _rules  # importing the package registers the rules

#: What takes complex numbers apart and puts them together; other equations on them have been replaced.
_COMPLEX = frozenset({"complex", "imag", "real"})


def has_rule(primitive: Primitive, params: Mapping[str, Any]) -> bool:
    """Whether a primitive with these parameters is lowered by a rule, rather than composed of others."""
    del params
    return primitive.name in RULES


def why_not(eqn: JaxprEqn) -> str | None:
    """The reason why an equation, its inner jaxprs aside, has no lane code; None where it has."""
    name = eqn.primitive.name
    entry = RULES.get(name)
    if entry is None:
        return REASONS.get(name, "no lowering rule")
    avals_in = tuple(v.aval for v in eqn.invars)
    avals_out = tuple(v.aval for v in eqn.outvars)
    for aval in (*avals_in, *avals_out):
        if not hasattr(aval, "shape") or not hasattr(aval, "dtype"):
            return f"values of type {aval} have no lane form"
        if is_complex(aval) and name not in _COMPLEX:
            return COMPLEX_REASONS.get(name, f"it has no lane form for values of dtype {aval.dtype}")
        if not is_key(aval) and not is_complex(aval) and not has_lane_type(aval.dtype):
            return f"values of dtype {aval.dtype} have no lane form yet"
    return entry.supports(avals_in, avals_out, eqn.params) if entry.supports else None
