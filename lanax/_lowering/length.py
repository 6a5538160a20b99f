"""How long the code of a program would be, were all of its small arrays unrolled. Emits nothing."""

from __future__ import annotations

from lanax._jax import Jaxpr, JaxprEqn
from lanax._lowering.arrays import UNROLL
from lanax._lowering.emitter import SHORT_UNROLL
from lanax._lowering.registry import RULES
from lanax._rewrite.surgery import inner_jaxprs

#: Instructions on unrolled arrays above which a kernel is emitted as short code: such a kernel has more values than
#: registers everywhere, so that loops are as fast, and the compiler's time grows with its length.
_LONG = 16384


def is_long(jaxpr: Jaxpr) -> bool:
    """Whether a program is to be emitted as short code. (No lanes in here: an order of summation may depend on it.)"""
    return sum(map(_unrolled_instructions, jaxpr.eqns)) > _LONG


def _unrolled_instructions(eqn: JaxprEqn) -> float:
    """Instructions for what short code would not unroll, roughly; those of a loop's body count once."""
    bodies = inner_jaxprs(eqn)
    if bodies:
        return sum(_unrolled_instructions(e) for body in bodies for e in body.eqns)
    size = max((v.aval.size for v in eqn.outvars if hasattr(v.aval, "size")), default=0)
    entry = RULES.get(eqn.primitive.name)
    return size * entry.cost if entry is not None and SHORT_UNROLL < size <= UNROLL else 0.0
