"""`vmap`, `map`, `explain`: arguments and pytrees in and out. Argument checks are `jax.vmap`'s own."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import types
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from lanax import _jax
from lanax._config import overriding, resolve
from lanax._devices.shards import on_parts
from lanax._devices.shares import check_places
from lanax._devices.spread import sees_whole_batch
from lanax._devices.varying import inside_an_example
from lanax._devices.varying import traced as traced_for_one
from lanax._errors import LanaxError
from lanax._example import run_example
from lanax._pipeline import STAGE_NAMES
from lanax._plan import Plan
from lanax._primitive import finds_bad_numbers
from lanax._program import Program, code_of, has_rules
from lanax._reports.progress import with_progress
from lanax._reports.report import (
    Call,
    Report,
    is_recording,
    record_plain,
    recording,
    report_of,
    text_of,
    users_line,
    warn_plain,
)

F = TypeVar("F", bound=Callable[..., Any])


@_jax.api_boundary
def vmap(fun: F, in_axes: Any = 0, out_axes: Any = 0, axis_name: Hashable | None = None,
         axis_size: int | None = None, spmd_axis_name: Any = None, *, plan: Plan | None = None,
         progress: bool = False) -> F:
    """Map a function of one example over a batch: a drop-in for `jax.vmap` that compiles the whole per-example program.

    Args:
      fun: a function of one example; takes and gives pytrees of arrays.
      in_axes, out_axes, axis_name, axis_size, spmd_axis_name: as for `jax.vmap`.
      plan: how to run it; what it leaves open is taken from `use_plan` and `config`, or chosen. See `Plan`.
      progress: show a bar on standard error while it runs, chunk by chunk, so that Ctrl-C stops it; under `jax.jit` and
        other transformations there is none.

    Returns:
      The function of a whole batch. Its method `lower(*args, **kwargs)` gives a `Lowered`, whose
      `as_text(stage)` shows the stages of the compilation.

    Raises:
      What `jax.vmap` raises, for the same causes; `TypeError` where `plan` is not a `Plan`.
    """
    if plan is not None and not isinstance(plan, Plan):
        raise TypeError(f"`plan` of lanax.vmap must be a lanax.Plan or None; got {type(plan).__name__}: {plan!r}.")
    example = _Example(fun, out_axes, plan or Plan(), plain=spmd_axis_name is not None)
    wrapped = functools.update_wrapper(functools.partial(example), fun, updated=()) if callable(fun) else fun
    mapped = _jax.vmap(wrapped, in_axes, out_axes, axis_name, axis_size, spmd_axis_name)
    if progress and axis_name is None and spmd_axis_name is None and axis_size is None:
        mapped = with_progress(mapped, in_axes, out_axes, example.name, functools.partial(is_divisible, mapped))
    if callable(fun):
        mapped = on_parts(mapped, in_axes, out_axes, axis_name is not None, functools.partial(is_divisible, mapped),
                          on_one_device, is_recording)
    return Mapped(mapped)  # type: ignore[return-value]


def on_one_device() -> contextlib.AbstractContextManager[Any]:
    """A context in which mapped functions run where their arguments lie, whatever their plans say of devices."""
    return overriding(Plan(devices=1))


class Mapped:
    """A function of a whole batch, made by `lanax.vmap`; works as the function that `jax.vmap` gives."""

    def __init__(self, fun: Callable[..., Any]):
        self._fun = fun
        functools.update_wrapper(self, fun)

    @_jax.api_boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._fun(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Binds as a method, as a function does."""
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<lanax.vmap of {getattr(self, '__name__', self._fun)}>"

    # A method and not an attribute: `functools.wraps` would copy an attribute onto what wraps this, `jax.jit` included.
    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """The stages of the compilation for these arguments (arrays or `jax.ShapeDtypeStruct`); nothing runs."""
        return Lowered(_record(self._fun, args, kwargs))


