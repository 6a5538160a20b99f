"""Programs written with libraries, as their documentation shows them. Knows nothing of lanax.

Each library is imported only where its program is made: lanax itself needs none of them.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanax._suite.estimation import TIMES, decay, decay_samples
from lanax._suite.program import Case


def robertson(batch: int) -> Case:
    """Robertson's stiff chemistry to t = 100, by diffrax's Kvaerno5; the slowest rate differs."""
    import diffrax

    def rates(t, y, k1):
        x1, x2, x3 = y
        f1 = -k1 * x1 + 1e4 * x2 * x3
        f3 = 3e7 * x2**2
        return jnp.array([f1, -f1 - f3, f3])

    def solve(k1):
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(rates), diffrax.Kvaerno5(), t0=0.0, t1=100.0, dt0=2e-4, y0=jnp.array([1.0, 0.0, 0.0]),
            args=k1, stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-6),
        )
        return solution.ys[0]  # pyright: ignore[reportOptionalSubscript]

    return Case(solve, 0, (np.random.default_rng(70).uniform(0.02, 0.08, batch).astype(np.float32),))


def optimistix_fit(batch: int) -> Case:
    """Fits of three parameters by optimistix's Levenberg-Marquardt."""
    import optimistix

    solver = optimistix.LevenbergMarquardt(rtol=1e-4, atol=1e-4)

    def fit(samples):
        def residual(params, samples):
            return decay(params, TIMES) - samples

        start = jnp.array([1.0, 1.0, 0.0])
        return optimistix.least_squares(residual, solver, start, args=samples, max_steps=64, throw=False).value

    return Case(fit, 0, (decay_samples(batch),))


def nuts(batch: int) -> Case:
    """Chains of 100 steps of blackjax's NUTS on a posterior of ten dimensions: the mean of each chain."""
    import blackjax

    scales = np.linspace(0.5, 2.0, 10, dtype=np.float32)

    def log_density(x):
        return -0.5 * jnp.sum((x / scales) ** 2) - 0.1 * jnp.sum(x[1:] * x[:-1]) ** 2 / 10

    kernel: Any = blackjax.nuts(log_density, step_size=0.3, inverse_mass_matrix=jnp.ones(10))

    def chain(key, start):
        def step(state, key):
            state, _ = kernel.step(key, state)
            return state, state.position

        return jax.lax.scan(step, kernel.init(start), jax.random.split(key, 100))[1].mean(0)

    keys = jax.random.split(jax.random.key(1, impl="threefry2x32"), batch)
    return Case(chain, 0, (keys, np.random.default_rng(71).standard_normal((batch, 10), dtype=np.float32)))
