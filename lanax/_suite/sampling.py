"""Random numbers and order, one stream for each example. Plain JAX; knows nothing of lanax."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lanax._suite.program import Case


def _samples(batch: int, size: int) -> tuple[np.ndarray]:
    """Normal numbers, (batch, size)."""
    return (np.random.default_rng(50).standard_normal((batch, size), dtype=np.float32),)


def sort32(batch: int) -> Case:
    """Sorts of 32 numbers."""
    return Case(jnp.sort, 0, _samples(batch, 32))


def median101(batch: int) -> Case:
    """Medians of 101 numbers."""
    return Case(jnp.median, 0, _samples(batch, 101))


def deviation1000(batch: int) -> Case:
    """Standard deviations of 1000 numbers."""
    return Case(jnp.std, 0, _samples(batch, 1000))


def asian_payoff(key: jax.Array, volatility: jax.Array) -> jax.Array:
    """What an Asian call pays on one path of 252 days."""

    def day(state, key):
        price, total = state
        price = price * jnp.exp(-volatility**2 / 504 + volatility * jax.random.normal(key) / 252**0.5)
        return (price, total + price), None

    (_, total), _ = lax.scan(day, (jnp.float32(100.0), jnp.float32(0.0)), jax.random.split(key, 252))
    return jnp.maximum(total / 252 - 100.0, 0.0)


def monte_carlo(batch: int) -> Case:
    """One path for each key."""
    keys = jax.random.split(jax.random.key(0, impl="threefry2x32"), batch)
    return Case(asian_payoff, 0, (keys, np.random.default_rng(51).uniform(0.1, 0.4, batch).astype(np.float32)))
