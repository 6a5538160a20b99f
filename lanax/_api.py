"""`vmap`, `map`, `explain`: arguments and pytrees in and out. Argument checks are `jax.vmap`'s own."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from lanax import _jax
from lanax._batching import example_p
from lanax._errors import LanaxError
from lanax._pipeline import STAGE_NAMES
from lanax._plan import Plan
from lanax._program import Program
from lanax._report import Call, Report, record_plain, recording, report_of, text_of

F = TypeVar("F", bound=Callable[..., Any])


def vmap(fun: F, in_axes: Any = 0, out_axes: Any = 0, axis_name: Hashable | None = None,
         axis_size: int | None = None, spmd_axis_name: Any = None, *, plan: Plan | None = None) -> F:
    """Map a function of one example over a batch: a drop-in for `jax.vmap` that compiles the whole per-example program.

    Args:
      fun: a function of one example; takes and gives pytrees of arrays.
      in_axes, out_axes, axis_name, axis_size, spmd_axis_name: as for `jax.vmap`.
      plan: how to run it; what it leaves open is chosen. See `Plan`.

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
    mapped = jax.vmap(wrapped, in_axes, out_axes, axis_name, axis_size, spmd_axis_name)

    return Mapped(mapped)  # type: ignore[return-value]


class Mapped:
    """A function of a whole batch, made by `lanax.vmap`; works as the function that `jax.vmap` gives."""

    def __init__(self, fun: Callable[..., Any]):
        self._fun = fun
        functools.update_wrapper(self, fun)

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
        if self.plain or trace is None or not any(mapped):
            return self.fun(*args, **kwargs)
        try:
            program, operands, out_tree = self._program(leaves, tree, mapped)
        except Exception as error:
            # Either the function looks at the value of an unmapped argument, as it may under `jax.vmap`, or JAX raises
            # the error again, in its own words and at the user's line.
            record_plain(self.name, trace.axis_data.size, self.plan, f"it cannot be traced: {type(error).__name__}")
            return self.fun(*args, **kwargs)
        reason = _why_plain(program)
        if reason is not None:
            record_plain(self.name, trace.axis_data.size, self.plan, reason)
            return self.fun(*args, **kwargs)
        outs = example_p.bind(*operands, program=program, out_axes=self._result_axes(program, out_tree),
                              plan=self.plan)
        # What is handed through unmapped stays the object that was given, a Python number too.
        given = {v: x for v, x in zip(program.jaxpr.invars, operands, strict=True) if not _jax.is_batched(x, trace)}
        outs = [out if isinstance(v, _jax.Literal) else given.get(v, out)
                for v, out in zip(program.jaxpr.outvars, outs, strict=True)]
        return jax.tree.unflatten(out_tree, outs)

    def _program(self, leaves: Sequence[Any], tree: Any, mapped: Sequence[bool]) -> tuple[Program, list[Any], Any]:
        """The program of one example, its operands, and the structure of its result."""
        traced = [m or _is_array(x) for m, x in zip(mapped, leaves, strict=True)]
        try:
            program, consts, out_tree = self._trace(leaves, tree, traced)
        except jax.errors.JAXTypeError:
            # It looks at a value: the unmapped ones that are no arrays of JAX are there to be looked at.
            fewer = [m or (t and isinstance(x, jax.Array)) for m, t, x in zip(mapped, traced, leaves, strict=True)]
            if fewer == traced:
                raise
            traced = fewer
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
        closed = _jax.trace(flat, avals, self.name)
        return Program(_jax.without_consts(closed), self.name), _jax.consts_of(closed), out_tree

    def _result_axes(self, program: Program, out_tree: Any) -> tuple[int, ...]:
        """Where each result is to have the batch axis, so that a kernel can write it there."""
        avals = [v.aval for v in program.jaxpr.outvars]
        try:
            axes = _jax.flatten_axes("vmap out_axes", out_tree, self.out_axes)
        except ValueError:
            return (0,) * len(avals)  # jax.vmap will raise it, with its own words
        return tuple(a % (len(v.shape) + 1) if isinstance(a, int) and -len(v.shape) - 1 <= a <= len(v.shape) else 0
                     for a, v in zip(axes, avals, strict=True))


def _is_array(x: Any) -> bool:
    """Whether an unmapped argument is given to the program as an operand: arrays and floats; Python ints, bools,
    strings and the like are static."""
    return isinstance(x, (jax.Array, np.ndarray, np.generic, float, complex)) and _jax.is_jax_type(x)


def _why_plain(program: Program) -> str | None:
    """Why the whole function is left to `jax.vmap`, or None."""
    if program.jaxpr.effects:
        return f"it has side effects ({', '.join(map(str, program.jaxpr.effects))}), whose order jax.vmap defines"
    if _jax.names_an_axis(program.jaxpr):
        return "it exchanges values between the examples of a named axis"
    return None


class Lowered:
    """A mapped call on its way to machine code; see `as_text`."""

    def __init__(self, calls: Sequence[Call]):
        self._calls = list(calls)

    def as_text(self, stage: str = "plan") -> str:
        """One stage as text: `jaxpr`, `uniformity`, `plan`, `llvm`, `optimised` or `asm`."""
        if stage not in STAGE_NAMES:
            raise ValueError(f"`stage` must be one of {', '.join(STAGE_NAMES)}; got {stage!r}.")
        return "\n".join(text_of(call, stage) for call in self._calls)


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

    with recording() as calls:
        try:
            jax.eval_shape(call, *(x for x, a in zip(leaves, abstract, strict=True) if a))
        except jax.errors.JAXTypeError:
            if not calls:  # else it looks at the value of an argument, which has been recorded
                raise
    if not calls:
        raise LanaxError("no call of lanax.vmap was found: pass a function made by lanax.vmap (or one that calls such "
                         "a function), and arguments of which at least one is mapped.")
    return calls


def explain(mapped: Callable[..., Any], *args: Any, **kwargs: Any) -> Report:
    """How a mapped function runs for these arguments: routes, lanes, threads, tail, and what is not in lanes and why.

    Args:
      mapped: a function made by `lanax.vmap`, or one that calls such a function; of several mapped calls, the report
        is of the outermost first one.
      *args, **kwargs: as for the function itself; `jax.ShapeDtypeStruct` may stand for arrays. Nothing runs.

    Raises:
      LanaxError: no call of `lanax.vmap` was made.
    """
    return report_of(_record(mapped, args, kwargs)[-1])
