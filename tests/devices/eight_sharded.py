"""A mapped call of operands that are split over devices: each device runs its shard, and nothing is moved."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import lanax

AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit
COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")
W = jnp.float32(0.3)


def grow(v: Any, w: Any = W) -> Any:
    """A loop that each example leaves at its own time."""
    return lax.while_loop(lambda u: (u * u).sum() < 90, lambda u: u * 1.5 + 0.1 * w, v).sum()


one = jax.jit(grow)  # of one example


def mesh_of(shape: tuple[int, ...], kind: AxisType) -> Any:
    names = ("x", "y")[:len(shape)]
    return jax.make_mesh(shape, names, axis_types=(kind,) * len(shape))


def numbers(*shape: int) -> Any:
    return jnp.linspace(0.1, 3.0, int(np.prod(shape)), dtype=jnp.float32).reshape(shape)


def collectives(fun: Callable[..., Any], *args: Any) -> list[str]:
    text = jax.jit(fun).lower(*args).compile().as_text()
    assert "custom-call" in text
    return [name for name in COLLECTIVES if name in text]


CASES = [
    ((8,), P("x"), 0),
    ((8,), P(None, "x"), 1),
    ((4, 2), P("x"), 0),
    ((4, 2), P(("x", "y")), 0),
    ((4, 2), P(None, ("x", "y")), 1),
]


@pytest.mark.parametrize(("kind", "case"), [*itertools.product((AUTO, EXPLICIT), CASES)], ids=str)
def test_each_device_runs_its_shard(kind, case):
    shape, spec, axis = case
    mesh = mesh_of(shape, kind)
    values = numbers(64, 3) if axis == 0 else numbers(3, 64)
    expected = np.array([one(v) for v in np.moveaxis(np.asarray(values), axis, 0)])
    mapped = lanax.vmap(grow, (axis, None))
    with jax.set_mesh(mesh):
        x = jax.device_put(values, NamedSharding(mesh, spec))
        assert collectives(mapped, x, W) == []
        for out in (jax.jit(mapped)(x, W), mapped(x, W)):
            np.testing.assert_allclose(out, expected, rtol=1e-5)
            assert out.sharding.spec == P(spec[axis])
            assert len({s.device for s in out.addressable_shards}) == 8


@pytest.mark.parametrize("kind", [AUTO, EXPLICIT], ids=str)
def test_the_bits_are_those_of_one_device(kind):
    mesh = mesh_of((8,), kind)
    values = numbers(800, 3)
    alone = jax.jit(lanax.vmap(grow))(values)
    with jax.set_mesh(mesh):
        out = jax.jit(lanax.vmap(grow))(jax.device_put(values, NamedSharding(mesh, P("x"))))
    np.testing.assert_array_equal(np.asarray(out), np.asarray(alone))


def test_unmapped_operands_and_out_axes():
    mesh = mesh_of((8,), AUTO)
    x = jax.device_put(numbers(64, 3), NamedSharding(mesh, P("x")))
    m = numbers(5, 3)
    mapped = lanax.vmap(lambda v, m: (m @ v * grow(v), v), (0, None), (1, 0))
    assert collectives(mapped, x, m) == []
    first, second = jax.jit(mapped)(x, m)
    assert first.sharding.spec == P(None, "x")
    np.testing.assert_allclose(first, jax.vmap(lambda v: m @ v * grow(v), 0, 1)(np.asarray(x)), rtol=1e-5)
    np.testing.assert_array_equal(second, x)


def test_a_check_that_fails_raises_on_every_device():
    """JAX has one device raise, for which the others wait; XLA ends the process then."""
    import equinox as eqx

    mesh = mesh_of((4, 2), AUTO)

    def checked(v):
        v = eqx.error_if(v, v.sum() > 100, "too big")
        return grow(eqx.branched_error_if(v, v[0] < 0, jnp.int32(v[1] < 0), ["one below", "both below"]))

    values = np.asarray(numbers(64, 3))
    mapped = jax.jit(lambda x: (lanax.vmap(checked)(x), lanax.vmap(checked)(x).sum()))
    for row, word in ((None, ""), ([0.0, 0.0, 1000.0], "too big"), ([-0.1, -0.1, 9.0], "both below"), (None, "")):
        some = values.copy()
        some[5] = values[5] if row is None else row
        x = jax.device_put(some, NamedSharding(mesh, P("x")))
        if row is None:
            np.testing.assert_allclose(jax.block_until_ready(mapped(x))[0], [one(v) for v in values], rtol=1e-5)
            continue
        with pytest.raises(Exception, match=word):
            jax.block_until_ready(mapped(x))


def test_one_function_on_several_meshes():
    """A program that was traced for one mesh is not taken for another, nor for arrays on none."""
    values = numbers(64, 3)
    smooth = lanax.vmap(lambda v: jnp.sin(v * v).sum())
    want = smooth(values)
    four = jax.make_mesh((4,), ("z",), axis_types=(EXPLICIT,), devices=jax.devices()[:4])
    for mesh in (mesh_of((8,), EXPLICIT), four):
        x = jax.device_put(values, NamedSharding(mesh, P(*mesh.axis_names)))
        np.testing.assert_array_equal(smooth(x), want)
        with jax.set_mesh(mesh):
            jax.block_until_ready(jax.jit(jax.grad(lambda x: smooth(x).sum()))(x))
    got = jax.grad(lambda x: smooth(x).sum())(values)
    np.testing.assert_allclose(got, 2 * values * jnp.cos(values * values), rtol=1e-5)


def test_keys_are_split_too():
    mesh = mesh_of((8,), AUTO)
    keys = jax.random.split(jax.random.key(0), 64)
    mapped = lanax.vmap(lambda k: jax.random.normal(k, (3,)))
    expected = mapped(keys)
    keys = jax.device_put(keys, NamedSharding(mesh, P("x")))
    assert collectives(mapped, keys) == []
    np.testing.assert_array_equal(jax.jit(mapped)(keys), expected)


def test_an_axis_inside_the_example_is_gathered():
    mesh = mesh_of((4, 2), AUTO)
    values = numbers(64, 8)
    x = jax.device_put(values, NamedSharding(mesh, P("x", "y")))
    out = jax.jit(lanax.vmap(grow))(x)
    np.testing.assert_allclose(out, [one(v) for v in values], rtol=1e-5)
    assert out.sharding.spec == P("x")


def test_a_gradient():
    mesh = mesh_of((8,), AUTO)
    values = numbers(64, 3)

    def loss(w, x):
        return lanax.vmap(lambda v, w: lax.fori_loop(0, 3, lambda _, u: jnp.sin(u * w), v).sum(), (0, None))(x, w).sum()

    expected = jax.grad(loss, (0, 1))(W, values)
    x = jax.device_put(values, NamedSharding(mesh, P("x")))
    # Only the sum of the shared argument's cotangents crosses devices.
    assert set(collectives(jax.grad(loss, (0, 1)), W, x)) <= {"all-reduce"}
    got = jax.jit(jax.grad(loss, (0, 1)))(W, x)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize("check", [True, False])
def test_inside_shard_map(check):
    mesh = mesh_of((8,), AUTO)
    values = numbers(64, 3)
    mapped = jax.shard_map(lanax.vmap(grow), mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=check)
    assert collectives(mapped, values) == []
    np.testing.assert_allclose(jax.jit(mapped)(values), [one(v) for v in values], rtol=1e-5)


@pytest.mark.parametrize("check", [True, False])
def test_loops_and_branches_that_start_from_constants_inside_shard_map(check):
    """Where JAX checks over which axes values vary, it refuses these: a constant varies over none."""
    mesh = mesh_of((8,), AUTO)

    def fun(v, w):
        total = lax.fori_loop(0, 3, lambda i, c: c + v.sum() * w, 0.0)
        count, _ = lax.scan(lambda c, a: (c + jnp.sin(a) * total, None), 0.0, v)
        some = lax.cond(v[0] > 1, lambda: v * w, lambda: jnp.zeros(3))
        return total, count, some, lax.switch(v[1].astype(int), [lambda: 0.0, lambda: w, lambda: v.sum()])

    def square(outs):
        return sum(jnp.sum(out**2) for out in outs)

    def local(x, w):
        outs = lanax.vmap(fun, (0, None))(x, w)
        return outs, lax.psum(square(outs), "x")

    mapped = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(P("x"), P()), out_specs=(P("x"), P()), check_vma=check))
    values = numbers(64, 3)
    for got, want in zip(mapped(values, W)[0], jax.vmap(fun, (0, None))(values, W), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)
    if check:  # without, JAX's derivative of a sum over devices is another one
        got = jax.jit(jax.grad(lambda x, w: mapped(x, w)[1], (0, 1)))(values, W)
        want = jax.grad(lambda x, w: square(jax.vmap(fun, (0, None))(x, w)), (0, 1))(values, W)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3)


def test_pmap_after_shard_map():
    """A program that was traced inside one is not taken for the other."""
    mapped = lanax.vmap(lambda v, w: (jnp.arange(3.0) * w, v * 2), (0, None))
    values = numbers(64, 3)
    for out in (jax.shard_map(mapped, mesh=mesh_of((8,), AUTO), in_specs=(P("x"), P()), out_specs=P("x"))(values, W),
                jax.pmap(mapped, in_axes=(0, None))(values.reshape(8, 8, 3), W)):
        np.testing.assert_allclose(np.reshape(out[0], (64, 3)), np.tile(np.arange(3) * W, (64, 1)))
        np.testing.assert_array_equal(np.reshape(out[1], (64, 3)), values * 2)


def test_a_part_for_xla():
    mesh = mesh_of((8,), AUTO)
    values = numbers(64, 300)
    mapped = lanax.vmap(lambda v: grow(jnp.abs(jnp.fft.fft(v))[:3]) * 2)
    expected = mapped(values)
    out = jax.jit(mapped)(jax.device_put(values, NamedSharding(mesh, P("x"))))
    np.testing.assert_allclose(out, expected, rtol=1e-4)
    assert out.sharding.spec == P("x")


def test_derivatives_by_replicated_arrays_inside_shard_map():
    """One kernel, and one sum over the devices of what it has summed."""
    mesh = mesh_of((8,), AUTO)
    values, w = numbers(64, 3), numbers(3)

    def fun(v, w):
        u = lax.fori_loop(0, 3, lambda _, u: jnp.sin(u * w) + v, v)
        return jax.nn.relu(u - 0.3).sum() + jax.nn.softplus(w).sum()

    def total(mapper, closure):
        def local(x, w):
            out = mapper(lambda v: fun(v, w))(x) if closure else mapper(fun, (0, None))(x, w)
            return lax.psum(jnp.sum(out**2), "x")

        return lambda inside, *args: jax.shard_map(lambda x, w: inside(local)(x, w), mesh=mesh, in_specs=(P("x"), P()),
                                                   out_specs=P())(*args)

    for closure in (False, True):
        for derive in (lambda f: jax.grad(f, 1), lambda f: jax.hessian(f, 1)):
            got, want = (jax.jit(total(mapper, closure), static_argnums=0)(derive, values, w)
                         for mapper in (lanax.vmap, jax.vmap))
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)
    text = str(jax.make_jaxpr(lambda x, w: total(lanax.vmap, True)(lambda f: jax.grad(f, 1), x, w))(values, w))
    assert (text.count("psum"), text.count("lanax_batched_call"), text.count("scan")) == (2, 2, 0)


@pytest.mark.parametrize("kind", [AUTO, EXPLICIT])
def test_a_gradient_under_a_mesh_that_is_set(kind):
    mesh = mesh_of((8,), kind)
    w, values = jnp.asarray([0.3, 0.5], jnp.float32), numbers(64, 3)

    def loss(mapper, w, x):
        return mapper(lambda v, w: lax.fori_loop(0, 3, lambda _, u: jnp.sin(u * w[0] + w[1]), v).sum(), (0, None))(
            x, w).sum()

    want = jax.grad(lambda w: loss(jax.vmap, w, values))(w)
    with jax.set_mesh(mesh):
        x = jax.device_put(values, NamedSharding(mesh, P("x")))
        got = jax.jit(jax.grad(lambda w, x: loss(lanax.vmap, w, x)))(w, x)
    np.testing.assert_allclose(got, want, rtol=1e-5)
