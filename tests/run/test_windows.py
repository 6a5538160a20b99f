"""Pooling and convolution where the table of cases does not reach: order of elements, small networks, limits."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import loop, run_kernel
from jax import lax
from jax._src.lax import windowed_reductions

import lanax


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(4, 5), (9, 12)])
def test_select_and_scatter_by_functions(shape: tuple[int, int]) -> None:
    """JAX has no batching rule for it: the loop over examples alone is the truth."""
    def fun(x: Any, source: Any) -> Any:
        return windowed_reductions._select_and_scatter(
            x, lambda a, b: a > b, (3, 2), (2, 1), ((1, 1), (0, 0)), source, np.float32(0.5), lambda a, b: a * 2 + b)

    rng = np.random.default_rng(1)
    x = rng.integers(-2, 3, (11, *shape)).astype(np.float32)
    source = numbers(2, 11, (shape[0] - 1) // 2 + 1, shape[1] - 1)
    for lanes in (1, 8):
        np.testing.assert_array_equal(run_kernel(fun, [x, source], lanes=lanes)[0], loop(fun, [x, source])[0])


@pytest.mark.parametrize("seed", range(4))
def test_elements_are_visited_in_xlas_order(seed: int) -> None:
    """A function that tells every order from every other, over random windows."""
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    shape, window = rng.integers(2, 7, rank).tolist(), rng.integers(1, 4, rank).tolist()
    strides, padding = rng.integers(1, 3, rank).tolist(), rng.integers(0, 3, (rank, 2)).tolist()

    def fun(x: Any) -> Any:
        return lax.reduce_window(x, np.float32(1), lambda a, b: a * 0.5 + b, window, strides, padding)

    x = rng.integers(-9, 10, (5, *shape)).astype(np.float32)
    if 0 in jax.eval_shape(fun, x[0]).shape:
        pytest.skip("no window fits")
    np.testing.assert_array_equal(run_kernel(fun, [x])[0], loop(fun, [x])[0])


def network(weights: Any, image: Any) -> Any:
    """Two convolutions, a pool after each, and a product."""
    x = image[None, None]
    x = jnp.tanh(lax.conv(x, weights["first"], (1, 1), "SAME"))
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    x = jax.nn.relu(lax.conv(x, weights["second"], (1, 1), "VALID"))
    x = lax.reduce_window(x, 0.0, lax.add, (1, 1, 2, 2), (1, 1, 2, 2), "VALID") / 4
    return jax.nn.log_softmax(x.reshape(-1) @ weights["last"])


WEIGHTS = {"first": numbers(3, 2, 1, 3, 3), "second": numbers(4, 3, 2, 3, 3), "last": numbers(5, 12, 4)}


def test_a_small_network() -> None:
    images = numbers(6, 9, 12, 12)
    plan = lanax.Plan(route="lanes")
    mapped = lanax.vmap(lambda image: network(WEIGHTS, image), plan=plan)
    want = jax.vmap(lambda image: network(WEIGHTS, image))(images)
    np.testing.assert_allclose(mapped(images), want, rtol=1e-4, atol=1e-5)
    assert not lanax.explain(mapped, images).misses


def test_a_network_for_each_example() -> None:
    """Weights of their own, and the gradients of both weights and images."""
    rng = np.random.default_rng(7)
    weights = {key: (w + 0.1 * rng.normal(size=(5, *w.shape))).astype(np.float32) for key, w in WEIGHTS.items()}
    images = numbers(8, 5, 12, 12)
    step = jax.grad(lambda w, image: -network(w, image)[1], (0, 1))
    mapped = lanax.vmap(step, plan=lanax.Plan(route="lanes"))
    for x, y in zip(jax.tree.leaves(mapped(weights, images)), jax.tree.leaves(jax.vmap(step)(weights, images)),
                    strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4)
    assert not lanax.explain(mapped, weights, images).misses


def test_a_large_convolution_goes_to_xla() -> None:
    image, kernel = numbers(9, 2, 1, 16, 24, 24), numbers(10, 16, 16, 3, 3)
    mapped = lanax.vmap(lambda x: lax.conv(x, kernel, (1, 1), "SAME"))
    np.testing.assert_allclose(mapped(image), jax.vmap(lambda x: lax.conv(x, kernel, (1, 1), "SAME"))(image), rtol=1e-4,
                               atol=1e-4)
    assert "XLA" in str(lanax.explain(mapped, image).misses[0])


def test_a_nan_stays_in_its_example() -> None:
    images = numbers(11, 9, 12, 12)
    clean = lanax.vmap(lambda image: network(WEIGHTS, image))(images)
    images[4, 3, 3] = np.nan
    dirty = lanax.vmap(lambda image: network(WEIGHTS, image))(images)
    assert np.isnan(dirty[4]).all()
    others = np.arange(9) != 4
    np.testing.assert_array_equal(np.asarray(dirty)[others], np.asarray(clean)[others])
