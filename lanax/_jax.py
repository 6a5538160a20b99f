"""JAX's less public modules: the only file that imports from them, and where JAX's versions differ, one face for all.

Knows nothing of batches, kernels or plans.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import inspect
import operator
import os
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax._src import (
    array,
    checkify,
    config,
    core,
    dispatch,
    dtypes,
    sharding_impls,
    source_info_util,
    traceback_util,
    util,
)
from jax._src import distributed as _distributed
from jax._src import linear_util as _linear_util
from jax._src import xla_bridge as _xla_bridge
from jax._src.api import vmap
from jax._src.api_util import flatten_axes
from jax._src.core import Primitive, ShapedArray, Tracer, new_jaxpr_eqn
from jax._src.interpreters import ad, batching, mlir, pxla
from jax._src.interpreters import partial_eval as _partial_eval
from jax._src.lax import lax as _lax
from jax._src.lax.control_flow.loops import map as lax_map
from jax._src.lax.lax import _convert_element_type
from jax._src.lax.scaled_dot import _scaled_dot_impl
from jax._src.lax.special import igamma_grad_a_impl, regularized_incomplete_beta_impl
from jax._src.mesh import empty_concrete_mesh, get_concrete_mesh, use_abstract_mesh
from jax._src.numpy.vectorize import vectorize
from jax._src.state import discharge as _discharge
from jax._src.state import types as _state_types
from jax.sharding import AxisType, NamedSharding, PartitionSpec

try:
    from jax._src.random import prng  # from 0.12 on
except ImportError:
    from jax._src import prng  # type: ignore[attr-defined, no-redef]

if TYPE_CHECKING:
    # What lanax relies on of these classes; JAX declares the types of variables too wide to be read.
    class Var:
        aval: Any

        def __init__(self, aval: Any) -> None: ...

    class DropVar(Var): ...

    class Literal:
        aval: Any
        val: Any

        def __init__(self, val: Any, aval: Any) -> None: ...

    class JaxprEqn:
        primitive: Primitive
        params: dict[str, Any]
        invars: list[Var | Literal]
        outvars: list[Var]
        effects: Any
        source_info: Any
        ctx: Any

        def replace(self, **changes: Any) -> JaxprEqn: ...

    class Jaxpr:
        constvars: list[Var]
        invars: list[Var]
        outvars: list[Var | Literal]
        eqns: list[JaxprEqn]
        effects: Any
        debug_info: Any

        def __init__(self, constvars: Sequence[Var], invars: Sequence[Var], outvars: Sequence[Var | Literal],
                     eqns: Sequence[JaxprEqn], effects: Any, debug_info: Any) -> None: ...

    class ClosedJaxpr:
        jaxpr: Jaxpr
        consts: list[Any]
        in_avals: list[Any]
        out_avals: list[Any]

        def __init__(self, jaxpr: Jaxpr, consts: Sequence[Any]) -> None: ...
else:
    from jax._src.core import DropVar, Jaxpr, JaxprEqn, Literal, Var
    from jax.extend.core import ClosedJaxpr  # the same class as Jaxpr from 0.12 on

Atom = Var | Literal

__all__ = [
    "NOT_MAPPED",
    "Atom",
    "ClosedJaxpr",
    "DropVar",
    "Jaxpr",
    "JaxprEqn",
    "Literal",
    "Primitive",
    "ShapedArray",
    "Tracer",
    "Var",
    "Zero",
    "ad",
    "api_boundary",
    "axes_of",
    "axis_named",
    "batching",
    "checked_manual_axes",
    "core",
    "counter_hash",
    "dot_dtypes",
    "dtypes",
    "equation_names_an_axis",
    "eval_jaxpr",
    "flatten_axes",
    "has_lasting_effects",
    "has_refs",
    "has_users_line",
    "igamma_grad_a_impl",
    "impl_of",
    "installed_primitives",
    "is_plain_scalar",
    "jaxprs_in",
    "lax_map",
    "literal",
    "make_closed",
    "make_open",
    "mlir",
    "name_of_axis",
    "names_an_axis",
    "new_jaxpr_eqn",
    "open_and_consts",
    "prng",
    "ragged_dot",
    "random_gamma_impl",
    "reads",
    "regularized_incomplete_beta_impl",
    "rule_with",
    "scaled_dot",
    "scan_counts",
    "scan_params",
    "source_info_util",
    "source_line",
    "sparse_impl",
    "trace",
    "unchecked_manual_axes",
    "vectorize",
    "vectorize_with",
    "vmap",
    "wide_enough",
    "with_variables",
    "without_refs",
    "zero",
]


# Jaxprs. Up to 0.11 an open `Jaxpr` and a `ClosedJaxpr` are two classes; from 0.12 on they are one, in which a
# constvar without a value attached is an ordinary leading invar.


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


def jaxprs_in(eqn: JaxprEqn) -> list[Jaxpr]:
    """The open jaxprs among an equation's parameters."""
    found: Any = core.jaxprs_in_params(eqn.params)
    return list(found)