class _Example:
    """The user's function as `jax.vmap` calls it: traced for one example and bound as one primitive."""

    def __init__(self, fun: Callable[..., Any], out_axes: Any, plan: Plan, plain: bool):
        self.fun = fun
        self.out_axes = out_axes
        self.plan = plan
        self.plain = plain
        self.name = getattr(fun, "__name__", type(fun).__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        trace = _jax.batch_trace()
        mapped = [_jax.is_batched(x, trace) for x in leaves]
        if trace is None or not any(mapped):
            return self.fun(*args, **kwargs)
        plan = resolve(self.plan)
        if plan.devices not in (None, 1):
            check_places(plan, named_arguments(self.fun, [getattr(x, "val", x) for x in leaves], tree))
        found, reason = self._traced(leaves, tree, mapped, trace.axis_data.size)
        if found is None:  # or JAX raises an error of the function again, in its own words and at the user's line
            bound = " (so `chunk` and `memory` do not hold)" if plan.chunk or plan.memory else ""
            record_plain(self.name, trace.axis_data.size, plan, reason + bound, users_line(self.fun))
            outs = self.fun(*args, **kwargs)
            if plan.route != "xla" and (reason == _REFS or reason.startswith(_UNTRACED)):
                warn_plain(self.name, code_of(self.fun), reason)
            return outs
        program, operands, out_tree = found
        outs, failure = [], None
        try:
            outs = run_example(operands, program, self._result_axes(program, out_tree), trace.axis_data.size, plan)
        except Exception as error:
            if _is_of_running(error) or any(map(_jax.has_lasting_effects, program.jaxpr.eqns)):
                raise
            failure = error
        if failure is not None:  # what JAX has against an equation it says at the user's line
            self.fun(*args, **kwargs)
            raise failure
        # What is handed through unmapped stays the object that was given, a Python number too.
        given = {v: x for v, x in zip(program.jaxpr.invars, operands, strict=True) if not _jax.is_batched(x, trace)}
        outs = [out if isinstance(v, _jax.Literal) else given.get(v, out)
                for v, out in zip(program.jaxpr.outvars, outs, strict=True)]
        return jax.tree.unflatten(out_tree, outs)

    def _traced(self, leaves: Sequence[Any], tree: Any, mapped: Sequence[bool],
                axis_size: Any) -> tuple[tuple[Program, list[Any], Any] | None, str]:
        """The program of one example, its operands, and the structure of its result; or None and why not."""
        if self.plain:
            return None, "a name for SPMD is given, which jax.vmap knows how to use"
        if finds_bad_numbers() and _jax.runs_at_once(_jax.batch_trace()):
            return None, "NaN or infinity is looked for (jax_debug_nans, jax_debug_infs), in each operation"
        try:
            found = self._program(leaves, tree, mapped)
            _try_batching(*found[:2])
        except Exception as error:  # perhaps it looks at the value of an unmapped argument, as it may under `jax.vmap`
            return None, f"{_UNTRACED}: {type(error).__name__}"
        refs = _REFS if _jax.has_refs(found[0].jaxpr) else None
        reason = refs or _jax.symbolic(found[0].jaxpr, axis_size)
        return (None, reason) if reason else (found, "")

    def _program(self, leaves: Sequence[Any], tree: Any, mapped: Sequence[bool]) -> tuple[Program, list[Any], Any]:
        """The program of one example, its operands, and the structure of its result."""
        ways: list[list[bool]] = []
        for kind in (object, jax.Array, _jax.Tracer):  # from all unmapped arrays to those that nobody could look at
            way = [m or (_is_array(x) and isinstance(x, kind)) for m, x in zip(mapped, leaves, strict=True)]
            ways += [way] if way not in ways else []
        for traced in ways[:-1]:
            with contextlib.suppress(jax.errors.JAXTypeError):  # it looks at a value
                return self._traced_way(leaves, tree, traced)
        return self._traced_way(leaves, tree, ways[-1])

    def _traced_way(self, leaves: Sequence[Any], tree: Any,
                    traced: Sequence[bool]) -> tuple[Program, list[Any], Any]:
        program, consts, out_tree = self._trace(leaves, tree, traced)
        return program, [*consts, *(x for x, t in zip(leaves, traced, strict=True) if t)], out_tree

    def _trace(self, leaves: Sequence[Any], tree: Any, traced: Sequence[bool]) -> tuple[Program, list[Any], Any]:
        """The program of one example, the arrays it closes over (its first inputs), and the structure of its result."""
        out_tree = None

        def flat(*given: Any) -> list[Any]:
            nonlocal out_tree
            rest = iter(given)
            args, kwargs = jax.tree.unflatten(tree, [next(rest) if t else x
                                                     for t, x in zip(traced, leaves, strict=True)])
            out, out_tree = jax.tree.flatten(self.fun(*args, **kwargs))
            return out

        avals = [_jax.typeof(x) for x, t in zip(leaves, traced, strict=True) if t]
        with inside_an_example():
            closed = _jax.without_refs(traced_for_one(flat, avals, self.name))
        jaxpr = _jax.without_consts(closed)
        trace = _jax.batch_trace()
        axis_name = _jax.name_of_axis(trace.axis_data) if has_rules(jaxpr) else None
        return Program(jaxpr, self.name, code_of(self.fun), axis_name), _jax.consts_of(closed), out_tree

    def _result_axes(self, program: Program, out_tree: Any) -> tuple[int, ...]:
        """Where each result is to have the batch axis, so that a kernel can write it there."""
        avals = [v.aval for v in program.jaxpr.outvars]
        try:
            axes = _jax.flatten_axes("vmap out_axes", out_tree, self.out_axes)
        except ValueError:
            return (0,) * len(avals)  # jax.vmap will raise it, with its own words
        return tuple(a % (len(v.shape) + 1) if isinstance(a, int) and -len(v.shape) - 1 <= a <= len(v.shape) else 0
                     for a, v in zip(axes, avals, strict=True))


def _may_be_refused(eqn: Any) -> bool:
    """Whether an equation has a rule for batching that a user writes, or is a callback for which none is chosen."""
    name = eqn.primitive.name
    return name == "custom_vmap_call" or (name == "pure_callback" and eqn.params.get("vmap_method") is None)


def _try_batching(program: Program, operands: Sequence[Any]) -> None:
    """Raise what `jax.vmap` raises of rules for batching that a user writes or chooses; nothing runs."""
    if not _jax.holds_any(program.jaxpr, _may_be_refused):
        return
    trace = _jax.batch_trace()
    size, name = trace.axis_data.size, _jax.name_of_axis(trace.axis_data)
    axes = [0 if _jax.is_batched(x, trace) else None for x in operands]
    fun = _jax.vmap(_jax.jaxpr_as_fun(program.jaxpr), in_axes=axes, axis_name=name, axis_size=size)
    avals = [_jax.core.unmapped_aval(size, a, v.aval) for a, v in zip(axes, program.jaxpr.invars, strict=True)]
    with recording():  # what a rule maps by a patched `jax.vmap` is no call of the user's
        _jax.trace(fun, avals)


def _is_of_running(error: Exception) -> bool:
    """Whether an error came up while something ran, rather than while it was traced, or is lanax's own."""
    return isinstance(error, (LanaxError, Warning, ArithmeticError, RuntimeError)) and not isinstance(
        error, NotImplementedError)


def named_arguments(fun: Any, leaves: Sequence[Any], tree: Any) -> list[tuple[str, Any]]:
    """The leaves of a function's arguments, each with the name of its parameter and its path in it."""
    try:
        parameters = list(inspect.signature(fun).parameters)
    except (TypeError, ValueError):
        parameters = []
    paths, _ = jax.tree_util.tree_flatten_with_path(jax.tree.unflatten(tree, [0] * len(leaves)))

    def name(kind: Any, first: Any, *rest: Any) -> str:
        known = first.key if kind.idx else parameters[first.idx] if first.idx < len(parameters) else first.idx
        return f"argument `{known}{jax.tree_util.keystr(rest)}`"

    return [(name(*path), x) for (path, _), x in zip(paths, leaves, strict=True)]


def _is_array(x: Any) -> bool:
    """Whether an unmapped argument is given to the program as an operand: arrays and floats; Python ints, bools,
    strings and the like are static."""
    return isinstance(x, (jax.Array, np.ndarray, np.generic, float, complex)) and _jax.is_jax_type(x)


_UNTRACED = "it cannot be traced"
_REFS = ("it uses mutable arrays that come from outside, or some in loops or calls together with functions that have "
         "rules for their derivatives")


class Lowered:
    """A mapped call on its way to machine code; see `as_text`."""

    def __init__(self, calls: Sequence[Call]):
        self._calls = list(calls)

    def as_text(self, stage: str = "plan") -> str:
        """One stage as text: `jaxpr`, `uniformity`, `plan`, `llvm`, `optimised` or `asm`."""
        if stage not in STAGE_NAMES:
            raise ValueError(f"`stage` must be one of {', '.join(STAGE_NAMES)}; got {stage!r}.")
        return "\n".join(text_of(call, stage) for call in self._calls)


_anew_in_jit_key = _jax.JitKey()
_times_anew = itertools.count(1)


@contextlib.contextmanager
def _traced_anew() -> Iterator[None]:
    """While it lasts, `jax.jit` traces what it is given, whatever it has traced before."""
    _anew_in_jit_key.set_local(next(_times_anew))
    try:
        yield
    finally:
        _anew_in_jit_key.set_local(None)


def _record(mapped: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> list[Call]:
    """The mapped calls that `mapped(*args, **kwargs)` makes; nothing runs."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    # NumPy's arrays and Python's numbers stay what they are: the function may look at them.
    abstract = [isinstance(x, (jax.Array, jax.ShapeDtypeStruct)) for x in leaves]

    def call(*given: Any) -> Any:
        rest = iter(given)
        new_args, new_kwargs = jax.tree.unflatten(tree, [next(rest) if a else x
                                                         for a, x in zip(abstract, leaves, strict=True)])
        return mapped(*new_args, **new_kwargs)

    def traced() -> list[Call]:
        with recording() as calls:
            try:
                jax.eval_shape(call, *(x for x, a in zip(leaves, abstract, strict=True) if a))
            except jax.errors.JAXTypeError:
                if not calls:  # else it looks at the value of an argument, which has been recorded
                    raise
        return calls

    calls = traced()
    if not calls:  # `jax.jit` knows what it has traced before, and does not trace it again
        with _traced_anew():
            calls = traced()
    if not calls:
        raise LanaxError("no call of lanax.vmap or lanax.map was found: pass a function made by lanax.vmap (or one "
                         "that makes such a call), and arguments of which at least one is mapped.")
    return calls


def is_divisible(mapped: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the results for a batch are those of its parts: no equation has to see all examples."""
    call = _record(mapped, args, kwargs)[-1]
    return call.program is not None and not sees_whole_batch(call.stages)


def explain(mapped: Callable[..., Any], *args: Any, plan: Plan | None = None, **kwargs: Any) -> Report:
    """How a mapped function runs for these arguments: routes, lanes, threads, tail, what one example costs by estimate,
    which limit of the machine binds, loops and branches, and what is not in lanes, why, and what would mend it.

    Args:
      mapped: a function made by `lanax.vmap`, or one that calls such a function; of several mapped calls, the report
        is of the outermost first one.
      *args, **kwargs: as for the function itself; `jax.ShapeDtypeStruct` may stand for arrays. Nothing runs.
      plan: how it would run by this plan; what it leaves open is as it is without it.

    Raises:
      LanaxError: no call of `lanax.vmap` was made.
    """
    with overriding(plan):
        return report_of(_record(mapped, args, kwargs)[-1])
