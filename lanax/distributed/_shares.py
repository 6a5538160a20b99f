"""Which rows of a batch are whose. Knows no process but by its number."""

from __future__ import annotations

from collections.abc import Sequence

from lanax import _jax
from lanax._devices.shares import share_sizes

#: Rows from the first on, up to the second.
Span = tuple[int, int]


def share(rows: int, process_id: int | None = None, num_processes: int | None = None) -> range:
    """The rows of a batch of `rows` that a process runs in `map`: as many for all, rounded up, and what is left, or
    nothing, for the last ones.

    Args:
      rows: of the whole batch.
      process_id, num_processes: this process and the number of them, where they are left out.

    Raises:
      ValueError: there are no such rows or no such process.
    """
    here, count, _ = _jax.process_of()
    here = here if process_id is None else process_id
    count = count if num_processes is None else num_processes
    if type(rows) is not int or rows < 0:
        raise ValueError(f"`rows` of lanax.distributed.share is the size of a batch, an int of 0 or more; "
                         f"got {rows!r}.")
    if type(count) is not int or type(here) is not int or not 0 <= here < count:
        raise ValueError(f"`process_id` of lanax.distributed.share is from 0 to `num_processes` - 1; got "
                         f"process_id={here!r}, num_processes={count!r}.")
    return range(*shares(rows, count)[here])


def shares(rows: int, count: int) -> list[Span]:
    """The same for every process."""
    return one_after_another(share_sizes(rows, count))


def one_after_another(sizes: Sequence[int]) -> list[Span]:
    """The rows of processes that bring `sizes` rows, in the order of the processes."""
    spans, start = [], 0
    for size in sizes:
        spans.append((start, start + size))
        start += size
    return spans


def pieces(span: Span, size: int, origin: int = 0) -> list[Span]:
    """A span in pieces of `size` rows, cut at multiples of it from `origin` on: the first and the last may be smaller.
    """
    start, stop = span
    found = []
    while start < stop:
        end = min(origin + ((start - origin) // size + 1) * size, stop)
        found.append((start, end))
        start = end
    return found