def axis_named(name: Any, size: int) -> Any:
    """A context in which collectives over an axis of this name can be traced; None: there is no name."""
    return core.extend_axis_env_nd([] if name is None else [(name, size)])


def name_of_axis(axis_data: Any) -> Any:
    """The name that the user has given to the axis of a `jax.vmap`, or None."""
    return None if axis_data.name is core.no_axis_name else axis_data.name


# Mutable arrays.


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


#: From 0.12 on loops and branches that are rid of refs are rid of the rules for derivatives inside them as well.
_RULES_ARE_LOST_INSIDE = not hasattr(_discharge, "discharge_state2")


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


def symbolic(jaxpr: Jaxpr, axis_size: Any) -> str:
    """Why a program cannot be compiled before `jax.export` knows its shapes; empty where it can."""
    shapes = [(axis_size,), *(getattr(v.aval, "shape", ()) for v in jaxpr.invars)]
    return "" if all(map(core.is_constant_shape, shapes)) else "it has symbolic shapes"


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


# Tracing.


def trace(fun: Callable[..., Any], avals: Sequence[Any], name: str = "lanax") -> ClosedJaxpr:
    """The jaxpr of `fun`, which takes and gives flat lists of arrays, for arguments of the types `avals`."""
    info = core.DebugInfo(name, name, ("",) * len(avals), None)
    wrapped = _linear_util.wrap_init(fun, debug_info=info)
    jaxpr, _, consts = _partial_eval.trace_to_jaxpr_dynamic(wrapped, list(avals))
    return ClosedJaxpr(jaxpr, consts)


def impl_of(primitive: Primitive) -> Callable[..., Any] | None:
    """A primitive's own `impl` where it is Python that JAX can trace; None for JAX's own primitives."""
    impl = primitive.__dict__.get("impl")
    if impl is None or (isinstance(impl, functools.partial) and impl.func is dispatch.apply_primitive):
        return None
    # JAX's own impls compile, run callbacks or look into buffers.
    return None if (getattr(impl, "__module__", None) or "").split(".")[0] in ("jax", "jaxlib") else impl


# JAX's own `vmap`, `lax.map` and `vectorize`, whatever stands in `jax`: `lanax.patch` puts others there.


def vectorize_with(mapper: Callable[..., Any]) -> Callable[..., Any]:
    """`jax.numpy.vectorize` by another `vmap`: a copy of JAX's function, which looks its `vmap` up in `api`."""
    seen = dict(vectorize.__globals__, api=types.SimpleNamespace(vmap=mapper))
    copy = types.FunctionType(vectorize.__code__, seen, vectorize.__name__, vectorize.__defaults__)
    copy.__kwdefaults__ = vectorize.__kwdefaults__
    return copy


