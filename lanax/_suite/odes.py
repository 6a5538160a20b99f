"""Ordinary differential equations, one system for each example, by hand and with diffrax. Knows nothing of lanax."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lanax._suite.program import Case

TOLERANCE = 1e-5
END = 1.0


def lorenz(y: jax.Array, rho: jax.Array) -> jax.Array:
    """The Lorenz system's right-hand side."""
    x1, x2, x3 = y
    return jnp.array([10.0 * (x2 - x1), x1 * (rho - x3) - x2, x1 * x2 - (8.0 / 3.0) * x3])


def adaptive_lorenz(y0: jax.Array, rho: jax.Array) -> jax.Array:
    """State at `END`, by the Bogacki-Shampine 3(2) pair with step-size control."""

    def unfinished(state):
        return state[0] < END

    def step(state):
        t, y, k1, h = state
        h = jnp.minimum(h, END - t)
        k2 = lorenz(y + 0.5 * h * k1, rho)
        k3 = lorenz(y + 0.75 * h * k2, rho)
        y_new = y + h * (2.0 / 9.0 * k1 + 1.0 / 3.0 * k2 + 4.0 / 9.0 * k3)
        k4 = lorenz(y_new, rho)
        error = h * (-5.0 / 72.0 * k1 + 1.0 / 12.0 * k2 + 1.0 / 9.0 * k3 - 1.0 / 8.0 * k4)
        scale = TOLERANCE + TOLERANCE * jnp.maximum(jnp.abs(y), jnp.abs(y_new))
        norm = jnp.sqrt(jnp.mean((error / scale) ** 2))
        accepted = norm <= 1.0
        growth = jnp.clip(0.9 * norm ** (-1.0 / 3.0), 0.2, 5.0)
        return (
            jnp.where(accepted, t + h, t),
            jnp.where(accepted, y_new, y),
            jnp.where(accepted, k4, k1),
            h * growth,
        )

    return lax.while_loop(unfinished, step, (jnp.float32(0.0), y0, lorenz(y0, rho), jnp.float32(0.01)))[1]


def _lorenz_inputs(batch: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    y0 = np.array([1.0, 1.0, 1.0]) + 0.5 * rng.standard_normal((batch, 3))
    return y0.astype(np.float32), rng.uniform(0.5, 28.0, batch).astype(np.float32)


def lorenz_rk(batch: int) -> Case:
    """An ensemble of starting points and parameters."""
    return Case(adaptive_lorenz, 0, _lorenz_inputs(batch))


def lorenz_diffrax(batch: int) -> Case:
    """The same ensemble, solved by diffrax as its documentation shows it."""
    import diffrax  # optional: only this program needs it

    term = diffrax.ODETerm(lambda t, y, rho: lorenz(y, rho))
    controller = diffrax.PIDController(rtol=TOLERANCE, atol=TOLERANCE)

    def solve(y0, rho):
        solution = diffrax.diffeqsolve(
            term, diffrax.Tsit5(), t0=0.0, t1=END, dt0=0.01, y0=y0, args=rho, stepsize_controller=controller
        )
        return solution.ys[0]  # pyright: ignore[reportOptionalSubscript]

    return Case(solve, 0, _lorenz_inputs(batch))


def van_der_pol(y: jax.Array, mu: jax.Array) -> jax.Array:
    """The Van der Pol oscillator's right-hand side."""
    position, speed = y
    return jnp.array([speed, mu * (1.0 - position**2) * speed - position])


def rk4_step(y: jax.Array, h: jax.Array | float, mu: jax.Array) -> jax.Array:
    """One classical Runge-Kutta step of the Van der Pol oscillator."""
    k1 = van_der_pol(y, mu)
    k2 = van_der_pol(y + 0.5 * h * k1, mu)
    k3 = van_der_pol(y + 0.5 * h * k2, mu)
    k4 = van_der_pol(y + h * k3, mu)
    return y + h / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)


def thousand_steps(y0: jax.Array, mu: jax.Array) -> jax.Array:
    """State after 1000 steps of 0.01."""
    return lax.scan(lambda y, _: (rk4_step(y, 0.01, mu), None), y0, length=1000)[0]


def rk4_vdp(batch: int) -> Case:
    """Oscillators with different damping."""
    rng = np.random.default_rng(4)
    y0 = rng.uniform(-2.0, 2.0, (batch, 2)).astype(np.float32)
    return Case(thousand_steps, 0, (y0, rng.uniform(0.1, 5.0, batch).astype(np.float32)))


def stable_steps(y0: jax.Array, mu: jax.Array) -> jax.Array:
    """State at `END`, in as many steps as the stiffness asks for."""
    steps = jnp.ceil(50.0 * END * mu).astype(jnp.int32)
    h = END / steps
    return lax.fori_loop(0, steps, lambda _, y: rk4_step(y, h, mu), y0)


def straggler(batch: int) -> Case:
    """All oscillators are mild but one, which takes 200 times as many steps."""
    rng = np.random.default_rng(5)
    y0 = rng.uniform(-2.0, 2.0, (batch, 2)).astype(np.float32)
    mu = np.full(batch, 5.0, np.float32)
    mu[batch // 3] *= 200.0
    return Case(stable_steps, 0, (y0, mu))
