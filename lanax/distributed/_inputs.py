"""The batch that a process is given: checked, and read in pieces of rows. Knows no program and no other process."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from lanax import _jax
from lanax._jax import is_key, key_type, of_words, words_of
from lanax.distributed._shares import Span

#: What `inputs` may be, and what is said of arrays that lie on devices of several processes.
GLOBAL, LOCAL, ARRAY = "global", "local", "a global jax.Array"


class Inputs:
    """A pytree of arrays whose first axes are the batch axis.

    Attributes:
      kind: whether this process has all rows, its own, or its shards of global arrays.
      rows: how many rows it was given; all of them for global arrays.
      here: the rows that can be read, counted from the first that was given.
      types: of one row of each leaf, as JAX sees them.
      sharding: how global arrays lie; else None.
    """

    def __init__(self, name: str, xs: Any, kind: str):
        paths, self.tree = jax.tree_util.tree_flatten_with_path(xs)
        names = [f"`xs{jax.tree_util.keystr(path)}`" for path, _ in paths]
        leaves = [leaf for _, leaf in paths]
        if not leaves:
            raise ValueError(f"`xs` of {name} has no array; it is a pytree of arrays whose first axes are the batch.")
        for where, leaf in zip(names, leaves, strict=True):
            _check(name, where, leaf)
        _check_sizes(name, names, leaves)
        away = [isinstance(leaf, jax.Array) and not leaf.is_fully_addressable for leaf in leaves]
        if any(away) and not all(away):
            raise ValueError(f"{names[away.index(False)]} of {name} lies in this process alone, and "
                             f"{names[away.index(True)]} on devices of several: make all of them global arrays "
                             "(jax.make_array_from_process_local_data), or none.")
        self.kind = ARRAY if any(away) else kind
        self.rows = int(np.shape(leaves[0])[0])
        avals = [_jax.typeof(leaf) for leaf in leaves]
        self.types = [jax.ShapeDtypeStruct(a.shape[1:], a.dtype, weak_type=getattr(a, "weak_type", False))
                      for a in avals]
        self.here: Span = (0, self.rows)
        self.sharding = None
        if self.kind == ARRAY:
            found = [_own(name, where, leaf) for where, leaf in zip(names, leaves, strict=True)]
            self.here = found[0][0]
            if any(span != self.here for span, _, _ in found):
                raise ValueError(f"the arrays of `xs` of {name} are split over devices in different ways: give all of "
                                 "them the same sharding of the first axis.")
            leaves, self.sharding = [data for _, data, _ in found], found[0][2]
        self._leaves = leaves

    def read(self, span: Span) -> list[np.ndarray]:
        """Rows of each leaf, keys as their words."""
        start, stop = span[0] - self.here[0], span[1] - self.here[0]
        return [_host(leaf[start:stop], t) for leaf, t in zip(self._leaves, self.types, strict=True)]

    def kinds(self) -> str:
        """Types of a row and structure, for the other processes."""
        return f"{', '.join(f'{t.dtype}{list(t.shape)}' for t in self.types)} in {self.tree}"


def _check(name: str, where: str, leaf: Any) -> None:
    if isinstance(leaf, _jax.Tracer):
        raise TypeError(f"{name} runs on the host and cannot be traced: call it outside of jax.jit, jax.vmap and other "
                        f"transformations; {where} is {leaf}. Inside them, call lanax.vmap on global arrays.")
    if not isinstance(leaf, (np.ndarray, jax.Array)):
        raise TypeError(f"{where} of {name} must be an array (NumPy's or JAX's) whose first axis is the batch axis; "
                        f"got {type(leaf).__name__}. What is the same for all examples, let the function close over.")
    if not np.ndim(leaf):
        raise ValueError(f"{where} of {name} has no axis: its first axis would be the batch axis. What is the same for "
                         "all examples, let the function close over.")
    if not _jax.is_jax_type(leaf):
        raise TypeError(f"{where} of {name} has the dtype {leaf.dtype}, which JAX does not have.")


def _check_sizes(name: str, names: Sequence[str], leaves: Sequence[Any]) -> None:
    sizes = [np.shape(leaf)[0] for leaf in leaves]
    other = next((i for i, size in enumerate(sizes) if size != sizes[0]), None)
    if other is not None:
        raise ValueError(f"the first axes of `xs` of {name} differ: {names[0]} has {sizes[0]} rows, {names[other]} has "
                         f"{sizes[other]}.")


def _own(name: str, where: str, leaf: jax.Array) -> tuple[Span, Any, NamedSharding]:
    """The rows of a global array that this process has, and how its rows are split."""
    sharding = leaf.sharding
    if not isinstance(sharding, NamedSharding) or any(axes is not None for axes in sharding.spec[1:]):
        raise ValueError(f"{where} of {name} must be split along its first axis alone, by a NamedSharding such as "
                         f"NamedSharding(mesh, PartitionSpec('x')); got {sharding}.")
    parts: dict[Span, Any] = {}
    for shard in leaf.addressable_shards:
        start, stop, _ = shard.index[0].indices(leaf.shape[0])
        parts[start, stop] = shard.data
    spans = sorted(parts)
    if not spans:
        raise ValueError(f"{where} of {name} lies on devices of other processes alone: every process needs a part of a "
                         "global array.")
    if any(a[1] != b[0] for a, b in itertools.pairwise(spans)):
        raise ValueError(f"{where} of {name} has rows in this process that do not follow each other: {spans[:3]}. Make "
                         "the mesh of devices in the order of the processes, as jax.make_mesh and jax.devices() do.")
    data = [words_of(parts[span]) for span in spans]
    joined = data[0] if len(data) == 1 else np.concatenate([np.asarray(d) for d in data])
    return (spans[0][0], spans[-1][1]), joined, NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:1]))


def _host(rows: Any, like: Any) -> np.ndarray:
    """Rows in memory, in the dtype that JAX takes them for."""
    words = np.asarray(words_of(rows))
    return words if is_key(like) else words.astype(like.dtype, copy=False)


def typed(words: Any, like: Any) -> Any:
    """What `words_of` gave, as an array of the type `like`, weak or not."""
    return _jax.weak_as(words, like) if like.weak_type else of_words(words, key_type(like))
