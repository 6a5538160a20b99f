"""Whether the batch of a mapped call is shared out over devices, and why not."""

from __future__ import annotations

from jax.sharding import AxisType

from lanax import _jax
from lanax._devices.shares import Shares, for_each, shares_of
from lanax._pipeline import Axes, Stages, stages
from lanax._plan import Plan
from lanax._program import Program
from lanax._rewrite.unvmap import reaches_output


def shared_out(program: Program, in_axes: Axes, out_axes: Axes, axis_size: int,
               plan: Plan) -> tuple[Shares | None, str]:
    """The shares of a mapped call whose plan has devices; or None, and what happens instead, and why: empty where one
    device was asked for.

    Raises:
      PlanError: this process does not have such devices.
    """
    if plan.devices is None or plan.devices == 1:
        return None, ""
    shares = shares_of(plan, axis_size)
    mesh = _jax.mesh_in_charge() or _types_in_charge(program)
    if mesh:
        return None, f"as the mesh has it: {mesh}"
    reason = _why_whole(program, in_axes, out_axes, axis_size, for_each(plan, 1))
    return (None, f"one runs the whole batch: {reason}") if reason else (shares, "")


def _types_in_charge(program: Program) -> str:
    """Why types of operands decide where examples run; empty where they do not."""
    explicit = any(AxisType.Explicit in v.aval.sharding.mesh.axis_types for v in program.jaxpr.invars
                   if hasattr(v.aval, "sharding"))
    return "operands lie on a mesh with axes of explicit type, which says where" if explicit else ""


def _why_whole(program: Program, in_axes: Axes, out_axes: Axes, axis_size: int, plan: Plan) -> str:
    if axis_size == 0:
        return "there are no examples"
    if all(axis is None for axis in in_axes):
        return "no argument is mapped"
    if sees_whole_batch(stages(program, in_axes, out_axes, plan)):
        return "some equation has to see all examples"
    return ""


def sees_whole_batch(way: Stages) -> bool:
    """Whether the results for a batch may not be those of its parts: an equation has to see all examples."""
    return _jax.holds(way.program.jaxpr, "custom_vmap_call") or reaches_output(way.expanded)
