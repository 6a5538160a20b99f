"""Meshes and shardings: axes of explicit, automatic and manual type, and arrays that may move."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax._src import array, config, core, sharding_impls
from jax._src.core import ShapedArray
from jax._src.interpreters import mlir, pxla
from jax._src.mesh import empty_concrete_mesh, get_concrete_mesh, use_abstract_mesh
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from lanax._jax.classes import ClosedJaxpr, Jaxpr, JaxprEqn
from lanax._jax.jaxprs import open_and_consts


def partitioned_over(ctx: Any) -> tuple[Any, ...]:
    """The devices over which XLA is to split what is being lowered, where there are several; none in `shard_map`, where
    that is done."""
    context = ctx.module_context.axis_context
    several = isinstance(context, sharding_impls.ShardingContext) and context.num_devices > 1
    return (context.device_assignment or ()) if several else ()


def explicit_axes(avals: Sequence[Any], axes: Sequence[int | None]) -> Any:
    """The explicit mesh axes over which the batch axis of these types is split; None where there are none."""
    for aval, axis in zip(avals, axes, strict=True):
        spec = getattr(getattr(aval, "sharding", None), "spec", ())
        if axis is not None and axis < len(spec) and spec[axis] is not None:
            return spec[axis]
    return None


def has_explicit_type(x: Any) -> bool:
    """Whether the type of a value says how it lies on a mesh."""
    mesh = getattr(getattr(core.typeof(x), "sharding", None), "mesh", None)
    return mesh is not None and not mesh.empty and mesh._any_axis_explicit


def mesh_in_charge() -> str:
    """Why the mesh around what is traced decides where examples run; empty where it does not."""
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.empty and mesh._any_axis_manual:
        return "inside shard_map each device has its share already"
    if not mesh.empty and mesh._any_axis_explicit:
        return "the mesh around the call has axes of explicit type, so the types of its operands say where they lie"
    return ""


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


@contextlib.contextmanager
def no_mesh() -> Iterator[None]:
    """A context without the mesh that is around it."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(use_abstract_mesh(jax.sharding.AbstractMesh((), ())))
        if not get_concrete_mesh().empty:
            stack.enter_context(sharding_impls._internal_use_concrete_mesh(empty_concrete_mesh))
        yield


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


def unchecked_manual_axes() -> Any:
    """A context in which `shard_map` does not check the types of what is computed inside it: a lowered program has lost
    the equations that only change them."""
    return config._check_vma(False)


def checked_manual_axes() -> Any:
    """The other way round."""
    return config._check_vma(True)


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


def put_pieces(aval: Any, sharding: Any, pieces: Sequence[Any], devices: Sequence[Any]) -> Any:
    """The array of a type and a sharding whose pieces are given, one for each device, by one call."""
    return pxla.batched_device_put(aval, sharding, pieces, list(devices))
