"""`map`: `jax.lax.map` in a kernel, one example after another in each thread, or a bounded number of them at once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from lanax import _jax
from lanax._api import is_divisible, named_arguments, on_one_device
from lanax._config import resolve
from lanax._devices.shards import Shards, on_parts
from lanax._devices.shares import check_places
from lanax._plan import MAX_LANES, Plan
from lanax._primitive import bind
from lanax._program import Program, code_of
from lanax._reports.progress import with_progress
from lanax._reports.report import is_recording, record, record_plain
from lanax._target import host


@_jax.api_boundary
def map(f: Callable[..., Any], xs: Any, *, batch_size: int | None = None, plan: Plan | None = None,
        progress: bool = False) -> Any:
    """Map a function over the leading axis: a drop-in for `jax.lax.map` that runs one example after another in each
    thread, by one native kernel.

    Args:
      f: a function of one example; takes and gives a pytree of arrays.
      xs: a pytree of arrays, whose first axes are the batch axis.
      batch_size: how many examples may be alive at once, in lanes; None: one in each thread; 0: any number.
      plan: how to run it; what it leaves open is chosen, the route `"serial"` where `batch_size` is None. See `Plan`.
      progress: show a bar on standard error while it runs, chunk by chunk, so that Ctrl-C stops it; under `jax.jit` and
        other transformations there is none.

    Returns:
      What `jax.lax.map` returns. A function of which a part has no kernel is left to `jax.lax.map` whole where
      `batch_size` is None; else kernels and XLA take turns on `batch_size` examples at a time. `lanax.explain` tells.

    Raises:
      What `jax.lax.map` raises, for the same causes; `TypeError` where `plan` is not a `Plan`.
    """
    if plan is not None and not isinstance(plan, Plan):
        raise TypeError(f"`plan` of lanax.map must be a lanax.Plan or None; got {type(plan).__name__}: {plan!r}.")
    if progress and callable(f):
        def batch(xs: Any) -> Any:
            return map(f, xs, batch_size=batch_size, plan=plan)

        name = getattr(f, "__name__", type(f).__name__)
        return with_progress(batch, 0, 0, name, functools.partial(is_divisible, batch))(xs)
    leaves, tree = jax.tree.flatten(xs)
    if any(isinstance(x, Shards) for x in leaves) and callable(f):
        batch = functools.partial(map, f, batch_size=batch_size, plan=plan)
        return on_parts(batch, 0, 0, False, functools.partial(is_divisible, batch), on_one_device, is_recording)(xs)
    size = _axis_size(leaves)
    if size is None or not _is_count(batch_size) or not callable(f):
        return _jax.lax_map(f, xs, batch_size=batch_size)  # it says what is wrong, or takes what lanax does not
    plan = resolve(_plan(plan or Plan(), batch_size))
    if plan.devices not in (None, 1):
        check_places(plan, named_arguments(map, [f, *leaves], jax.tree.structure(((f, xs), {}))))
    name = getattr(f, "__name__", type(f).__name__)
    traced, reason = _trace(f, leaves, tree, size, name)
    if traced is None:
        record_plain(name, size, plan, reason)
        return _jax.lax_map(f, xs, batch_size=batch_size)
    program, consts, out_tree = traced
    return jax.tree.unflatten(out_tree, _run(program, consts, leaves, size, plan))


def _axis_size(leaves: Sequence[Any]) -> int | None:
    """The number of examples; None where there is none, or not the same for all."""
    if not leaves or not all(_jax.is_jax_type(x) and np.ndim(x) for x in leaves):
        return None
    sizes = {np.shape(x)[0] for x in leaves}
    size = sizes.pop()
    return size if type(size) is int and not sizes else None


def _is_count(batch_size: Any) -> bool:
    return batch_size is None or (type(batch_size) is int and batch_size >= 0)


def _plan(plan: Plan, batch_size: int | None) -> Plan:
    """What `batch_size` asks for, where the user's plan leaves it open."""
    if batch_size in (None, 1):
        return plan if plan.route or (plan.lanes or 1) > 1 else plan.replace(route="serial")
    if batch_size == 0:
        return plan
    lanes = plan.lanes
    if plan.route != "serial" and lanes is None and batch_size < MAX_LANES:
        # A step holds no more examples than may be alive.
        lanes = min(1 << (batch_size.bit_length() - 1), host().native_lanes(32))
    return plan.replace(lanes=lanes, chunk=plan.chunk or batch_size)


Traced = tuple[Program, list[Any], Any]


def _trace(f: Callable[..., Any], leaves: Sequence[Any], tree: Any, size: int,
           name: str) -> tuple[Traced | None, str]:
    """The program of one example, the arrays it closes over, and the structure of its result; or None and why."""
    out_tree = None

    def flat(*given: Any) -> list[Any]:
        nonlocal out_tree
        out, out_tree = jax.tree.flatten(f(jax.tree.unflatten(tree, given)))
        return out

    try:
        avals = [_jax.core.mapped_aval(size, 0, _jax.typeof(x)) for x in leaves]
        closed = _jax.without_refs(_jax.trace(flat, avals, name))
    except Exception as error:
        return None, f"it cannot be traced: {type(error).__name__}"
    program = Program(_jax.without_consts(closed), name, code_of(f))
    reason = _why_left(program) or _jax.symbolic(program.jaxpr, size)
    return (None, reason) if reason else ((program, _jax.consts_of(closed), out_tree), "")


def _why_left(program: Program) -> str | None:
    """Why the whole function is left to `jax.lax.map`, or None."""
    if program.jaxpr.effects:
        effects = ", ".join(sorted(str(effect) for effect in program.jaxpr.effects))
        return f"it has side effects ({effects}), whose order jax.lax.map defines"
    if _jax.names_an_axis(program.jaxpr):
        return "it exchanges values along a named axis"
    if _jax.holds(program.jaxpr, "custom_vmap_call"):
        return "it has a rule of custom_vmap, for a `jax.vmap` around the call alone"
    return None


def _run(program: Program, consts: Sequence[Any], leaves: Sequence[Any], size: int, plan: Plan) -> list[Any]:
    args = [*consts, *leaves]
    in_axes = (*[None] * len(consts), *[0] * len(leaves))
    out_axes = (0,) * len(program.jaxpr.outvars)
    record(program, in_axes, out_axes, size, plan)
    return bind(args, program, in_axes, out_axes, size, plan)
