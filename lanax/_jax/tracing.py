"""Functions traced to jaxprs, the types of values as tracing sees them, and what differentiation is told."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src import core, dtypes
from jax._src import linear_util as _linear_util
from jax._src.core import ShapedArray, Tracer
from jax._src.interpreters import ad
from jax._src.interpreters import partial_eval as _partial_eval
from jax._src.lax.lax import _convert_element_type

from lanax._jax.classes import ClosedJaxpr, Jaxpr


def trace(fun: Callable[..., Any], avals: Sequence[Any], name: str = "lanax") -> ClosedJaxpr:
    """The jaxpr of `fun`, which takes and gives flat lists of arrays, for arguments of the types `avals`."""
    info = core.DebugInfo(name, name, ("",) * len(avals), None)
    wrapped = _linear_util.wrap_init(fun, debug_info=info)
    jaxpr, _, consts = _partial_eval.trace_to_jaxpr_dynamic(wrapped, list(avals))
    return ClosedJaxpr(jaxpr, consts)


def typeof(x: Any) -> Any:
    """The type of a value, as tracing sees it."""
    return core.shaped_abstractify(x) if not isinstance(x, Tracer) else core.typeof(x)


def tangent_type(x: Any) -> Any:
    """The type of the tangent of a value."""
    return core.typeof(x).to_tangent_aval()


def is_jax_type(x: Any) -> bool:
    """Whether JAX takes a value as an array."""
    try:
        core.shaped_abstractify(x)
    except TypeError:
        return False
    return True


def is_plain_scalar(aval: Any) -> bool:
    """True for the type of a scalar that is a number or a bool (a random key is not)."""
    return isinstance(aval, ShapedArray) and aval.shape == () and not dtypes.issubdtype(aval.dtype, dtypes.extended)


def symbolic(jaxpr: Jaxpr, axis_size: Any) -> str:
    """Why a program cannot be compiled before `jax.export` knows its shapes; empty where it can."""
    shapes = [(axis_size,), *(getattr(v.aval, "shape", ()) for v in jaxpr.invars)]
    return "" if all(map(core.is_constant_shape, shapes)) else "it has symbolic shapes"


def weak_as(x: Any, aval: Any) -> Any:
    """A value with the dtype and the weak type of `aval`."""
    return _convert_element_type(x, aval.dtype, weak_type=aval.weak_type)


def wide_enough(avals: Sequence[Any]) -> Any:
    """A context in which 64-bit numbers stay that where some of these types are, whatever the user's setting."""
    wide = any(getattr(getattr(a, "dtype", None), "name", "")[-2:] == "64" for a in avals)
    return jax.enable_x64(True) if wide else contextlib.nullcontext()


#: What stands for no cotangent or tangent.
Zero: Any = getattr(ad, "Zero")  # noqa: B009


def jvp_jaxpr(jaxpr: Jaxpr, nonzero: Sequence[bool]) -> tuple[ClosedJaxpr, list[bool]]:
    """The jaxpr (inputs, nonzero tangents of inputs) -> results, then those of their tangents that are not zero; and
    which those are."""
    differentiate: Any = ad.jvp_jaxpr
    closed, moving = differentiate(ClosedJaxpr(jaxpr, []), list(nonzero), instantiate=False)
    return closed, list(moving)


def rule_with(rule: Any, change: Callable[..., Any]) -> Any:
    """A parameter of `custom_jvp_call` that gives the jaxpr of its rule, with `change(rule, *zeros)` in its place."""
    return _linear_util.wrap_init(lambda *zeros: change(rule.call_wrapped, *zeros), debug_info=rule.debug_info)
