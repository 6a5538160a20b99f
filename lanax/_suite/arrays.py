"""Programs that XLA already runs well: elementwise chains and a matrix product. Plain JAX; knows nothing of lanax."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm

from lanax._suite.program import Case


def damped_sine(x: jax.Array) -> jax.Array:
    """Three times `x -> sin(x) exp(-x)`."""
    for _ in range(3):
        x = jnp.sin(x) * jnp.exp(-x)
    return x


def sinexp(batch: int) -> Case:
    """Numbers from 0 to 10."""
    return Case(damped_sine, 0, (np.random.default_rng(6).uniform(0.0, 10.0, batch).astype(np.float32),))


def call_price(spot: jax.Array, strike: jax.Array, years: jax.Array, rate: jax.Array, volatility: jax.Array):
    """Black-Scholes prices of a European call and put."""
    deviation = volatility * jnp.sqrt(years)
    d1 = (jnp.log(spot / strike) + (rate + 0.5 * volatility**2) * years) / deviation
    d2 = d1 - deviation
    discounted = strike * jnp.exp(-rate * years)
    call = spot * norm.cdf(d1) - discounted * norm.cdf(d2)
    return call, call - spot + discounted


def black_scholes(batch: int) -> Case:
    """Options around the money."""
    rng = np.random.default_rng(7)
    bounds = ((80.0, 120.0), (80.0, 120.0), (0.1, 2.0), (0.0, 0.05), (0.1, 0.5))
    return Case(call_price, 0, tuple(rng.uniform(low, high, batch).astype(np.float32) for low, high in bounds))


def saxpy(batch: int) -> Case:
    """`a x + y` with the same `a` for every example."""
    rng = np.random.default_rng(8)
    x, y = (rng.standard_normal(batch, dtype=np.float32) for _ in range(2))
    return Case(lambda a, x, y: a * x + y, (None, 0, 0), (np.float32(2.5), x, y))


def softmax100(batch: int) -> Case:
    """Scores of 100 classes."""
    return Case(jax.nn.softmax, 0, (np.random.default_rng(45).standard_normal((batch, 100), dtype=np.float32),))


def classify(params: list[tuple[jax.Array, jax.Array]], image: jax.Array) -> jax.Array:
    """Scores of the classes, by a perceptron with hidden layers."""
    *hidden, (weights, bias) = params
    for w, b in hidden:
        image = jax.nn.relu(image @ w + b)
    return image @ weights + bias


def mlp(batch: int) -> Case:
    """Images through a 784-128-10 perceptron; the weights are the same for every example."""
    rng = np.random.default_rng(9)
    sizes = (784, 128, 10)
    params = [
        ((rng.standard_normal((n, m)) / n**0.5).astype(np.float32), np.zeros(m, np.float32))
        for n, m in itertools.pairwise(sizes)
    ]
    return Case(classify, (None, 0), (params, rng.random((batch, 784), dtype=np.float32)))
