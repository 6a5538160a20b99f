"""JAX's less public modules: the only file that imports from them, and where JAX's versions differ, one face for all.

Knows nothing of batches, kernels or plans.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jax._src import config, core, dispatch, dtypes, source_info_util
from jax._src import linear_util as _linear_util
from jax._src.api_util import flatten_axes
from jax._src.core import Primitive, ShapedArray, Tracer, new_jaxpr_eqn
from jax._src.interpreters import ad, batching, mlir
from jax._src.interpreters import partial_eval as _partial_eval

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
    "batching",
    "core",
    "dtypes",
    "eval_jaxpr",
    "flatten_axes",
    "has_lasting_effects",
    "has_users_line",
    "impl_of",
    "is_plain_scalar",
    "literal",
    "make_closed",
    "make_open",
    "mlir",
    "names_an_axis",
    "new_jaxpr_eqn",
    "open_and_consts",
    "prng",
    "reads",
    "scan_counts",
    "scan_params",
    "source_info_util",
    "source_line",
    "trace",
    "unchecked_manual_axes",
    "with_variables",
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
    if not core.get_axis_env().axis_sizes:
        return False

    def found(inner: Any) -> bool:
        return any("axis_name" in e.params or any(map(found, core.jaxprs_in_params(e.params))) for e in inner.eqns)

    return found(jaxpr)


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


# A line of lanax's own is never the user's in what JAX says about where a value was made.
source_info_util.register_exclusion(os.path.dirname(__file__) + os.sep)


# Where an equation comes from. Tracebacks end at the function that was traced, so what a library jits has no frame of
# the user's.

_LIBRARIES = ("site-packages", "dist-packages", os.path.dirname(os.__file__), os.path.dirname(__file__))


@functools.cache
def _is_users(filename: str) -> bool:
    return not any(part in filename for part in _LIBRARIES) and source_info_util.is_user_filename(filename)


def has_users_line(info: source_info_util.SourceInfo) -> bool:
    """True where a source info holds a line of the user's own, rather than of a library."""
    return info.traceback is not None and any(_is_users(code.co_filename) for code in info.traceback.raw_frames()[0])


def source_line(eqn: JaxprEqn) -> str:
    """The user's line that made an equation, as `file:line (function)`; empty where unknown."""
    frames = source_info_util.user_frames(eqn.source_info.traceback)
    frame = next((f for f in frames if _is_users(f.file_name)), None)
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


#: What stands for no cotangent or tangent.
Zero: Any = getattr(ad, "Zero")  # noqa: B009
NOT_MAPPED = getattr(batching, "not_mapped", None)


def tangent_type(x: Any) -> Any:
    """The type of the tangent of a value."""
    return core.typeof(x).to_tangent_aval()


def unchecked_manual_axes() -> Any:
    """A context in which `shard_map` does not check the types of what is computed inside it: a lowered program has lost
    the equations that only change them."""
    return config._check_vma(False)


apply_primitive = functools.partial(functools.partial, dispatch.apply_primitive)
