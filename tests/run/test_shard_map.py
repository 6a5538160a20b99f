"""A mapped call inside `shard_map`: types that vary over the mesh, sums over it, derivatives. One device is enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import lanax

X = jnp.linspace(0.1, 3.0, 16)
W = jnp.float32(0.3)


SPLIT = P("d")


def shard_map(fun: Any, in_specs: Any = SPLIT, out_specs: Any = SPLIT, **options: Any) -> Any:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",))
    return jax.shard_map(fun, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **options)


def loop(v: Any) -> Any:
    return lax.while_loop(lambda u: (u * u).sum() < 90, lambda u: u * 1.5 + 0.1, v)


def scanned(v: Any) -> Any:
    return lax.scan(lambda c, _: (jnp.sin(c) * v, None), v, length=3)[0]


BOTH = (P("d"), P())

#: Each takes `lanax.vmap` or `jax.vmap`.
PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "a loop": lambda m: shard_map(m(loop))(X),
    "under jit": lambda m: jax.jit(shard_map(m(loop)))(X),
    "without checks": lambda m: jax.grad(lambda x: shard_map(m(scanned), check_vma=False)(x).sum())(X),
    "a shared argument": lambda m: shard_map(lambda x, w: m(lambda v, w: loop(v) * w, (0, None))(x, w), BOTH)(X, W),
    "a closure": lambda m: shard_map(lambda x, w: m(lambda v: loop(v) * w)(x), BOTH)(X, W),
    "uniform results": lambda m: shard_map(m(lambda v: (loop(v), jnp.ones(2))))(X),
    "a sum over the mesh inside": lambda m: shard_map(m(lambda v: loop(v) / lax.psum(v, "d")))(X),
    "a sum over the mesh after": lambda m: shard_map(lambda x: lax.psum(m(loop)(x), "d"), P("d"), P())(X),
    "an index of the mesh": lambda m: shard_map(m(lambda v: loop(v) + lax.axis_index("d")))(X),
    "nested": lambda m: shard_map(m(m(loop)))(X.reshape(4, 4)),
    "nested, each with each": lambda m: shard_map(
        m(m(lambda a, b: loop(a) * b, (0, None)), (None, 0)), BOTH, P(None, "d"))(X, jnp.arange(3.0)),
    "a part for XLA": lambda m: shard_map(m(lambda v: loop(jnp.fft.fft(v).real) + v.sum()))(X.reshape(4, 4)),
    "jvp": lambda m: jax.jvp(shard_map(m(loop)), (X,), (X,)),
    "grad": lambda m: jax.jit(jax.grad(lambda x: shard_map(m(scanned))(x).sum()))(X),
    "grad of a shared argument": lambda m: jax.grad(lambda w: shard_map(
        lambda x, w: m(lambda v, w: jnp.sin(v * w), (0, None))(x, w), BOTH)(X, w).sum())(W),
    "grad of a closure": lambda m: jax.grad(lambda w: shard_map(
        lambda x, w: m(lambda v: jnp.sin(v * w))(x), BOTH)(X, w).sum())(W),
    "grad through a sum over the mesh": lambda m: jax.grad(lambda w: shard_map(
        lambda x, w: lax.psum(m(lambda v, w: jnp.sin(v * w), (0, None))(x, w).sum(), "d"), BOTH, P())(X, w))(W),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_inside_shard_map(program: Callable[[Any], Any]) -> None:
    got, want = program(lanax.vmap), program(jax.vmap)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-5)


def test_an_equal_program_outside_is_another() -> None:
    """What was compiled inside holds types that mean nothing outside."""
    def fun(v: Any) -> Any:
        return lax.while_loop(lambda u: u.sum() < 30, lambda u: u * 1.5, jnp.fft.fft(v).real + 1)

    inside = shard_map(lanax.vmap(fun))(X.reshape(4, 4))
    np.testing.assert_allclose(lanax.vmap(fun)(X.reshape(4, 4)), inside, rtol=1e-6)


def test_a_result_varies_with_the_index_of_a_branch() -> None:
    """Though the type of `cond` itself does not say so."""
    seen = []

    def local(x: Any, w: Any) -> Any:
        out = lanax.vmap(lambda v, w: lax.cond(v > 1, jnp.sin, lambda u: 2 * u, w), (0, None))(x, w)
        seen.append(jax.typeof(out).mat.varying)
        return out

    for wrap in (lambda f: f, jax.jit):
        wrap(shard_map(local, BOTH))(X, W)
    assert seen == [frozenset({"d"})] * 2
