"""A kernel over operands that lie on several devices: each device runs the kernel on the shard that it has."""

from __future__ import annotations

import contextvars
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lanax import _jax
from lanax._devices.shares import run_alike, run_share, share_sizes
from lanax._plan import Device

#: The devices that operands of what is being lowered may lie on, where XLA's partitioner is to split it over several.
_several: contextvars.ContextVar[tuple[Device, ...]] = contextvars.ContextVar("lanax_several_devices", default=())

#: The factor of a sharding rule that stands for the batch axis.
_BATCH = "batch"


def split_over_devices(rule: Callable[..., Any]) -> Callable[..., Any]:
    """A lowering rule that may call `on_shards` and `alike`; mesh axes of explicit type are left to it as if they were
    automatic, and its results get the shardings of their types."""
    rule = _jax.with_automatic_axes(rule)

    def lower(ctx: Any, *args: Any, **params: Any) -> Any:
        token = _several.set(_jax.partitioned_over(ctx))
        try:
            return rule(ctx, *args, **params)
        finally:
            _several.reset(token)

    return lower


def on_shards(fun: Callable[..., Sequence[Any]], in_axes: Sequence[int | None], args: Sequence[Any],
              out_axes: Sequence[int | None], out_ranks: Sequence[int]) -> Sequence[Any]:
    """`fun(*args)`, on each device for the shard that it has, where there are several.

    Args:
      fun: computes a batch of any size.
      in_axes, out_axes: where each operand and result has the batch axis; None: an operand is the same for all, and
        a result is the sum over the batch.
      args: the operands.
      out_ranks: how many axes each result has, with the batch axis.
    """
    if not _several.get():
        return fun(*args)
    return _per_shard(fun, in_axes, [x.ndim for x in args], out_axes, out_ranks)(*args)


def alike(fun: Callable[..., Any], *args: Any) -> Any:
    """`fun(*args)`, by every device alike where there are several: one that raised alone would leave others waiting."""
    devices = _several.get()
    return run_alike(fun, devices, args) if devices else fun(*args)


def _per_shard(fun: Callable[..., Sequence[Any]], in_axes: Sequence[int | None], in_ranks: Sequence[int],
              out_axes: Sequence[int | None], out_ranks: Sequence[int]) -> Callable[..., Sequence[Any]]:
    """`fun` as XLA's partitioner is to see it: split along the batch axis, and along no other.

    To XLA a custom call has no parts: it would gather sharded operands on every device and run the whole batch there.
    """
    names = (f"d{i}" for i in itertools.count())
    operands = [_factors(axis, rank, names) for axis, rank in zip(in_axes, in_ranks, strict=True)]
    results = [_factors(axis, rank, names) for axis, rank in zip(out_axes, out_ranks, strict=True)]
    whole = tuple(dict.fromkeys(f for factors in (*operands, *results) for f in factors if f != _BATCH))
    rule = f"{', '.join(map(' '.join, operands))} -> {', '.join(map(' '.join, results))}"

    def partition(mesh: Mesh, args: Sequence[Any], outs: Sequence[Any]) -> tuple[Any, ...]:
        over = next((_over(x, axis) for x, axis in zip((*args, *outs), (*in_axes, *out_axes), strict=True)
                     if axis is not None and _over(x, axis) is not None), None)
        shard = fun if over is None else _short(fun, mesh, args, over, in_axes, out_axes)
        return (mesh, _totals(shard, out_axes, over), [_only(mesh, axis, over) for axis in out_axes],
                tuple(_only(mesh, axis, over) for axis in in_axes))

    split = custom_partitioning(lambda *args: list(fun(*args)))
    split.def_partition(partition=partition, sharding_rule=rule, need_replication_factors=whole,
                        decode_shardings=True)
    return split


def _short(fun: Callable[..., Sequence[Any]], mesh: Mesh, args: Sequence[Any], over: Any,
           in_axes: Sequence[int | None], out_axes: Sequence[int | None]) -> Callable[..., Sequence[Any]]:
    """`fun` on shards; where they are not of one size, XLA pads the last ones, which is none of its business."""
    count = math.prod(mesh.shape[name] for name in (over if isinstance(over, tuple) else (over,)))
    size = next(x.shape[axis] for x, axis in zip(args, in_axes, strict=True) if axis is not None)
    if size % count == 0:
        return fun
    return lambda *shards: run_share(lambda _, *own: fun(*own), share_sizes(size, count), over, in_axes, out_axes,
                                     shards)


def _totals(fun: Callable[..., Sequence[Any]], out_axes: Sequence[int | None], over: Any) -> Callable[..., Any]:
    """`fun` of a shard, with the sums of its shards added up over the axes of the mesh that the batch is split over."""

    def run(*args: Any) -> list[Any]:
        with _jax.no_mesh():  # a device has no mesh around it
            return [lax.psum(x, over) if axis is None and over is not None else x
                    for x, axis in zip(fun(*args), out_axes, strict=True)]

    return run


def _over(x: Any, axis: int) -> Any:
    """The axes of the mesh over which the batch axis of `x` is split; None where it is not."""
    spec = getattr(x.sharding, "spec", ())  # without a mesh to speak of, everything is gathered
    return spec[axis] if axis < len(spec) else None


def _only(mesh: Mesh, axis: int | None, over: Any) -> NamedSharding:
    """Split along the batch axis, and along no other."""
    return NamedSharding(mesh, PartitionSpec(*[None] * axis, over) if axis is not None else PartitionSpec())


def _factors(axis: int | None, rank: int, names: Iterator[str]) -> list[str]:
    return [_BATCH if i == axis else next(names) for i in range(rank)]
