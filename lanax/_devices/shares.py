"""A batch shared out over devices of this process: which ones, how many examples each, a function run on every share.
Knows no program."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from lanax import _jax
from lanax._errors import PlanError
from lanax._jax import key_type, of_words, words_of
from lanax._plan import Device, Plan, device_name

#: The name of the one axis of the mesh.
AXIS = "batch"

#: `fun(size, *args)`: the results for a batch of `size` examples.
Fun = Callable[..., Sequence[Any]]
Axes = Sequence[int | None]


@dataclasses.dataclass(frozen=True)
class Shares:
    """Who runs how many examples.

    Attributes:
      devices: in the order of their shares.
      sizes: examples of each device: as many for all, but that the last ones take what is left, or nothing.
    """

    devices: tuple[Device, ...]
    sizes: tuple[int, ...]

    @property
    def most(self) -> int:
        """Examples of the largest share, the first."""
        return self.sizes[0]

    @property
    def even(self) -> bool:
        """Whether all shares are of one size."""
        return self.sizes[-1] == self.most

    @property
    def mesh(self) -> Mesh:
        return _mesh_of(self.devices)

    @property
    def where(self) -> Any:
        """A jaxpr that computes nothing. JAX looks for devices in the parameters of equations."""
        return _marked(self.devices)

    def over(self, axis: int | None) -> NamedSharding:
        """How an array lies that has the batch axis at `axis`; None: each device has all of it."""
        return _over(self.devices, axis)


@functools.lru_cache(maxsize=256)
def _over(devices: tuple[Device, ...], axis: int | None) -> NamedSharding:
    return NamedSharding(_mesh_of(devices), PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, AXIS))


def _mesh_of(devices: Sequence[Device]) -> Mesh:
    return Mesh(np.array(devices, object), (AXIS,))


def shares_of(plan: Plan, axis_size: int) -> Shares:
    """How a plan that has devices shares out a batch.

    Raises:
      PlanError: this process does not have such devices.
    """
    devices = _devices_of(plan)
    return Shares(devices, share_sizes(axis_size, len(devices)))


def share_sizes(axis_size: int, devices: int) -> tuple[int, ...]:
    """Shares of one size, but that the last ones take what is left, or nothing. XLA splits an array so, too."""
    size = math.ceil(axis_size / devices)
    return tuple(max(0, min(size, axis_size - i * size)) for i in range(devices))


def for_each(plan: Plan, devices: int) -> Plan:
    """The plan of one of several devices."""
    most = plan.parallelism
    return plan.replace(devices=None, parallelism=None if most is None else max(1, most // devices))


def _devices_of(plan: Plan) -> tuple[Device, ...]:
    given: Any = plan.devices
    if isinstance(given, int):
        found = tuple(jax.local_devices())
        if given > len(found):
            source = f" ({plan.sources['devices']})" if "devices" in plan.sources else ""
            raise PlanError(
                f"`devices` of a Plan asks for {given} devices{source}; this process has {len(found)}: "
                f"{', '.join(map(device_name, found))}. Ask for fewer; a CPU can be made into several devices with "
                f"XLA_FLAGS=--xla_force_host_platform_device_count={given} in the environment.")
        given = found[:given]
    away = next((d for d in given if d.process_index != jax.process_index(d.client)), None)
    if away is not None:
        raise PlanError(f"`devices` of a Plan has {device_name(away)} of process {away.process_index}: a plan is for "
                        "devices of this process, `jax.local_devices()`; each process runs its own part of a batch.")
    return given[:plan.parallelism]


@functools.lru_cache(maxsize=64)
def _marked(devices: tuple[Device, ...]) -> Any:
    everywhere = _jax.OnAll(Shares(devices, (0,)).mesh)
    with _jax.no_mesh():
        return jax.make_jaxpr(lambda x: lax.with_sharding_constraint(x, everywhere))(np.float32(0))


# ---- arguments -------------------------------------------------------------------------------------------------------


def check_places(plan: Plan, arguments: Iterable[tuple[str, Any]]) -> None:
    """Raises PlanError where an array is committed to a device that the plan leaves out, or where a mesh decides, and
    not the plan.

    Args:
      arguments: names and values; what is no array, or abstract, is fine.
    """
    devices = set(_devices_of(plan))
    arrays = [(name, x) for name, x in arguments if isinstance(x, jax.Array)]
    if plan.sources.get("devices") in ("the call", "explain"):  # settings around the call are for what can use them
        _check_mesh(len(devices), arrays)
    for name, x in arrays:
        if not isinstance(x, _jax.Tracer) and x.committed and not x.devices() <= devices:
            away = ", ".join(sorted(device_name(d) for d in x.devices() - devices))
            raise PlanError(
                f"{name} is committed to {away}, which `devices` of the Plan leaves out "
                f"({', '.join(map(device_name, _devices_of(plan)))}): add the device to the plan, or move the array "
                "with `jax.device_put(x, device)`; a NumPy array goes where it is needed.")


def _check_mesh(count: int, arrays: Sequence[tuple[str, jax.Array]]) -> None:
    """Raises PlanError where `count` devices were asked for and a mesh, around the call or of its arrays, has another
    part for each device."""
    around = jax.sharding.get_abstract_mesh()
    if AxisType.Manual in around.axis_types:
        raise PlanError("`devices` of a Plan cannot be asked for inside jax.shard_map, where each device has its part "
                        "of the batch already: leave `devices` out there, or call the mapped function outside.")
    typed = [(name, _jax.typeof(x).sharding) for name, x in arrays if _jax.has_explicit_type(x)]
    if not typed and AxisType.Explicit not in around.axis_types:
        return
    split = [(name, s) for name, s in typed if any(s.spec)]
    if not split:
        raise PlanError(
            "`devices` of a Plan: the mesh has axes of explicit type, under which each array says how it lies, and no "
            "argument is split. Split the batch, as in `jax.sharding.reshard(x, jax.P('axis'))` (and leave `devices` "
            "out, or name those of the mesh), or make the mesh with `axis_types=(jax.sharding.AxisType.Auto,)`.")
    name, sharding = split[0]
    if sharding.mesh.size != count:
        raise PlanError(
            f"`devices` of a Plan names {count} devices, and {name} is split over a mesh of {sharding.mesh.size} with "
            "axes of explicit type, where it stays: leave `devices` out, or name those of the mesh.")


# ---- a function on every share ---------------------------------------------------------------------------------------


def run_traced(fun: Fun, shares: Shares, in_axes: Axes, out_axes: Axes, args: Sequence[Any]) -> list[Any]:
    """`fun` on every share, under a trace. Results have the batch axis at `out_axes`; None: they are sums, which are
    added up."""
    padded = [x if a is None or shares.even else _of_words(_padded, x, a, shares.most * len(shares.devices))
              for x, a in zip(args, in_axes, strict=True)]
    outs = _run(fun, shares, in_axes, out_axes, padded)
    size = sum(shares.sizes)
    return [x if a is None or shares.even else _of_words(lax.slice_in_dim, x, 0, size, 1, a)
            for x, a in zip(outs, out_axes, strict=True)]


def _run(fun: Fun, shares: Shares, in_axes: Axes, out_axes: Axes, args: Sequence[Any]) -> list[Any]:
    """The same for a batch that is padded to shares of one size, padded results and all. The padding is never read."""
    kinds: list[Any] = []

    def on_one(*words: Any) -> list[Any]:
        args = list(map(of_words, words, map(key_type, given)))
        outs = run_share(fun, shares.sizes, AXIS, in_axes, out_axes, args, kinds)
        return [lax.psum(x, AXIS) if a is None else x for x, a in zip(outs, out_axes, strict=True)]

    given = args
    specs = [[shares.over(a).spec for a in axes] for axes in (in_axes, out_axes)]
    with _jax.no_mesh():
        mapped = jax.shard_map(on_one, mesh=shares.mesh, in_specs=tuple(specs[0]), out_specs=specs[1], check_vma=False)
        outs = mapped(*map(words_of, args))
    return list(map(of_words, outs, kinds[:len(outs)]))


def run_share(fun: Fun, sizes: Sequence[int], over: Any, in_axes: Axes, out_axes: Axes, args: Sequence[Any],
              kinds: list[Any] | None = None) -> Sequence[Any]:
    """`fun` on the share of the device that this runs on, in arrays that are padded to the size of the first share.
    Results are padded with zeros; keys among them are given as words. Nothing is computed of the padding, for which a
    function need not even end.

    Args:
      sizes: examples of each device.
      over: the axes of the mesh that the batch is split over, or their names.
      kinds: gets the `key_type` of each result.
    """
    notes: list[Any] = [] if kinds is None else kinds
    branches = [functools.partial(_part, fun, size, sizes[0], in_axes, out_axes, notes)
                for size in dict.fromkeys(sizes)]
    return branches[0](*args) if len(branches) == 1 else lax.switch(lax.axis_index(over) - sizes.count(sizes[0]) + 1,
                                                                     branches, *args)


def _part(fun: Fun, size: int, most: int, in_axes: Axes, out_axes: Axes, kinds: list[Any], *args: Any) -> list[Any]:
    """A share of `size` examples, in arrays of `most`. It notes which results are keys; they are given as words."""
    if size == 0:
        like = jax.eval_shape(functools.partial(_part, fun, most, most, in_axes, out_axes, []), *args)
        return [jnp.zeros(x.shape, x.dtype) for x in like]
    own = [x if a is None or size == most else lax.slice_in_dim(x, 0, size, 1, a)
           for x, a in zip(args, in_axes, strict=True)]
    outs = fun(size, *own)
    kinds.extend(map(key_type, outs))
    return [w if a is None or size == most else _padded(w, a, most)
            for w, a in zip(map(words_of, outs), out_axes, strict=True)]


def _of_words(fun: Callable[..., Any], x: Any, *args: Any) -> Any:
    """`fun` of an array, or of the words of keys."""
    return of_words(fun(words_of(x), *args), key_type(x))


def _padded(x: Any, axis: int, size: int) -> Any:
    """An array with zeros after its end along an axis."""
    missing = [(0, size - x.shape[axis] if i == axis else 0, 0) for i in range(x.ndim)]
    return lax.pad(x, jnp.zeros((), x.dtype), missing)


def run_alike(fun: Callable[..., Any], devices: Sequence[Device], args: Sequence[Any]) -> Any:
    """`fun(*args)` by every device, under a trace. Where it raises, it does so on all of them, so that none waits for
    another in what comes after: XLA ends the process then."""
    with _jax.no_mesh():
        spec = PartitionSpec()
        return jax.shard_map(fun, mesh=_mesh_of(devices), in_specs=spec, out_specs=spec, check_vma=False)(*args)


# ---- outside of a trace: each share goes to its device, and comes back -----------------------------------------------


def run_placed(fun: Fun, shares: Shares, in_axes: Axes, out_axes: Axes, types: Sequence[Any],
               args: Sequence[Any]) -> list[Any]:
    """`fun` on every share, for arrays; `types` are those of the first results.

    A batch that has an even share for each device stays on the devices; what has not is joined on the first one, and
    sums are there too.
    """
    with _jax.no_mesh():
        words = [words_of(x) if isinstance(x, jax.Array) else x for x in args]
        kinds = tuple(key_type(x) if isinstance(x, jax.Array) else None for x in args)
        placed = [_placed(x, a, shares) for x, a in zip(words, in_axes, strict=True)]
        outs = _compiled(fun, shares, tuple(in_axes), tuple(out_axes), tuple(types), kinds)(*placed)
        return [_on_first(x, shares) if a is None else x if shares.even else _of_words(_joined, x, a, shares)
                for x, a in zip(outs, out_axes, strict=True)]


def cut_apart(shares: Shares, in_axes: Axes, args: Sequence[Any]) -> list[list[Any]]:
    """The arguments of each device's share, on the device."""
    begins = itertools.accumulate(shares.sizes, initial=0)
    return [[jax.device_put(x if a is None else lax.slice_in_dim(x, begin, begin + size, 1, a), device)
             for x, a in zip(args, in_axes, strict=True)]
            for begin, size, device in zip(begins, shares.sizes, shares.devices, strict=False)]


