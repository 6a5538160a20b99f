"""Derivatives, of one function for each example. Plain JAX; knows nothing of lanax."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lanax._suite.arrays import call_price
from lanax._suite.odes import lorenz
from lanax._suite.program import Case

#: Steps that the bounded solver may take.
STEPS = 64


def bounded_solve(y0: jax.Array, rho: jax.Array, end: float = 0.5, tolerance: float = 1e-3) -> jax.Array:
    """The Lorenz system at `end`, by adaptive Heun-Euler steps in a scan, which reverse mode can go through."""

    def step(state, _):
        t, y, h = state
        h = jnp.minimum(h, end - t)
        k1 = lorenz(y, rho)
        k2 = lorenz(y + h * k1, rho)
        error = jnp.max(jnp.abs(0.5 * h * (k2 - k1))) / tolerance + 1e-6
        accepted = error <= 1.0
        t, y = jnp.where(accepted, t + h, t), jnp.where(accepted, y + 0.5 * h * (k1 + k2), y)
        return (t, y, jnp.maximum(h, 1e-3) * jnp.clip(0.9 / jnp.sqrt(lax.stop_gradient(error)), 0.2, 5.0)), None

    return lax.scan(step, (jnp.float32(0.0), y0, jnp.float32(0.01)), length=STEPS)[0][1]


def ode_gradient(batch: int) -> Case:
    """The gradient of a squared distance at the end, with respect to start and parameter."""

    def loss(y0, rho, target):
        return jnp.sum((bounded_solve(y0, rho) - target) ** 2)

    rng = np.random.default_rng(60)
    y0 = (1.0 + 0.5 * rng.standard_normal((batch, 3))).astype(np.float32)
    target = rng.standard_normal((batch, 3)).astype(np.float32)
    return Case(jax.grad(loss, (0, 1)), 0, (y0, rng.uniform(0.5, 28.0, batch).astype(np.float32), target))


def greeks(batch: int) -> Case:
    """Delta, dual delta, theta, rho and vega of a call."""
    rng = np.random.default_rng(61)
    bounds = ((80.0, 120.0), (80.0, 120.0), (0.1, 2.0), (0.0, 0.05), (0.1, 0.5))
    args = tuple(rng.uniform(low, high, batch).astype(np.float32) for low, high in bounds)
    return Case(jax.grad(lambda *a: call_price(*a)[0], range(5)), 0, args)


def log_likelihood(params: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """Of 16 observations under a mixture of two lines with Gaussian noise: six parameters."""
    slope1, offset1, slope2, offset2, log_scale, logit = params
    scale = jnp.exp(log_scale)

    def component(slope, offset):
        return -0.5 * ((y - slope * x - offset) / scale) ** 2 - log_scale

    weight = jax.nn.log_sigmoid(logit), jax.nn.log_sigmoid(-logit)
    return jnp.sum(jnp.logaddexp(weight[0] + component(slope1, offset1), weight[1] + component(slope2, offset2)))


def hessian(batch: int) -> Case:
    """The 6 x 6 Hessian of a likelihood for each data set."""
    rng = np.random.default_rng(62)
    x, noise = (rng.standard_normal((batch, 16), dtype=np.float32) for _ in range(2))
    params = np.array([1.0, 0.0, -1.0, 0.5, -0.5, 0.2], np.float32) + 0.1 * rng.standard_normal((batch, 6))
    y = np.where(rng.random((batch, 16)) < 0.5, x, 0.5 - x) + 0.3 * noise
    return Case(jax.hessian(log_likelihood), 0, (params.astype(np.float32), x, y.astype(np.float32)))


def energy(places: jax.Array) -> jax.Array:
    """The energy of points (n, 3) that repel each other."""
    distances = jnp.sum((places[:, None] - places) ** 2, 2)
    return 0.5 * jnp.sum(1 / jnp.sqrt(distances + 0.1))


def forces64(batch: int) -> Case:
    """The forces on 64 points."""
    return Case(jax.grad(energy), 0, (np.random.default_rng(46).standard_normal((batch, 64, 3), dtype=np.float32),))
