"""Bars, and a mapped call as a loop on the host that can be watched and stopped. Knows no plan."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from lanax import _jax

#: Seconds that one chunk should take: long beside what a call costs, short for someone who has pressed Ctrl-C.
_SECONDS = 0.25
_SHORTEST, _LONGEST = 0.05, 0.5
#: Parts of the batch of which the first chunk, by which the others are measured, is one.
_FIRST = 64
#: A chunk is so many examples times an int: whole steps of every kernel.
_MULTIPLE = 64


class _Rate(ProgressColumn):
    """Examples per second, over the last while."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        number = f"{speed:,.3g}" if speed and speed < 1000 else f"{speed or 0:,.0f}"
        return Text(f"{number} examples/s", style="progress.data.speed")


def bar(*, of_examples: bool = True, shown: bool = True) -> Progress:
    """A bar on standard error, of examples or of seconds; one of seconds is gone when it is full."""
    what = [_Rate(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()] if of_examples else [
        TimeElapsedColumn()]
    return Progress(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"), *what,
                    console=Console(stderr=True), transient=not of_examples, disable=not shown,
                    speed_estimate_period=10.0)


def with_progress(mapped: Callable[..., Any], in_axes: Any, out_axes: Any, name: str,
                  divisible: Callable[[tuple[Any, ...], dict[str, Any]], bool]) -> Callable[..., Any]:
    """A function of a batch as one that shows how far it is, where it is called outside of a trace.

    Args:
      mapped: what `vmap` with these `in_axes` and `out_axes` gives.
      name: the user's function.
      divisible: whether the results for these arguments are those of parts of the batch.
    """
    in_axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        if not _jax.core.trace_state_clean() or not all(map(_in_one_place, leaves)):
            return mapped(*args, **kwargs)
        try:
            axes = _jax.flatten_axes("vmap in_axes", tree, (in_axes, 0), kws=True)
            sizes = {np.shape(x)[a] for x, a in zip(leaves, axes, strict=True) if a is not None}
            if len(sizes) != 1 or 0 in sizes or not divisible(args, kwargs):
                return mapped(*args, **kwargs)
        except Exception:  # JAX will say what is wrong
            return mapped(*args, **kwargs)
        try:
            return _watched(mapped, tree, leaves, axes, sizes.pop(), out_axes, name)
        except jax.errors.JAXTypeError:  # it looks at the value of an unmapped array
            return mapped(*args, **kwargs)

    return call


def _in_one_place(x: Any) -> bool:
    return not isinstance(x, jax.Array) or len(x.devices()) == 1


def _watched(mapped: Callable[..., Any], tree: Any, leaves: Sequence[Any], axes: Sequence[int | None], axis_size: int,
             out_axes: Any, name: str) -> Any:
    """The call chunk by chunk, by a loop on the host: one compiled function for each size of chunk. Another thread runs
    them, so that this one can be interrupted at any time; the chunk that runs then ends by itself."""
    given = [a is not None or isinstance(x, jax.Array) for x, a in zip(leaves, axes, strict=True)]

    def chunk(size: int, start: Any, *operands: Any) -> Any:
        rest = iter(operands)
        parts = [x if not g else next(rest) if a is None else lax.dynamic_slice_in_dim(next(rest), start, size, a)
                 for x, g, a in zip(leaves, given, axes, strict=True)]
        args, kwargs = jax.tree.unflatten(tree, parts)
        return mapped(*args, **kwargs)

    operands = [jnp.asarray(x) for x, g in zip(leaves, given, strict=True) if g]
    compiled: dict[int, Any] = {}
    outs, start, size = [], 0, min(axis_size, _rounded(axis_size / _FIRST))
    with _thread() as runner, bar() as shown:
        task = shown.add_task(name, total=axis_size)
        while start < axis_size:
            first = jnp.asarray(start)
            if size not in compiled:
                compiled[size] = jax.jit(functools.partial(chunk, size)).lower(first, *operands).compile()
            begin = time.perf_counter()
            outs.append(_result(runner.submit(lambda run, *args: jax.block_until_ready(run(*args)), compiled[size],
                                              first, *operands)))
            start += size
            shown.update(task, completed=start)
            size = min(_next(size, time.perf_counter() - begin), axis_size - start)
    return _joined(outs, out_axes)


@contextlib.contextmanager
def _thread() -> Iterator[Executor]:
    """A thread of its own for some calls; who leaves does not wait for what still runs."""
    executor = ThreadPoolExecutor(1, "lanax-chunk")
    try:
        yield executor
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


def _result(future: Future[Any]) -> Any:
    """What another thread computes; a signal is seen while this one waits, on every platform."""
    while not future.done():
        wait([future], timeout=0.1)
    return future.result()


def _rounded(examples: float) -> int:
    return max(1, round(examples / _MULTIPLE)) * _MULTIPLE


def _next(size: int, seconds: float) -> int:
    """The size of the next chunk: another one, for which there is more to compile, only where this one was too short or
    too long."""
    fit = _rounded(size * _SECONDS / max(seconds, 1e-6))
    return max(size, fit) if seconds < _SHORTEST else min(size, fit) if seconds > _LONGEST else size


def _joined(outs: Sequence[Any], out_axes: Any) -> Any:
    leaves, trees = zip(*map(jax.tree.flatten, outs), strict=True)
    axes = _jax.flatten_axes("vmap out_axes", trees[0], out_axes)
    return jax.tree.unflatten(trees[0], [parts[0] if a is None or len(parts) == 1 else _concatenated(parts, a)
                                         for parts, a in zip(zip(*leaves, strict=True), axes, strict=True)])


def _concatenated(parts: Sequence[Any], axis: int) -> Any:
    joined = jnp.concatenate(parts, axis)
    like = _jax.typeof(parts[0])
    return _jax.weak_as(joined, like) if getattr(like, "weak_type", False) else joined