@functools.lru_cache(maxsize=256)
def _compiled(fun: Fun, shares: Shares, in_axes: tuple[int | None, ...], out_axes: tuple[int | None, ...],
              types: tuple[Any, ...], kinds: tuple[Any, ...]) -> Callable[..., list[Any]]:
    def run(*words: Any) -> list[Any]:
        outs = _run(fun, shares, in_axes, out_axes, list(map(of_words, words, kinds)))
        return [*(_jax.weak_as(x, t) if t.weak_type else x for x, t in zip(outs, types, strict=False)),
                *outs[len(types):]]

    return jax.jit(run)


def _placed(x: Any, axis: int | None, shares: Shares) -> Any:
    """An array as it is to lie; short shares are padded."""
    x, over, count = _in_memory(x), shares.over(axis), len(shares.devices)
    if isinstance(x, jax.Array) and (axis is None or shares.even):
        return _there(x, over)
    if isinstance(x, jax.Array):
        pieces = _cut(x, axis, shares.sizes)
    else:
        x = np.asarray(x, _jax.typeof(x).dtype)
        pieces = [x] * count if axis is None else _cut_here(x, axis, shares.sizes)
    shape = x.shape if axis is None else _sized(x.shape, axis, shares.most * count)
    return _jax.put_pieces(_jax.ShapedArray(shape, x.dtype), over, pieces, shares.devices)