# A line of lanax's own is never the user's in what JAX says about where a value was made, and left out of tracebacks
# as JAX's own lines are, below an `api_boundary`.
source_info_util.register_exclusion(os.path.dirname(__file__) + os.sep)
traceback_util.register_exclusion(os.path.dirname(__file__))
api_boundary = traceback_util.api_boundary


# Where an equation comes from. Tracebacks end at the function that was traced, so what a library jits has no frame of
# the user's.

_LIBRARIES = ("site-packages", "dist-packages", os.path.dirname(os.__file__), os.path.dirname(__file__))
#: The benchmark programs are written as users write theirs.
_PROGRAMS = os.path.join(os.path.dirname(__file__), "_suite") + os.sep
source_info_util.register_inclusion(_PROGRAMS)


@functools.cache
def is_users_file(filename: str) -> bool:
    """True for a file of the user's own, rather than one of a library or of lanax."""
    if filename.startswith(_PROGRAMS):
        return True
    return not any(part in filename for part in _LIBRARIES) and source_info_util.is_user_filename(filename)


def has_users_line(info: source_info_util.SourceInfo) -> bool:
    """True where a source info holds a line of the user's own, rather than of a library."""
    frames = info.traceback.raw_frames()[0] if info.traceback is not None else ()
    return any(is_users_file(code.co_filename) for code in frames)


def source_line(eqn: JaxprEqn) -> str:
    """The user's line that made an equation, as `file:line (function)`; empty where unknown."""
    frames = source_info_util.user_frames(eqn.source_info.traceback)
    frame = next((f for f in frames if is_users_file(f.file_name)), None)
    if frame is None:
        return source_info_util.summarize(eqn.source_info)
    return f"{frame.file_name}:{frame.start_line} ({frame.function_name})"


def is_plain_scalar(aval: Any) -> bool:
    """True for the type of a scalar that is a number or a bool (a random key is not)."""
    return isinstance(aval, ShapedArray) and aval.shape == () and not dtypes.issubdtype(aval.dtype, dtypes.extended)


def literal(value: Any, aval: Any) -> Literal:
    """A scalar constant as a literal of an equation."""
    return Literal(np.asarray(value)[()], aval)


def zero(aval: Any) -> Atom:
    """A scalar zero as a literal."""
    return literal(np.zeros((), aval.dtype), aval)


def without_consts(closed: ClosedJaxpr) -> Jaxpr:
    """A closed jaxpr as an open one whose constants, `consts_of`, are its first inputs."""
    jaxpr, _ = open_and_consts(closed)
    invars = [*jaxpr.constvars, *jaxpr.invars]
    return Jaxpr((), invars, jaxpr.outvars, jaxpr.eqns, jaxpr.effects,
                 _debug_info(jaxpr, len(invars), len(jaxpr.outvars)))


def consts_of(closed: ClosedJaxpr) -> list[Any]:
    """The constants of a closed jaxpr."""
    return list(open_and_consts(closed)[1])


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


eval_jaxpr: Any = core.eval_jaxpr


def jaxpr_as_fun(jaxpr: Jaxpr) -> Callable[..., list[Any]]:
    """An open jaxpr without constants as a function of its inputs."""
    return functools.partial(eval_jaxpr, jaxpr, ())


# Products.

#: What `ragged_dot_general` and `scaled_dot` are on the CPU: functions of their operands and parameters.
ragged_dot: Any = _lax._ragged_dot_general_impl
scaled_dot: Any = _scaled_dot_impl

_PRESETS = frozenset({"DEFAULT", "F16_F16_F16", "F32_F32_F32", "F64_F64_F64", "BF16_BF16_F32", "BF16_BF16_F32_X3",
                      "BF16_BF16_F32_X6"})


