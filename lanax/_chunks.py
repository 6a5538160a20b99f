"""`vmap` in chunks: a bounded number of examples alive at once, by a loop. Knows no plan and no kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from lanax import _jax
from lanax._rewrite.surgery import inner_jaxprs

Fun = Callable[..., Sequence[Any]]


def vmap_in_chunks(fun: Fun, args: Sequence[Any], axes: Sequence[int | None], axis_size: int,
                   chunk: int | None) -> list[Any]:
    """What `fun`, of one example, gives for all of them, at most `chunk` of them at once; results have axis 0.

    With chunk = 1 there is no `vmap`: a branch that an example does not take is not run, and its loops end with it.
    """
    if chunk == 1 and axis_size:
        return _one_by_one(fun, args, axes, axis_size)

    def batch(size: int, *some: Any) -> Sequence[Any]:
        return _jax.vmap(fun, in_axes=tuple(axes), axis_size=size)(*some)

    return in_chunks(batch, args, axes, axis_size, chunk or axis_size)


def in_chunks(batch: Fun, args: Sequence[Any], axes: Sequence[int | None], axis_size: int, chunk: int) -> list[Any]:
    """`batch(size, *args)`, which gives results with axis 0, for chunks of the examples and a remainder. What it gives
    along that axis, be it as many as there are examples, is joined.

    Chunks are read where they lie, whatever the axis: a loop over parts of a transposed copy would hold that copy.
    """
    if chunk >= axis_size:
        return list(batch(axis_size, *args))
    whole, rest = divmod(axis_size, chunk)

    def part(start: Any, size: int) -> list[Any]:
        return [x if a is None else lax.dynamic_slice_in_dim(x, start, size, a)
                for x, a in zip(args, axes, strict=True)]

    _, outs = lax.scan(lambda _, i: ((), list(batch(chunk, *part(i * chunk, chunk)))), (), jnp.arange(whole))
    outs = [x.reshape((whole * x.shape[1], *x.shape[2:])) for x in outs]
    if not rest:
        return outs
    return [lax.concatenate([x, y], 0) for x, y in zip(outs, batch(rest, *part(whole * chunk, rest)), strict=True)]


def _one_by_one(fun: Fun, args: Sequence[Any], axes: Sequence[int | None], axis_size: int) -> list[Any]:
    def one(i: Any) -> list[Any]:
        return list(fun(*(x if a is None else lax.dynamic_index_in_dim(x, i, a, keepdims=False)
                          for x, a in zip(args, axes, strict=True))))

    return _jax.lax_map(one, jnp.arange(axis_size))


def moved(outs: Sequence[Any], axes: Sequence[int | None]) -> list[Any]:
    """Results with the batch axis at `axes` instead of first; None: summed over it."""
    return [jnp.sum(x, 0) if a is None else x if a == 0 else jnp.moveaxis(x, 0, a)
            for x, a in zip(outs, axes, strict=True)]


def example_bytes(jaxpr: Any) -> int:
    """Bytes that one example needs for everything that a program computes, as if nothing were let go."""
    own = sum(math.prod(v.aval.shape) * v.aval.dtype.itemsize for e in jaxpr.eqns for v in e.outvars
              if isinstance(v.aval, _jax.ShapedArray))
    return own + sum(example_bytes(inner) for e in jaxpr.eqns for inner in inner_jaxprs(e))