def _sized(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    return *shape[:axis], size, *shape[axis + 1:]


def _in_memory(x: Any) -> Any:
    """A view of an array that lies in this machine's memory, so that it is copied once at most on its way; itself
    where there is none."""
    if not isinstance(x, jax.Array) or len(x.devices()) > 1 or jax.dtypes.canonicalize_dtype(x.dtype) != x.dtype:
        return x
    array: Any = x
    here = next(iter(array.devices())).platform == "cpu"
    return np.asarray(array) if here and array.is_ready() else array


def _there(x: jax.Array, over: NamedSharding) -> jax.Array:
    """An array with a sharding; not copied where it lies so already, if on another mesh."""
    if x.sharding == over or not x.sharding.is_equivalent_to(over, x.ndim):
        return jax.device_put(x, over)
    return jax.make_array_from_single_device_arrays(x.shape, over, [shard.data for shard in x.addressable_shards])


@functools.partial(jax.jit, static_argnums=(1, 2))
def _cut(x: Any, axis: int, sizes: tuple[int, ...]) -> list[Any]:
    begins = itertools.accumulate(sizes, initial=0)
    return [_padded(lax.slice_in_dim(x, begin, begin + size, 1, axis), axis, sizes[0])
            for begin, size in zip(begins, sizes, strict=False)]


def _cut_here(x: np.ndarray, axis: int, sizes: Sequence[int]) -> list[np.ndarray]:
    """The same for an array in memory: whole shares are not copied."""
    begins = itertools.accumulate(sizes, initial=0)
    shares = [_rows(x, axis, begin, begin + size) for begin, size in zip(begins, sizes, strict=False)]
    return [share if size == sizes[0] else _padded_here(share, axis, sizes[0])
            for share, size in zip(shares, sizes, strict=True)]


def _padded_here(x: np.ndarray, axis: int, size: int) -> np.ndarray:
    padded = _aligned(_sized(x.shape, axis, size), x.dtype)
    _rows(padded, axis, 0, x.shape[axis])[...] = x
    _rows(padded, axis, x.shape[axis], size)[...] = 0
    return padded


def _rows(x: np.ndarray, axis: int, begin: int, end: int) -> np.ndarray:
    return x[(*[slice(None)] * axis, slice(begin, end))]


def _aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array to be filled, which the CPU's devices then take without a copy: it begins at a multiple of 64 bytes."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    return memory[begin:begin + size].view(dtype).reshape(shape)


def _on_first(x: Any, shares: Shares) -> Any:
    """An array of which every device has a copy, as the first one has it; not committed to it."""
    data = next(shard.data for shard in x.addressable_shards if shard.device == shares.devices[0])
    return _jax.uncommitted(data, x.aval)


def _joined(x: Any, axis: int, shares: Shares) -> Any:
    """The batch without its padding, on the first device; not committed to it, as what any call gives."""
    data = {shard.device: shard.data for shard in x.addressable_shards}
    pieces = [data[device] for device, size in zip(shares.devices, shares.sizes, strict=True) if size]
    if shares.devices[0].platform == "cpu":
        pieces = [_in_memory(piece) for piece in jax.block_until_ready(pieces)]
    total = sum(shares.sizes)
    if all(isinstance(piece, np.ndarray) for piece in pieces):
        rows = [_rows(piece, axis, 0, size) for piece, size in zip(pieces, shares.sizes, strict=False)]
        whole = np.concatenate(rows, axis, out=_aligned(_sized(x.shape, axis, total), pieces[0].dtype))
        joined = jax.device_put(whole, shares.devices[0])
    else:
        joined = _join(jax.device_put(pieces, shares.devices[0]), axis, total)
    return _jax.uncommitted(joined, x.aval)


def on_one(arrays: Sequence[Any], shares: Shares) -> list[Any]:
    """Arrays on the first device, and not committed to it."""
    return [_jax.uncommitted(jax.device_put(x, shares.devices[0]), x.aval) for x in arrays]


@functools.partial(jax.jit, static_argnums=(1, 2))
def _join(pieces: Sequence[Any], axis: int, size: int) -> Any:
    return lax.slice_in_dim(lax.concatenate(pieces, axis), 0, size, 1, axis)