def dot_dtypes(precision: Any, lhs: Any, rhs: Any, out: Any) -> tuple[np.dtype, np.dtype, np.dtype] | None:
    """The dtypes to which a product's `precision` has its operands converted first, and the dtype of the sum; None for
    one that XLA refuses on the CPU."""
    if isinstance(precision, _lax.DotAlgorithm):
        return None
    if not isinstance(precision, _lax.DotAlgorithmPreset):
        return np.dtype(lhs), np.dtype(rhs), np.dtype(out)
    if precision.name not in _PRESETS:
        return None
    left, right, total = _lax.get_algorithm_compute_types(precision, lhs, rhs, out)
    return np.dtype(left), np.dtype(right), np.dtype(out if total is None else total)


# The trace of a `jax.vmap`.


def batch_trace() -> Any:
    """The trace of the innermost `jax.vmap` if it is the current one, else None."""
    trace = core.trace_ctx.trace
    return trace if isinstance(trace, batching.BatchTrace) else None


def is_batched(x: Any, trace: Any) -> bool:
    """Whether a value is mapped by the `jax.vmap` of this trace."""
    return isinstance(x, batching.BatchTracer) and x._trace is trace


def typeof(x: Any) -> Any:
    """The type of a value, as tracing sees it."""
    return core.shaped_abstractify(x) if not isinstance(x, Tracer) else core.typeof(x)


def is_jax_type(x: Any) -> bool:
    """Whether JAX takes a value as an array."""
    try:
        core.shaped_abstractify(x)
    except TypeError:
        return False
    return True


def jvp_jaxpr(jaxpr: Jaxpr, nonzero: Sequence[bool]) -> tuple[ClosedJaxpr, list[bool]]:
    """The jaxpr (inputs, nonzero tangents of inputs) -> results, then those of their tangents that are not zero; and
    which those are."""
    differentiate: Any = ad.jvp_jaxpr
    closed, moving = differentiate(ClosedJaxpr(jaxpr, []), list(nonzero), instantiate=False)
    return closed, list(moving)


def weak_as(x: Any, aval: Any) -> Any:
    """A value with the dtype and the weak type of `aval`."""
    return _convert_element_type(x, aval.dtype, weak_type=aval.weak_type)


def register_dead_code_rule(primitive: Primitive, rule: Callable[..., Any]) -> None:
    """`rule(wanted results, equation)` gives which operands are used and a new equation, or None for no equation."""
    _partial_eval.dce_rules[primitive] = lambda wanted, *more: rule(wanted, more[-1])  # 0.12 asks about refs between


def register_checks(primitive: Primitive, portable: Callable[..., Any]) -> None:
    """Where `checkify` looks for NaN, division by zero or bad indices, it is to look into `portable`, which gives the
    results of the primitive from the same arguments."""

    def rule(*args: Any, **params: Any) -> tuple[Any, Any]:
        before = args[: 0 if isinstance(args[0], checkify.Error) else 1]  # from 0.12 on there is a context
        error, enabled, *values = args[len(before):]
        if not enabled & checkify.automatic_checks:
            return error, primitive.bind(*values, **params)
        closed = trace(lambda *given: portable(*given, **params), [typeof(x) for x in values])
        return checkify.checkify_jaxpr(*before, closed, enabled, error, *values)

    checkify.error_checks[primitive] = rule


#: What `lax.digamma` gives at 0.
DIGAMMA_OF_ZERO = -float("inf") if jax.__version_info__ >= (0, 11) else float("nan")
#: What stands for no cotangent or tangent.
Zero: Any = getattr(ad, "Zero")  # noqa: B009
NOT_MAPPED = getattr(batching, "not_mapped", None)


def tangent_type(x: Any) -> Any:
    """The type of the tangent of a value."""
    return core.typeof(x).to_tangent_aval()


def unless_exported(fun: Callable[..., Any], portable: Callable[..., Any]) -> Callable[..., Any]:
    """A lowering by `fun`, but by `portable` for `jax.export`, whose programs run in processes that know no kernels."""
    here, anywhere = (mlir.lower_fun(f, multiple_results=True) for f in (fun, portable))

    def rule(ctx: Any, *args: Any, **params: Any) -> Any:
        return (anywhere if ctx.module_context.lowering_parameters.for_export else here)(ctx, *args, **params)

    return rule


