"""The rows of all processes, in every process: an all-gather of bytes, some of them at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lanax.distributed._shares import Span

#: Bytes that one all-gather gives.
_AT_ONCE = 64 << 20


def check_collectives(name: str) -> None:
    """Raises ValueError where JAX has no way to send arrays between the processes."""
    if jax.default_backend() == "cpu" and getattr(jax.config, "jax_cpu_collectives_implementation", "gloo") is None:
        raise ValueError(f"`gather` of {name}: jax_cpu_collectives_implementation is None, so JAX cannot send arrays "
                         "between processes on the CPU. Leave that setting at 'gloo', or pass gather=False.")


def gathered(arrays: Sequence[np.ndarray], mine: Span, spans: Sequence[Span], rows: int) -> list[np.ndarray]:
    """The whole batch of each array, with the bits that each process has.

    Args:
      arrays: the rows `mine` of this process.
      spans: the rows of each process; together they are the batch.
      rows: of the batch.
    """
    whole = [np.empty((rows, *a.shape[1:]), a.dtype) for a in arrays]
    width = sum(_row_bytes(a) for a in arrays)
    most = max(stop - start for start, stop in spans)
    if not width or not most:
        return whole
    step = min(most, max(1, _AT_ONCE // (width * len(spans))))
    gather = _all_gather(len(spans), step, width)
    for begin in range(0, most, step):
        sent = np.zeros((step, width), np.uint8)
        some = [a[begin:begin + step] for a in arrays]
        count = min(step, max(0, mine[1] - mine[0] - begin))
        sent[:count] = np.concatenate([_bytes(a) for a in some], 1)
        got = gather(sent)
        for part, (start, stop) in zip(got, spans, strict=True):
            first, last = start + begin, min(start + begin + step, stop)
            if first < last:
                _put(whole, slice(first, last), part[:last - first])
    return whole


def _put(whole: Sequence[np.ndarray], rows: slice, data: np.ndarray) -> None:
    begin = 0
    for a in whole:
        size = _row_bytes(a)
        piece = np.ascontiguousarray(data[:, begin:begin + size])
        a[rows] = piece.view(a.dtype).reshape(-1, *a.shape[1:]) if size else a[rows]
        begin += size


def _row_bytes(a: np.ndarray) -> int:
    return int(np.prod(a.shape[1:])) * a.dtype.itemsize


def _bytes(a: np.ndarray) -> np.ndarray:
    size = _row_bytes(a)
    flat = np.ascontiguousarray(a).reshape(len(a), size // a.dtype.itemsize)
    return flat.view(np.uint8).reshape(len(a), size) if flat.size else np.empty((len(a), size), np.uint8)


@functools.lru_cache(maxsize=64)
def _all_gather(count: int, step: int, width: int) -> Callable[[np.ndarray], np.ndarray]:
    """A function from the bytes of this process to those of all, by one device of each."""
    first = {d.process_index: d for d in reversed(jax.devices())}
    devices = [first[i] for i in range(count)]
    mesh = Mesh(np.array(devices), ("processes",))
    split, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("processes",), ()))
    run = jax.jit(lambda x: x, out_shardings=everywhere)

    def gather(sent: np.ndarray) -> np.ndarray:
        here = jax.device_put(sent[None], devices[jax.process_index()])
        whole = jax.make_array_from_single_device_arrays((count, step, width), split, [here])
        return np.asarray(run(whole).addressable_data(0))

    return gather
