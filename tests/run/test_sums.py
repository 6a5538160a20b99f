"""What an unmapped argument gets in reverse mode is summed over the batch inside the kernel, in an order of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanax
from lanax._lowering.summed import sum_block

Mapper = Callable[..., Any]


@pytest.fixture(autouse=True)
def _64_bits() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def _program(x: jax.Array, w: jax.Array, c: jax.Array) -> jax.Array:
    def step(h: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        h = jnp.sin(w @ h + c)
        return h, h.sum()

    h, sums = jax.lax.scan(step, x, None, length=4)
    return h @ h + sums[1]


def _gradients(mapper: Mapper, plan: lanax.Plan | None = None) -> Callable[..., Any]:
    def total(w: jax.Array, c: jax.Array, xs: jax.Array) -> jax.Array:
        mapped = mapper(_program, in_axes=(0, None, None), **({} if plan is None else {"plan": plan}))
        return (mapped(xs, w, c) * jnp.cos(jnp.arange(len(xs), dtype=xs.dtype))).sum()

    return jax.jit(jax.grad(total, argnums=(0, 1, 2)))


def _arguments(size: int, dtype: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    random = np.random.default_rng(size)
    w, xs = random.standard_normal((3, 3)) / 2, random.standard_normal((size, 3))
    return jnp.asarray(w, dtype), jnp.asarray(0.3, dtype), jnp.asarray(xs, dtype)


def _same_bits(got: Any, want: Any) -> None:
    for x, y in zip(got, want, strict=True):
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


@pytest.mark.parametrize("size", [1, 17, 65, 2050])
def test_bits_do_not_depend_on_lanes_threads_and_chunk(size: int) -> None:
    args = _arguments(size, jnp.float32)
    want = _gradients(lanax.vmap, lanax.Plan(lanes=1, threads=1))(*args)
    for got, expected in zip(want, _gradients(jax.vmap)(*args), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-3)
    plans = [lanax.Plan(lanes=16), lanax.Plan(lanes=64, threads=2), lanax.Plan(chunk=100), lanax.Plan()]
    for plan in plans if size in (17, 2050) else plans[1:2]:
        _same_bits(_gradients(lanax.vmap, plan)(*args), want)


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.bfloat16])
def test_dtypes(dtype: Any) -> None:
    args = _arguments(131, dtype)
    first = _gradients(lanax.vmap, lanax.Plan(route="lanes", lanes=2))(*args)
    _same_bits(_gradients(lanax.vmap, lanax.Plan(route="lanes", lanes=32))(*args), first)
    tolerance = 1e-12 if dtype == jnp.float64 else 0.1
    for got, want in zip(first, _gradients(jax.vmap)(*args), strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(np.asarray(got, float), np.asarray(want, float), rtol=tolerance, atol=10 * tolerance)


def test_a_batch_of_none() -> None:
    args = _arguments(0, jnp.float32)
    _same_bits(_gradients(lanax.vmap)(*args), [np.zeros(x.shape, x.dtype) for x in args])


def test_the_order_of_large_batches() -> None:
    """Groups of one block are added one after another; threads share out whole blocks."""
    size = (1 << 18) + 1037
    assert sum_block(size) == 1024
    xs, p = jnp.linspace(0.0, 1.0, size), jnp.linspace(0.1, 0.9, 3)

    def total(p: jax.Array, plan: lanax.Plan) -> jax.Array:
        return lanax.vmap(lambda x, p: jnp.sin(x * p[0]) * p[1], in_axes=(0, None), plan=plan)(xs, p).sum()

    runs = [jax.jit(jax.grad(total), static_argnums=1)(p, lanax.Plan(route="lanes", lanes=lanes, threads=threads))
            for lanes, threads in ((8, 1), (32, 2))]
    _same_bits(runs[:1], runs[1:])
    t, q = np.linspace(0.0, 1.0, size), np.linspace(0.1, 0.9, 3)
    want = [(t * np.cos(t * q[0]) * q[1]).sum(), np.sin(t * q[0]).sum(), 0.0]
    np.testing.assert_allclose(runs[0], want, rtol=1e-5)


def test_complex_numbers() -> None:
    z, p = jnp.exp(1j * jnp.arange(70.0)), jnp.asarray([0.3 + 0.2j, 1.0 - 0.5j])

    def total(mapper: Mapper) -> Any:
        return jax.jit(jax.grad(lambda p: jnp.abs(mapper(lambda z, p: jnp.exp(p[0] * z) * p[1] + jnp.sin(z), in_axes=(
            0, None))(z, p)).sum()))(p)

    np.testing.assert_allclose(total(lanax.vmap), total(jax.vmap), rtol=1e-5)


def test_a_value_that_is_both_summed_and_given() -> None:
    def total(mapper: Mapper) -> Any:
        xs, y = jnp.arange(37.0), jnp.asarray(0.5)
        return jax.grad(lambda x, y: mapper(lambda x, y: jnp.tanh(x + y) ** 2, in_axes=(0, None))(x, y).sum(), (0, 1))(
            xs, y)

    for got, want in zip(total(lanax.vmap), total(jax.vmap), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-12)


def _loss(mapper: Mapper, p: jax.Array, xs: jax.Array) -> jax.Array:
    return mapper(lambda x, p: jnp.exp(jnp.sin(x * p[0]) * p[1]), in_axes=(0, None))(xs, p).sum()


def test_derivatives_of_sums() -> None:
    p, xs = jnp.asarray([0.7, 0.4]), jnp.linspace(-1.0, 1.0, 77)
    for derivative in (jax.hessian, lambda f: jax.jacrev(jax.grad(f))):
        got, want = (derivative(lambda p, mapper=mapper: _loss(mapper, p, xs))(p) for mapper in (lanax.vmap, jax.vmap))
        np.testing.assert_allclose(got, want, rtol=1e-4)


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)])
def test_sums_inside_another_vmap(axes: tuple[int | None, int | None]) -> None:
    ps = jnp.linspace(0.2, 0.9, 10).reshape(5, 2)
    xs = jnp.linspace(-1.0, 1.0, 5 * 19).reshape(5, 19)
    args = [x if a == 0 else x[0] for x, a in zip((ps, xs), axes, strict=True)]
    want = jax.vmap(jax.grad(lambda p, x: _loss(jax.vmap, p, x)), in_axes=axes)(*args)
    for outer in (lanax.vmap, jax.vmap):
        got = outer(jax.grad(lambda p, x: _loss(lanax.vmap, p, x)), in_axes=axes)(*args)
        np.testing.assert_allclose(got, want, rtol=1e-4)


def test_nothing_of_the_whole_batch_is_kept() -> None:
    w, c, xs = _arguments(1 << 15, jnp.float32)
    compiled = jax.jit(lambda *args: _gradients(lanax.vmap)(*args)[:2]).lower(w, c, xs).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < xs.nbytes + (1 << 18)  # one cotangent for each example


def test_large_products_are_one_matrix_product() -> None:
    """The gradient of a large matrix: no array of an example's products for the whole batch."""
    xs, w = jnp.linspace(-1.0, 1.0, 300 * 40).reshape(300, 40), jnp.linspace(-0.1, 0.1, 50 * 40).reshape(50, 40)

    def gradient(mapper: Mapper) -> Any:
        return jax.jit(jax.grad(lambda w: mapper(lambda x, w: jnp.sin(w @ x).sum(), in_axes=(0, None))(xs, w).sum()))

    np.testing.assert_allclose(gradient(lanax.vmap)(w), gradient(jax.vmap)(w), rtol=1e-4, atol=1e-4)
    assert gradient(lanax.vmap).lower(w).compile().memory_analysis().temp_size_in_bytes < 4 * w.size * 100


@jax.custom_vjp
def scaled(p: Any, x: Any) -> Any:
    return p * x


def _uneven_cotangents(kept: Any, g: Any) -> Any:
    """A loop that is laid out trip by trip, and one that lanes leave apart."""
    p, x = kept
    y = lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 1.25 + s[0]), (0, x))[1]
    y = lax.while_loop(lambda y: y < 1e6, lambda y: y * 1.001 + jnp.sin(y) ** 2 + jnp.cos(y) ** 2, y)
    return g * y, g * p


scaled.defvjp(lambda p, x: (p * x, (p, x)), _uneven_cotangents)


def test_programs_that_refill_lanes_once_they_are_simplified() -> None:
    x = np.random.default_rng(0).uniform(0.1, 9.0, 300).astype(np.float32)

    def loss(p: Any, mapper: Any) -> Any:
        return mapper(scaled, in_axes=(None, 0))(p, x).sum()

    got, want = (jax.grad(loss)(jnp.float32(1.5), mapper) for mapper in (lanax.vmap, jax.vmap))
    np.testing.assert_allclose(got, want, rtol=1e-4)