def needs_devices(primitive: Primitive) -> None:
    """Have JAX know the devices of a program with this primitive when it is lowered."""
    dispatch.prim_requires_devices_during_lowering.add(primitive)


def is_partitioned(ctx: Any) -> bool:
    """Whether XLA is to split what is being lowered over several devices: not in `shard_map`, where that is done."""
    context = ctx.module_context.axis_context
    return isinstance(context, sharding_impls.ShardingContext) and context.num_devices > 1 and bool(
        context.device_assignment)


def explicit_axes(avals: Sequence[Any], axes: Sequence[int | None]) -> Any:
    """The explicit mesh axes over which the batch axis of these types is split; None where there are none."""
    for aval, axis in zip(avals, axes, strict=True):
        spec = getattr(getattr(aval, "sharding", None), "spec", ())
        if axis is not None and axis < len(spec) and spec[axis] is not None:
            return spec[axis]
    return None


def on_mesh_of(avals: Sequence[Any], aval: Any) -> Any:
    """A type of no mesh as one of the explicit mesh of other types, where they have one; a program that was traced
    without a mesh may be run on one."""
    meshes = (getattr(getattr(a, "sharding", None), "mesh", None) for a in avals)
    mesh = next((m for m in meshes if m is not None and not m.empty and m._any_axis_explicit), None)
    if mesh is None or not isinstance(aval, ShapedArray) or not aval.sharding.mesh.empty:
        return aval
    return aval.update(sharding=NamedSharding(mesh, PartitionSpec(*[None] * aval.ndim)))


def on_no_mesh(jaxpr: Jaxpr) -> Jaxpr:
    """An open jaxpr whose equations, at any depth, are for whatever mesh there is where it runs: not for the one under
    which it was traced."""
    eqns = [_eqn_on_no_mesh(e) for e in jaxpr.eqns]
    if all(map(operator.is_, eqns, jaxpr.eqns)):
        return jaxpr
    replace: Any = getattr(jaxpr, "replace")  # noqa: B009
    return replace(eqns=eqns)


def _eqn_on_no_mesh(eqn: JaxprEqn) -> JaxprEqn:
    params = {name: _parameter_on_no_mesh(value) for name, value in eqn.params.items()}
    if eqn.ctx.cur_abstract_mesh.empty and all(map(operator.is_, params.values(), eqn.params.values())):
        return eqn
    with eqn.ctx.manager, no_mesh():
        return eqn.replace(params=params, ctx=core.JaxprEqnContext())


def _parameter_on_no_mesh(value: Any) -> Any:
    if type(value) is tuple:
        new: Any = tuple(map(_parameter_on_no_mesh, value))
        return value if all(map(operator.is_, new, value)) else new
    if not isinstance(value, (Jaxpr, ClosedJaxpr)):
        return value
    inner, consts = open_and_consts(value)
    bare = on_no_mesh(inner)
    return value if bare is inner else ClosedJaxpr(bare, consts) if isinstance(value, ClosedJaxpr) else bare


def with_automatic_axes(rule: Callable[..., Any]) -> Callable[..., Any]:
    """A lowering rule that sees mesh axes of explicit type as automatic ones; its results keep their shardings."""

    def lower(ctx: Any, *args: Any, **params: Any) -> Any:
        meshes = [a.sharding.mesh for a in (*ctx.avals_in, *ctx.avals_out) if hasattr(a, "sharding")]
        mesh = next((m for m in meshes if not m.empty and m._any_axis_explicit), None)
        if mesh is None:
            return rule(ctx, *args, **params)
        mesh = mesh.update_axis_types({n: t if t == AxisType.Manual else AxisType.Auto
                                       for n, t in zip(mesh.axis_names, mesh.axis_types, strict=True)})
        avals = [a.update(sharding=NamedSharding(mesh, PartitionSpec(*[None] * a.ndim))) for a in ctx.avals_in]
        with use_abstract_mesh(mesh):
            outs = rule(ctx.replace(avals_in=avals), *args, **params)
        return [mlir.lower_with_sharding_in_types(ctx, out[0] if isinstance(out, (list, tuple)) else out, aval)
                for out, aval in zip(outs, ctx.avals_out, strict=True)]

    return lower


