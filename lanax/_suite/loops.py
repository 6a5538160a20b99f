"""Loops whose trip count the data decide: escape counts, Newton, Collatz. Plain JAX; knows nothing of lanax."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lanax._suite.program import Case

ITERATIONS = 256
#: The first starting value whose Collatz path leaves int32 is this one.
COLLATZ_LIMIT = 113_383


def escape_count(cx: jax.Array, cy: jax.Array) -> jax.Array:
    """Iterations after which `z -> z*z + c` has left the circle of radius 2, at most `ITERATIONS`."""

    def inside(state):
        x, y, count = state
        return (x * x + y * y <= 4.0) & (count < ITERATIONS)

    def step(state):
        x, y, count = state
        return x * x - y * y + cx, 2.0 * x * y + cy, count + 1

    return lax.while_loop(inside, step, (0.0 * cx, 0.0 * cy, jnp.int32(0)))[2]


def mandelbrot(batch: int) -> Case:
    """A square picture of about `batch` pixels, one example for each pixel."""
    side = round(batch**0.5)
    x = np.linspace(-2.0, 0.5, side, dtype=np.float32)
    y = np.linspace(-1.25, 1.25, side, dtype=np.float32)
    cx, cy = np.meshgrid(x, y)
    return Case(escape_count, 0, (cx.ravel(), cy.ravel()))


def eccentric_anomaly(mean: jax.Array, eccentricity: jax.Array) -> jax.Array:
    """Solves Kepler's equation `E - e sin(E) = M` by Newton's method."""

    def unsolved(state):
        _, change, count = state
        return (jnp.abs(change) > 1e-5) & (count < 50)

    def newton(state):
        e, _, count = state
        change = (e - eccentricity * jnp.sin(e) - mean) / (1.0 - eccentricity * jnp.cos(e))
        return e - change, change, count + 1

    start = mean + 0.85 * eccentricity * jnp.sign(jnp.sin(mean))
    return lax.while_loop(unsolved, newton, (start, jnp.float32(jnp.inf), 0))[0]


def kepler(batch: int) -> Case:
    """Orbits at random points, eccentricities from 0 to 0.99."""
    rng = np.random.default_rng(1)
    mean = rng.uniform(0.0, 2.0 * np.pi, batch).astype(np.float32)
    return Case(eccentric_anomaly, 0, (mean, rng.uniform(0.0, 0.99, batch).astype(np.float32)))


def collatz_length(start: jax.Array) -> jax.Array:
    """Steps of the Collatz path from `start` down to 1."""

    def above_one(state):
        return state[0] > 1

    def step(state):
        n, length = state
        return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), length + 1

    return lax.while_loop(above_one, step, (start, jnp.int32(0)))[1]


def collatz(batch: int) -> Case:
    """Starting values at random, all of whose paths stay within int32."""
    return Case(collatz_length, 0, (np.random.default_rng(2).integers(1, COLLATZ_LIMIT, batch, dtype=np.int32),))
