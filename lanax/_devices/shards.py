"""Parts of a batch on devices of the user's choice: `device_put_sharded`, and `Shards` for parts that differ in length.
Knows no plan and no kernel."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lanax import _jax
from lanax._plan import Device, check_devices, device_name


class Shards:
    """One batch in parts, each on a device of its own. Parts may differ in length, and be empty.

    `lanax.vmap` and `lanax.map` take it in the place of an array whose batch axis is the first: each part runs on its
    device, all at the same time, and the results are `Shards` again. It is no array for other functions of JAX, and
    does not go into `jax.jit` (what is mapped is compiled anyway); `join` makes an array of it, and so does NumPy.

    Args:
      parts: arrays of one dtype, which differ in length along axis 0 at most.
      devices: as many JAX devices; part `i` goes to device `i`.

    Attributes:
      parts: the arrays where they lie.
      devices: where.
      lengths: examples of each part.
      shape, ndim, dtype: of the whole batch.

    Raises:
      ValueError: the parts are not of one batch; or there are not as many devices.
    """

    def __init__(self, parts: Sequence[Any], devices: Sequence[Device]):
        self.devices = _checked_devices("lanax.Shards", parts, devices)
        self.parts = tuple(_put(parts, self.devices))
        first = self.parts[0]
        if any(x.ndim == 0 or x.shape[1:] != first.shape[1:] or x.dtype != first.dtype for x in self.parts):
            raise ValueError("lanax.Shards takes parts of one batch: arrays of one dtype whose shapes differ along "
                             f"axis 0 at most; got {', '.join(map(_described, self.parts))}.")

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(x.shape[0] for x in self.parts)

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(self.lengths), *self.parts[0].shape[1:])

    @property
    def ndim(self) -> int:
        return self.parts[0].ndim

    @property
    def dtype(self) -> Any:
        return self.parts[0].dtype

    def __len__(self) -> int:
        return self.shape[0]

    def join(self, device: Device | None = None) -> jax.Array:
        """The whole batch as one array, on one device; by default the first one."""
        return jnp.concatenate([jax.device_put(x, device or self.devices[0]) for x in self.parts])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.concatenate([np.asarray(x, dtype) for x in self.parts])

    def __repr__(self) -> str:
        where = ", ".join(f"{n} on {device_name(d)}" for n, d in zip(self.lengths, self.devices, strict=True))
        return f"Shards({self.dtype}{list(self.shape)}: {where})"


def device_put_sharded(shards: Sequence[Any], devices: Sequence[Device]) -> Any:
    """Put shard `i` on device `i`: `jax.device_put_sharded`, which JAX has removed, for shards of any lengths.

    Shards of one shape are stacked along a new leading axis, as JAX did it: `lanax.vmap(lanax.vmap(f))` of the result
    maps over shards and over the examples of each. Shards that differ in length cannot be stacked. They are parts of
    one batch, `lanax.Shards`, and `lanax.vmap(f)` maps over its examples. Where lengths may be equal by chance, make
    `lanax.Shards(parts, devices)`, which is one batch always.

    Args:
      shards: pytrees of arrays, all of one structure.
      devices: as many JAX devices.

    Returns:
      A pytree of that structure, of arrays with as many rows as there are shards, or of `Shards`.

    Raises:
      ValueError: the shards do not go together, or there are not as many devices.
    """
    found = _checked_devices("lanax.device_put_sharded", shards, devices)
    trees = [jax.tree.flatten(shard) for shard in shards]
    other = next((i for i, (_, tree) in enumerate(trees) if tree != trees[0][1]), None)
    if other is not None:
        raise ValueError(f"lanax.device_put_sharded takes shards of one structure; shard 0 is {trees[0][1]}, shard "
                         f"{other} is {trees[other][1]}.")
    leaves = zip(*(leaves for leaves, _ in trees), strict=True)
    return jax.tree.unflatten(trees[0][1], [_placed(parts, found) for parts in leaves])


def _placed(parts: Sequence[Any], devices: tuple[Device, ...]) -> Any:
    arrays = _put(parts, devices)
    if any(x.shape != arrays[0].shape for x in arrays):
        return Shards(arrays, devices)
    if any(x.dtype != arrays[0].dtype for x in arrays):
        raise ValueError("lanax.device_put_sharded takes shards of one dtype; got "
                         f"{', '.join(map(_described, arrays))}.")
    rows = [x[None] for x in arrays]
    across = NamedSharding(Mesh(np.array(devices, object), ("batch",)), PartitionSpec("batch"))
    return jax.make_array_from_single_device_arrays((len(rows), *arrays[0].shape), across, rows)


def _put(parts: Sequence[Any], devices: Sequence[Device]) -> list[jax.Array]:
    return [jax.device_put(x if isinstance(x, jax.Array) else np.asarray(x), d)
            for x, d in zip(parts, devices, strict=True)]


def _checked_devices(of: str, parts: Any, devices: Any) -> tuple[Device, ...]:
    if not isinstance(parts, (list, tuple)) or not parts:
        raise ValueError(f"{of} takes a list of one shard at least; got {type(parts).__name__}: {parts!r}.")
    if not isinstance(devices, (list, tuple, np.ndarray)):
        raise ValueError(f"`devices` of {of} is a list of devices, such as `jax.devices()`; got "
                         f"{type(devices).__name__}: {devices!r}.")
    found = tuple(devices)
    check_devices(found, f"`devices` of {of}")
    if len(parts) != len(found):
        mend = "join some of them, or name more devices" if len(parts) > len(found) else "name fewer devices"
        raise ValueError(f"{of} puts one shard on each device; got {len(parts)} shards for {len(found)} devices: "
                         f"{mend}.")
    return found


def _described(x: Any) -> str:
    return f"{x.dtype}{list(x.shape)}"


# ---- mapped functions ------------------------------------------------------------------------------------------------


def on_parts(mapped: Callable[..., Any], in_axes: Any, out_axes: Any, named: bool, divisible: Callable[..., bool],
             alone: Callable[[], contextlib.AbstractContextManager[Any]],
             explained: Callable[[], bool]) -> Callable[..., Any]:
    """A mapped function that takes `Shards` too.

    Args:
      mapped: what `vmap` with these `in_axes` and `out_axes` gives.
      named: whether its axis has a name.
      divisible: whether the results for such arguments are those of parts of the batch.
      alone: a context in which it runs on one device.
      explained: whether it is only traced, for an explanation, which is then of the longest part.
    """
    in_axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes

    @functools.wraps(mapped)
    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        shards = [x for x in leaves if isinstance(x, Shards)]
        if not shards:
            return mapped(*args, **kwargs)
        axes = _jax.flatten_axes("vmap in_axes", tree, (in_axes, 0), kws=True)
        _check_parts(shards, leaves, axes, out_axes, named)
        if not explained() and not _jax.core.trace_state_clean():
            raise TypeError("lanax.Shards lie on several devices as they are, so they do not go into jax.jit and other "
                            "transformations: map over them outside, or pass `shards.join()`.")
        with alone():
            calls = [jax.tree.unflatten(tree, part) for part in _parts_of(shards[0], leaves, axes)]
            if explained():
                args, kwargs = calls[int(np.argmax(shards[0].lengths))]
                return mapped(*args, **kwargs)
            if not divisible(*calls[0]):
                raise ValueError("an equation of the mapped function may have to see all examples, so it does not take "
                                 "lanax.Shards: pass `shards.join()`.")
            return _collected([mapped(*args, **kwargs) for args, kwargs in calls], shards[0].devices, out_axes)

    return call


def _check_parts(shards: Sequence[Shards], leaves: Sequence[Any], axes: Sequence[int | None], out_axes: Any,
                 named: bool) -> None:
    first = shards[0]
    if named:
        raise ValueError("a function mapped with `axis_name` sees all examples, so it does not take lanax.Shards: pass "
                         "`shards.join()`.")
    if any(isinstance(x, Shards) and axis != 0 for x, axis in zip(leaves, axes, strict=True)):
        raise ValueError("`in_axes` of lanax.Shards must be 0: its parts lie along the first axis.")
    if any(axis not in (0, None) for axis in jax.tree.leaves(out_axes)):
        raise ValueError(f"`out_axes` must be 0 or None where an argument is lanax.Shards, whose parts lie along the "
                         f"first axis; got {out_axes!r}.")
    if any((x.lengths, x.devices) != (first.lengths, first.devices) for x in shards):
        raise ValueError("all lanax.Shards of one call must have parts of the same lengths on the same devices; got "
                         f"{' and '.join(map(repr, shards))}.")
    sizes = [np.shape(x)[axis] for x, axis in zip(leaves, axes, strict=True)
             if axis is not None and not isinstance(x, Shards)]
    if any(size != len(first) for size in sizes):
        raise ValueError(f"all arguments that are mapped must have as many examples as {first}; got {sizes}.")


def _parts_of(shards: Shards, leaves: Sequence[Any], axes: Sequence[int | None]) -> list[list[Any]]:
    """The arguments for each part, on its device."""
    begins = itertools.accumulate(shards.lengths, initial=0)

    def part(i: int, begin: int, x: Any, axis: int | None) -> Any:
        if isinstance(x, Shards):
            return x.parts[i]
        if axis is not None:
            along = axis % np.ndim(x)
            x = x[(*[slice(None)] * along, slice(begin, begin + shards.lengths[i]))]
        return jax.device_put(x, shards.devices[i]) if isinstance(x, (jax.Array, np.ndarray)) else x

    return [[part(i, begin, x, axis) for x, axis in zip(leaves, axes, strict=True)]
            for i, begin in zip(range(len(shards.parts)), begins, strict=False)]


def _collected(outs: Sequence[Any], devices: Sequence[Device], out_axes: Any) -> Any:
    leaves, trees = zip(*map(jax.tree.flatten, outs), strict=True)
    axes = _jax.flatten_axes("vmap out_axes", trees[0], out_axes)
    return jax.tree.unflatten(trees[0], [parts[0] if axis is None else Shards(parts, devices)
                                         for parts, axis in zip(zip(*leaves, strict=True), axes, strict=True)])