def mesh_in_charge() -> str:
    """Why the mesh around what is traced decides where examples run; empty where it does not."""
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.empty and mesh._any_axis_manual:
        return "inside shard_map each device has its share already"
    if not mesh.empty and mesh._any_axis_explicit:
        return "the mesh around the call has axes of explicit type, so the types of its operands say where they lie"
    return ""


def has_explicit_type(x: Any) -> bool:
    """Whether the type of a value says how it lies on a mesh."""
    mesh = getattr(getattr(core.typeof(x), "sharding", None), "mesh", None)
    return mesh is not None and not mesh.empty and mesh._any_axis_explicit


@contextlib.contextmanager
def no_mesh() -> Iterator[None]:
    """A context without the mesh that is around it."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(use_abstract_mesh(jax.sharding.AbstractMesh((), ())))
        if not get_concrete_mesh().empty:
            stack.enter_context(sharding_impls._internal_use_concrete_mesh(empty_concrete_mesh))
        yield


def treat_as_named(kind: type) -> None:
    """Have results of programs with arguments of this kind of `NamedSharding` get one of its mesh."""
    pxla._orig_out_sharding_handlers[kind] = pxla._orig_out_sharding_handlers[NamedSharding]


class OnAll(sharding_impls.GSPMDSharding):
    """The sharding of an array of which each device of a mesh has a copy, as one of no mesh: a program may have arrays
    on another mesh of the same devices. Results of a program that XLA splits get shardings of the mesh."""

    def __init__(self, mesh: Any):
        super().__init__(tuple(mesh.devices.flat), sharding_impls.replicated_hlo_sharding)
        self.mesh = mesh


pxla._orig_out_sharding_handlers[OnAll] = lambda found, aval, like: pxla._orig_out_sharding_handlers[NamedSharding](
    found, aval, NamedSharding(like.mesh, PartitionSpec()))


def uncommitted(x: Any, aval: Any) -> Any:
    """An array of one device as one that may be moved to others; of the dtype and weak type of `aval`."""
    return array.ArrayImpl(x.aval.update(weak_type=aval.weak_type), x.sharding, x._arrays, committed=False)


def unchecked_manual_axes() -> Any:
    """A context in which `shard_map` does not check the types of what is computed inside it: a lowered program has lost
    the equations that only change them."""
    return config._check_vma(False)


def checked_manual_axes() -> Any:
    """The other way round."""
    return config._check_vma(True)


def rule_with(rule: Any, change: Callable[..., Any]) -> Any:
    """A parameter of `custom_jvp_call` that gives the jaxpr of its rule, with `change(rule, *zeros)` in its place."""
    return _linear_util.wrap_init(lambda *zeros: change(rule.call_wrapped, *zeros), debug_info=rule.debug_info)


def wide_enough(avals: Sequence[Any]) -> Any:
    """A context in which 64-bit numbers stay that where some of these types are, whatever the user's setting."""
    wide = any(getattr(getattr(a, "dtype", None), "name", "")[-2:] == "64" for a in avals)
    return jax.enable_x64(True) if wide else contextlib.nullcontext()


def random_gamma_impl(keys: Any, a: Any, *, log_space: bool) -> Any:
    """`random_gamma` in other primitives, one element after another."""
    module = importlib.import_module("jax._src.random" + ".core" * prng.__name__.startswith("jax._src.random."))
    return module._gamma_impl(keys, a, log_space=log_space, use_vmap=False)


