"""JAX's own `vmap`: the axes that it names, the trace that it makes, and `jax.numpy.vectorize`, which is made of it.

It and `lax.map` are JAX's whatever stands in `jax`: `lanax.patch` puts others there.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from jax._src import core
from jax._src.interpreters import batching
from jax._src.lax.control_flow import loops
from jax._src.numpy.vectorize import vectorize

from lanax._jax.classes import Jaxpr, JaxprEqn
from lanax._jax.jaxprs import jaxprs_in

lax_map = loops.map


def names_an_axis(jaxpr: Jaxpr) -> bool:
    """True where a collective over a named axis occurs; not all of them have an effect that says so."""
    return bool(core.get_axis_env().axis_sizes) and any(map(equation_names_an_axis, jaxpr.eqns))


def equation_names_an_axis(eqn: JaxprEqn) -> bool:
    """True where an equation is, or holds, a collective over a named axis."""
    if not core.get_axis_env().axis_sizes:
        return False
    return "axis_name" in eqn.params or any(map(names_an_axis, jaxprs_in(eqn)))


def axes_of(eqn: JaxprEqn) -> str:
    """The named axes of a collective, in words; empty for other equations."""
    names = eqn.params.get("axis_name") or [e.name for e in eqn.effects if isinstance(e, core.NamedAxisEffect)]
    return ", ".join(map(repr, names if isinstance(names, (tuple, list)) else [names]))


def axis_named(name: Any, size: int) -> Any:
    """A context in which collectives over an axis of this name can be traced; None: there is no name."""
    return core.extend_axis_env_nd([] if name is None else [(name, size)])


def name_of_axis(axis_data: Any) -> Any:
    """The name that the user has given to the axis of a `jax.vmap`, or None."""
    return None if axis_data.name is core.no_axis_name else axis_data.name


#: What stands for the axis of an operand that has none.
NOT_MAPPED = getattr(batching, "not_mapped", None)


def batch_trace() -> Any:
    """The trace of the innermost `jax.vmap` if it is the current one, else None."""
    trace = core.trace_ctx.trace
    return trace if isinstance(trace, batching.BatchTrace) else None


def runs_at_once(trace: Any) -> bool:
    """Whether a `jax.vmap` with this trace runs one operation after another, with nothing but others of its kind
    around it."""
    while isinstance(trace, batching.BatchTrace):
        trace = trace.parent_trace
    return isinstance(trace, core.EvalTrace)


def is_batched(x: Any, trace: Any) -> bool:
    """Whether a value is mapped by the `jax.vmap` of this trace."""
    return isinstance(x, batching.BatchTracer) and x._trace is trace


def vectorize_with(mapper: Callable[..., Any]) -> Callable[..., Any]:
    """`jax.numpy.vectorize` by another `vmap`: a copy of JAX's function, which looks its `vmap` up in `api`."""
    seen = dict(vectorize.__globals__, api=types.SimpleNamespace(vmap=mapper))
    copy = types.FunctionType(vectorize.__code__, seen, vectorize.__name__, vectorize.__defaults__)
    copy.__kwdefaults__ = vectorize.__kwdefaults__
    return copy
