"""Where arrays lie: `with_sharding_constraint` for any mesh and any length, and `PositionalSharding`. Knows no plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from lanax import _jax
from lanax._plan import check_devices


def with_sharding_constraint(x: Any, shardings: Any) -> Any:
    """Pin how an array lies inside a computation: `jax.lax.with_sharding_constraint`, for meshes of any kind and for
    lengths that do not divide.

    Args:
      x: a pytree of arrays.
      shardings: a `jax.sharding.Sharding`, or a `PartitionSpec` for the mesh around the call; or a pytree of them that
        is a prefix of `x`.

    Returns:
      The same values. Under `jax.jit` an axis that does not divide is padded inside, and the padding is never computed
      on. Outside of it, and on a mesh with axes of explicit type, such an array cannot be; along that axis each device
      gets all of it (or what the first of several mesh axes divide).

    Raises:
      What JAX raises, where a sharding does not fit in another way.
    """
    return jax.tree.map(lambda s, part: jax.tree.map(lambda leaf: _pinned(leaf, s), part), shardings, x,
                        is_leaf=lambda s: isinstance(s, (Sharding, PartitionSpec)))


def _pinned(x: Any, sharding: Any) -> Any:
    mesh: Any = sharding.mesh if isinstance(sharding, NamedSharding) else jax.sharding.get_abstract_mesh()
    spec = sharding if isinstance(sharding, PartitionSpec) else getattr(sharding, "spec", None)
    if spec is None or mesh.empty or len(spec) > np.ndim(x):
        return lax.with_sharding_constraint(x, sharding)  # it knows what to do, or what is wrong
    if isinstance(x, _jax.Tracer) and not mesh.are_all_axes_explicit:
        return lax.with_sharding_constraint(x, sharding)
    whole = _dividing(mesh, spec, np.shape(x))
    if isinstance(x, _jax.Tracer):
        return jax.sharding.reshard(x, NamedSharding(mesh, whole))
    here = jax.sharding.get_mesh() if isinstance(mesh, jax.sharding.AbstractMesh) else mesh
    return jax.device_put(x, NamedSharding(here, whole))


def _dividing(mesh: Any, spec: PartitionSpec, shape: Sequence[int]) -> PartitionSpec:
    """A spec without what does not divide the shape."""
    return PartitionSpec(*(_prefix(mesh, names, size) for names, size in zip(spec, shape, strict=False)))


def _prefix(mesh: Any, names: Any, size: int) -> Any:
    if not isinstance(names, (str, tuple)):
        return names
    given = names if isinstance(names, tuple) else (names,)
    for end in range(len(given), 0, -1):
        if size % math.prod(mesh.shape[name] for name in given[:end]) == 0:
            return names if end == len(given) else given[:end]
    return None


class PositionalSharding(NamedSharding):
    """A sharding by the positions of devices: the sharding of this name that JAX has removed, as a `NamedSharding`.

        sharding = lanax.PositionalSharding(jax.devices())           # of 8
        x = jax.device_put(x, sharding.reshape(4, 2))                # rows over 4, columns over 2
        y = jax.device_put(y, sharding.reshape(4, 2).replicate(0))   # columns over 2; each half is on 4 devices

    All shardings that are made of one have one mesh where the numbers allow it, so that they go together in a program.

    Args:
      devices: a sequence or an array of devices; its shape is that of the sharding.

    Raises:
      ValueError: the new shape has another number of positions; or there is no such axis.
    """

    def __init__(self, devices: Any, *, memory_kind: str | None = None):
        grid = np.asarray(devices, object)
        check_devices(tuple(grid.flat), "`devices` of lanax.PositionalSharding")
        factors = [_prime_factors(n) for n in grid.shape]
        sizes = [n for some in factors for n in some]
        names = iter(f"d{i}" for i in range(len(sizes)))
        mesh = Mesh(grid.reshape(sizes or [1]), tuple(f"d{i}" for i in range(len(sizes) or 1)))
        self._set(mesh, [tuple(next(names) for _ in some) for some in factors], memory_kind)

    def _set(self, mesh: Any, axes: Sequence[tuple[str, ...]], memory_kind: str | None) -> None:
        spec = PartitionSpec(*(names or None for names in axes))
        super().__init__(mesh, spec, memory_kind=memory_kind)  # type: ignore[call-arg]
        self._axes = tuple(axes)

    def _with(self, mesh: Any, axes: Sequence[tuple[str, ...]]) -> PositionalSharding:
        new = PositionalSharding.__new__(PositionalSharding)
        new._set(mesh, axes, self.memory_kind)
        return new

    @property
    def shape(self) -> tuple[int, ...]:
        """Into how many pieces each axis of an array is cut."""
        return tuple(math.prod(self.mesh.shape[name] for name in names) for names in self._axes)

    @property
    def ndim(self) -> int:
        return len(self._axes)

    def reshape(self, *shape: Any) -> PositionalSharding:
        """The same positions, in order, in another shape; one size may be -1."""
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        sizes = np.empty(math.prod(self.shape)).reshape(wanted).shape  # NumPy's own error where it does not fit
        used = [name for names in self._axes for name in names]
        axes = _grouped(used, [self.mesh.shape[name] for name in used], sizes)
        if axes is not None:
            return self._with(self.mesh, axes)
        others = [name for name in self.mesh.axis_names if name not in used]
        order = [self.mesh.axis_names.index(name) for name in (*used, *others)]
        copies = math.prod(self.mesh.shape[name] for name in others)
        devices: Any = self.mesh.devices
        grid = np.transpose(devices, order).reshape(*sizes, copies)
        names = tuple(f"d{i}" for i in range(grid.ndim))
        return self._with(Mesh(grid, names), [(name,) if n > 1 else () for name, n in zip(names, sizes, strict=False)])

    def replicate(self, axis: int | None = None, keepdims: bool = True) -> PositionalSharding:
        """Each device of an axis has all of it: that axis of an array is not cut. None: every axis."""
        if axis is not None and not -self.ndim <= axis < self.ndim:
            raise ValueError(f"`axis` of PositionalSharding.replicate must be one of its {self.ndim}; got {axis}.")
        chosen = range(self.ndim) if axis is None else [axis % self.ndim]
        axes = [() if i in chosen else names for i, names in enumerate(self._axes) if keepdims or i not in chosen]
        return self._with(self.mesh, axes)

    def transpose(self, *axes: int) -> PositionalSharding:
        """Axes in another order, reversed by default."""
        order = axes or range(self.ndim)[::-1]
        return self._with(self.mesh, [self._axes[i] for i in order])

    @property
    def T(self) -> PositionalSharding:
        return self.transpose()

    def __repr__(self) -> str:
        return f"PositionalSharding{self.shape} of {self.num_devices} devices"

    def __reduce__(self) -> Any:
        return NamedSharding(self.mesh, self.spec, memory_kind=self.memory_kind).__reduce__()


_jax.treat_as_named(PositionalSharding)


def _prime_factors(n: int) -> list[int]:
    factors, p = [], 2
    while n > 1:
        while n % p == 0:
            factors.append(p)
            n //= p
        p += 1
    return factors


def _grouped(names: Sequence[str], sizes: Sequence[int], wanted: Sequence[int]) -> list[tuple[str, ...]] | None:
    """Names in order, in groups whose sizes multiply to those wanted; None where they do not."""
    groups, rest = [], list(zip(names, sizes, strict=True))
    for size in wanted:
        group: list[str] = []
        while size > 1 and rest and size % rest[0][1] == 0:
            name, factor = rest.pop(0)
            group.append(name)
            size //= factor
        if size > 1:
            return None
        groups.append(tuple(group))
    return groups