def counter_hash(name: str) -> Callable[..., Any]:
    """What the primitive that hashes keys and counters for keys of kind `name` is in others; from 0.12 on."""
    return getattr(importlib.import_module(f"jax._src.random.{name}"), f"_{name}_lowering")


#: Where primitives are that JAX does not import by itself.
_FURTHER_MODULES = ("jax.export", "jax.experimental.checkify", "jax.experimental.sparse", "jax.scipy.linalg",
                    "jax.scipy.special")


def installed_primitives(elsewhere: tuple[str, ...]) -> dict[str, bool]:
    """The names of all primitives of the installed JAX, and whether each stands in a module whose name does not start
    with one of `elsewhere`."""
    for name in _FURTHER_MODULES:
        importlib.import_module(name)
    found: dict[str, bool] = {}
    for module, contents in list(sys.modules.items()):
        if module.split(".")[0] == "jax" and contents is not None:
            for value in list(vars(contents).values()):
                if isinstance(value, Primitive):
                    found[value.name] = found.get(value.name, False) or not module.startswith(elsewhere)
    return found


def sparse_impl(name: str) -> Callable[..., Any]:
    """What a primitive of `jax.experimental.sparse` is in dense arrays; that has been imported by whoever uses it."""
    module = importlib.import_module(f"jax.experimental.sparse.{name.split('_')[0] if '_' in name else 'api'}")
    return getattr(module, f"_{name}_impl")


class JitKey:
    """A value by which JAX keeps what it has traced and compiled apart; None at first."""

    def __init__(self):
        self._context: Any = jax.make_user_context(None)

    def set_global(self, value: Any) -> None:
        """For every thread that has no value of its own."""
        self._context.set_global(value)

    def set_local(self, value: Any) -> None:
        """For this thread."""
        self._context._obj.set_local(value)


#: Different calls of one of our primitives outside of a trace for which what XLA compiled is kept.
_KEPT_CALLS = 256


def apply_primitive(primitive: Primitive) -> Callable[..., Any]:
    """JAX's own way to run a primitive outside of a trace. JAX keeps what it compiled so for its latest 4096 calls, a
    megabyte or more each; this keeps fewer."""
    whole: Any = {"num_shards": 1} if "num_shards" in inspect.signature(util.cache).parameters else {}  # from 0.11 on
    callable_: Any = dispatch.xla_primitive_callable
    compiled = util.cache(max_size=_KEPT_CALLS, **whole)(callable_.__wrapped__)

    def apply(*args: Any, **params: Any) -> Any:
        run = compiled(primitive, **params)
        before = config.disable_jit.swap_local(False)
        try:
            return run(*args)
        finally:
            config.disable_jit.set_local(before)

    return apply


# Several processes.


def backend_is_started() -> bool:
    """Whether JAX has looked for its devices already."""
    return _xla_bridge.backends_are_initialized()


def coordination() -> Any:
    """The client of the service by which processes find each other; None where there is but this process."""
    return _distributed.global_state.client


def process_of() -> tuple[int, int, str]:
    """The number of this process, how many there are, and the address of the service; starts no backend."""
    state = _distributed.global_state
    return state.process_id, state.num_processes, state.coordinator_address or ""


def leave_coordination() -> None:
    """Leave the service without a word: to take leave is to wait for all processes, those that are dead too."""
    state = _distributed.global_state
    for held in (state.preemption_sync_manager, state.client, state.service):
        if held is not None:  # to be destroyed is to take leave
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
    state.preemption_sync_manager = state.client = state.service = None


def cpu_devices_asked() -> int | None:
    """How many devices the user's settings make of the CPU; None where they do not say."""
    flag = re.findall(r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    count = _xla_bridge.num_cpu_devices.value
    return count if count >= 0 else int(flag[-1]) if flag else None
