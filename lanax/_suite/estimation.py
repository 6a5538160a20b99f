"""Filters, fits and inverse problems, one for each example. Plain JAX; knows nothing of lanax."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lanax._suite.program import Case

#: Position and speed in a plane, one unit of time between observations of the position.
TRANSITION = np.array([[1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 1]], np.float32)
OBSERVATION = np.eye(2, 4, dtype=np.float32)


def track(observations: jax.Array, noise: jax.Array | float = 0.1) -> tuple[jax.Array, jax.Array]:
    """The last state and the log-likelihood of observations (steps, 2), by a Kalman filter of four states.

    `noise` is the variance of an observation."""

    def step(state, z):
        x, p = state
        x, p = TRANSITION @ x, TRANSITION @ p @ TRANSITION.T + 0.01 * jnp.eye(4)
        residual = z - OBSERVATION @ x
        s = OBSERVATION @ p @ OBSERVATION.T + noise * jnp.eye(2)
        gain = jnp.linalg.solve(s, OBSERVATION @ p).T
        likelihood = -0.5 * (residual @ jnp.linalg.solve(s, residual) + jnp.log(jnp.linalg.det(s)))
        return (x + gain @ residual, p - gain @ OBSERVATION @ p), likelihood

    (x, _), likelihoods = lax.scan(step, (jnp.zeros(4), jnp.eye(4)), observations)
    return x, likelihoods.sum()


def walks(batch: int) -> np.ndarray:
    """Random walks, observed a hundred times, (batch, 100, 2)."""
    return np.cumsum(0.3 * np.random.default_rng(40).standard_normal((batch, 100, 2), dtype=np.float32), axis=1)


def kalman(batch: int) -> Case:
    """Tracks of sensors with different noise: each has its own covariance and gain."""
    noise = np.random.default_rng(42).uniform(0.05, 0.5, batch).astype(np.float32)
    return Case(track, 0, (walks(batch), noise))


def kalman_alike(batch: int) -> Case:
    """Tracks of sensors with the same noise: covariance and gain are those of all, and computed once by any `vmap`."""
    return Case(track, 0, (walks(batch),))


def decay(params: jax.Array, t: jax.Array | np.ndarray) -> jax.Array:
    """`a exp(-b t) + c`."""
    a, b, c = params
    return a * jnp.exp(-b * t) + c


def levenberg_marquardt(residual: Callable[[jax.Array], jax.Array], params: jax.Array, iterations: int) -> jax.Array:
    """The least-squares estimate, by a fixed number of damped Gauss-Newton steps."""

    def step(_, state):
        params, damping = state
        r, jacobian = residual(params), jax.jacfwd(residual)(params)
        normal = jacobian.T @ jacobian
        delta = jnp.linalg.solve(normal + damping * jnp.diag(jnp.diag(normal)), -jacobian.T @ r)
        better = jnp.sum(residual(params + delta) ** 2) < jnp.sum(r**2)
        return jnp.where(better, params + delta, params), jnp.where(better, damping / 3, damping * 2)

    return lax.fori_loop(0, iterations, step, (params, jnp.float32(0.01)))[0]


TIMES = np.linspace(0.0, 4.0, 32, dtype=np.float32)


def fit_decay(samples: jax.Array) -> jax.Array:
    """`a`, `b`, `c` from 32 noisy samples."""
    return levenberg_marquardt(lambda p: decay(p, TIMES) - samples, jnp.array([1.0, 1.0, 0.0]), 20)


def decay_samples(batch: int) -> np.ndarray:
    """Decays with noise, (batch, 32)."""
    rng = np.random.default_rng(41)
    a, b, c = (rng.uniform(low, high, (batch, 1)) for low, high in ((1.0, 3.0), (0.5, 2.0), (-0.5, 0.5)))
    return (a * np.exp(-b * TIMES) + c + 0.02 * rng.standard_normal((batch, 32))).astype(np.float32)


def marquardt(batch: int) -> Case:
    """Fits of three parameters."""
    return Case(fit_decay, 0, (decay_samples(batch),))


def logistic_weights(features: jax.Array, answers: jax.Array) -> jax.Array:
    """Weights of a logistic regression with a small ridge, by Newton steps until they are short."""

    def step(state):
        weights, _, count = state
        p = jax.nn.sigmoid(features @ weights)
        gradient = features.T @ (p - answers) + 0.1 * weights
        curvature = (features * (p * (1 - p))[:, None]).T @ features + 0.1 * jnp.eye(weights.size)
        delta = jnp.linalg.solve(curvature, gradient)
        return weights - delta, delta @ delta, count + 1

    def goes_on(state):
        _, length, count = state
        return (length > 1e-8) & (count < 20)

    return lax.while_loop(goes_on, step, (jnp.zeros(features.shape[1]), jnp.float32(1.0), 0))[0]


def logistic200(batch: int) -> Case:
    """200 observations of five features for each fit."""
    rng = np.random.default_rng(43)
    features = rng.standard_normal((batch, 200, 5), dtype=np.float32)
    chance = 1 / (1 + np.exp(-features @ np.array([1.0, -0.5, 0.3, 0.0, 0.2], np.float32)))
    return Case(logistic_weights, 0, (features, (rng.random((batch, 200)) < chance).astype(np.float32)))


def conjugate_gradients(matrix: jax.Array, b: jax.Array) -> jax.Array:
    """The solution of a symmetric, positive definite system, by JAX's own conjugate gradients."""
    return jax.scipy.sparse.linalg.cg(lambda x: matrix @ x, b, maxiter=30)[0]


def gradients24(batch: int) -> Case:
    """Systems of 24 equations."""
    rng = np.random.default_rng(44)
    a = rng.standard_normal((batch, 24, 24), dtype=np.float32)
    return Case(conjugate_gradients, 0, (a @ a.transpose(0, 2, 1) + 24 * np.eye(24, dtype=np.float32),
                                         rng.standard_normal((batch, 24), dtype=np.float32)))


def hand(angles: jax.Array) -> jax.Array:
    """Where the hand of an arm of two links is."""
    elbow = jnp.array([jnp.cos(angles[0]), jnp.sin(angles[0])])
    both = angles[0] + angles[1]
    return elbow + 0.8 * jnp.array([jnp.cos(both), jnp.sin(both)])


def reach(target: jax.Array) -> jax.Array:
    """Angles that bring the hand to a target, by 20 damped Newton steps."""

    def step(_, angles):
        jacobian = jax.jacfwd(hand)(angles)
        normal = jacobian.T @ jacobian + 1e-3 * jnp.eye(2)
        return angles + jnp.linalg.solve(normal, jacobian.T @ (target - hand(angles)))

    return lax.fori_loop(0, 20, step, jnp.array([0.2, 1.0]))


def kinematics(batch: int) -> Case:
    """Targets within reach."""
    rng = np.random.default_rng(42)
    radius, angle = rng.uniform(1.0, 1.6, batch), rng.uniform(0.3, 1.2, batch)
    return Case(reach, 0, (np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).astype(np.float32),))
