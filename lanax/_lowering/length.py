"""How long the code of a program would be, were all of its small arrays unrolled. Emits nothing."""

from __future__ import annotations

from collections.abc import Iterator

from lanax._jax import Jaxpr, JaxprEqn
from lanax._lowering.arrays import UNROLL
from lanax._lowering.emitter import SHORT_UNROLL
from lanax._lowering.registry import RULES
from lanax._rewrite.surgery import inner_jaxprs

#: Instructions on unrolled arrays, the longest body's aside, above which a kernel is emitted as short code. What one
#: body computes in a straight line is better unrolled, however long: in loops, all that an equation hands on would be
#: stored. (Measured: 0.4 to 0.9 times as fast.) What bodies hand to each other is stored anyway, where it is so much.
#: (Measured: 1 to 1.1 times as fast, in a third of the compiler's time.)
_LONG = 12288


def is_long(jaxpr: Jaxpr) -> bool:
    """Whether a program is to be emitted as short code. (No lanes in here: an order of summation may depend on it.)"""
    bodies = list(_instructions(jaxpr))
    return sum(bodies) - max(bodies) > _LONG


def _instructions(jaxpr: Jaxpr) -> Iterator[float]:
    """Instructions for what short code would not unroll, roughly: of a program's own equations, and of each body of its
    loops and branches."""
    yield sum(map(_of_equation, jaxpr.eqns))
    for eqn in jaxpr.eqns:
        for body in inner_jaxprs(eqn):
            yield from _instructions(body)


def _of_equation(eqn: JaxprEqn) -> float:
    if inner_jaxprs(eqn):
        return 0.0
    size = max((v.aval.size for v in eqn.outvars if hasattr(v.aval, "size")), default=0)
    entry = RULES.get(eqn.primitive.name)
    return size * entry.cost if entry is not None and SHORT_UNROLL < size <= UNROLL else 0.0
