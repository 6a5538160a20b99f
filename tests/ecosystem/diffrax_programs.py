"""Differential equations by diffrax, as its documentation solves them."""

from __future__ import annotations

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix
from program import Check, Program


def numbers(seed: int, low: float, high: float, *shape: int) -> Any:
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


def predator_prey(t: Any, y: Any, args: Any) -> Any:
    prey, predator = y
    a, b, c, d = args
    return jnp.array([a * prey - b * prey * predator, -c * predator + d * prey * predator])


RATES = (1.1, 0.4, 0.4, 0.1)
PID = diffrax.PIDController(rtol=1e-4, atol=1e-6)
TERM = diffrax.ODETerm(predator_prey)


def save_at_times(batch: int) -> Any:
    times = jnp.linspace(0.0, 8.0, 9)

    def solve(y0: Any, a: Any) -> Any:
        return diffrax.diffeqsolve(TERM, diffrax.Tsit5(), 0.0, 8.0, 0.1, y0, (a, *RATES[1:]),
                                   saveat=diffrax.SaveAt(ts=times), stepsize_controller=PID).ys

    return lambda y0, a: jax.vmap(solve)(y0, a), (numbers(1, 5.0, 15.0, batch, 2), numbers(2, 0.8, 1.4, batch))


def stiff(batch: int) -> Any:
    def robertson(t: Any, y: Any, k1: Any) -> Any:
        f1 = -k1 * y[0] + 1e4 * y[1] * y[2]
        f3 = 3e7 * y[1] ** 2
        return jnp.stack([f1, -f1 - f3, f3])

    def solve(k1: Any) -> Any:
        controller = diffrax.PIDController(rtol=1e-8, atol=1e-8)
        return diffrax.diffeqsolve(diffrax.ODETerm(robertson), diffrax.Kvaerno5(), 0.0, 100.0, 2e-4,
                                   jnp.array([1.0, 0.0, 0.0]), k1, stepsize_controller=controller).ys

    return lambda k1: jax.vmap(solve)(k1), (numbers(3, 0.02, 0.08, batch).astype(np.float64),)


def stochastic(batch: int) -> Any:
    def solve(key: Any, y0: Any) -> Any:
        motion = diffrax.VirtualBrownianTree(0.0, 1.0, tol=1e-3, shape=(), key=key)
        terms = diffrax.MultiTerm(diffrax.ODETerm(lambda t, y, args: -y),
                                  diffrax.ControlTerm(lambda t, y, args: 0.1 * t, motion))
        return diffrax.diffeqsolve(terms, diffrax.Euler(), 0.0, 1.0, 0.05, y0,
                                   saveat=diffrax.SaveAt(ts=jnp.linspace(0.0, 1.0, 5))).ys

    keys = jax.random.split(jax.random.key(4), batch)
    return lambda keys, y0: jax.vmap(solve)(keys, y0), (keys, numbers(5, 0.5, 1.5, batch))


def dense(batch: int) -> Any:
    def solve(y0: Any, at: Any) -> Any:
        solution = diffrax.diffeqsolve(TERM, diffrax.Dopri5(), 0.0, 4.0, 0.1, y0, RATES, max_steps=64,
                                       saveat=diffrax.SaveAt(dense=True), stepsize_controller=PID)
        return solution.evaluate(at), solution.derivative(at)

    return lambda y0, at: jax.vmap(solve)(y0, at), (numbers(6, 5.0, 15.0, batch, 2), numbers(7, 0.1, 3.9, batch))


def event(batch: int) -> Any:
    def falling(t: Any, y: Any, args: Any) -> Any:
        return jnp.stack([y[1], -9.81 - 0.1 * y[1]])

    def solve(height: Any) -> Any:
        found = diffrax.Event(lambda t, y, args, **kwargs: y[0], optimistix.Newton(1e-4, 1e-4, optimistix.rms_norm))
        solution = diffrax.diffeqsolve(diffrax.ODETerm(falling), diffrax.Tsit5(), 0.0, 100.0, 0.1,
                                       jnp.stack([height, 0.0]), event=found, stepsize_controller=PID)
        return solution.ts, solution.ys

    return lambda height: jax.vmap(solve)(height), (numbers(8, 1.0, 20.0, batch),)


def out_of_steps(batch: int) -> Any:
    """Every other example is ten times faster than its neighbour, and is not done in time."""
    def solve(y0: Any, speed: Any) -> Any:
        solution = diffrax.diffeqsolve(TERM, diffrax.Tsit5(), 0.0, 8.0, 0.1, y0, tuple(speed * r for r in RATES),
                                       stepsize_controller=PID, max_steps=16, throw=False)
        return solution.ys, solution.result == diffrax.RESULTS.successful

    speeds = np.where(np.arange(batch) % 2, 3.0, 0.3).astype(np.float32)
    return lambda y0, speed: jax.vmap(solve)(y0, speed), (numbers(9, 2.0, 15.0, batch, 2), speeds)


def gradient(adjoint: Any) -> Any:
    def make(batch: int) -> Any:
        def loss(y0: Any, a: Any) -> Any:
            solution = diffrax.diffeqsolve(TERM, diffrax.Tsit5(), 0.0, 4.0, 0.1, y0, (a, *RATES[1:]), max_steps=64,
                                           stepsize_controller=PID, adjoint=adjoint)
            return jnp.sum(solution.ys**2)

        def gradients(y0: Any, a: Any) -> Any:
            return jax.vmap(jax.value_and_grad(loss, argnums=(0, 1)))(y0, a)

        return gradients, (numbers(10, 5.0, 15.0, batch, 2), numbers(11, 0.8, 1.4, batch))

    return make


def gradient_of_all(batch: int) -> Any:
    """The gradient of a mean over the batch by what the examples share: `jax.grad` around `jax.vmap`."""
    def loss(rates: Any, y0: Any) -> Any:
        def solve(y0: Any) -> Any:
            return diffrax.diffeqsolve(TERM, diffrax.Tsit5(), 0.0, 4.0, 0.1, y0, rates, max_steps=64,
                                       stepsize_controller=PID).ys

        return jnp.mean(jax.vmap(solve)(y0) ** 2)

    return jax.value_and_grad(loss), (jnp.array(RATES), numbers(12, 5.0, 15.0, batch, 2))


def neural(batch: int) -> Any:
    """A neural ODE: the right-hand side is an MLP."""
    field = eqx.nn.MLP(2, 2, 8, 2, activation=jax.nn.softplus, key=jax.random.key(13))
    times = jnp.linspace(0.0, 1.0, 5)

    def solve(y0: Any) -> Any:
        return diffrax.diffeqsolve(diffrax.ODETerm(lambda t, y, args: field(y)), diffrax.Tsit5(), 0.0, 1.0, 0.1, y0,
                                   saveat=diffrax.SaveAt(ts=times), stepsize_controller=PID).ys

    return lambda y0: jax.vmap(solve)(y0), (numbers(14, -1.0, 1.0, batch, 2),)


# Where rounding decides whether a step is taken, both answers are as far from each other as from the exact solution.
PROGRAMS = (
    Program("diffrax", "Tsit5, SaveAt(ts)", save_at_times, Check(5e-3), 10_000),
    Program("diffrax", "Kvaerno5, stiff, float64", stiff, Check(1e-6), 1_000, x64=True),
    Program("diffrax", "SDE, VirtualBrownianTree", stochastic, Check(1e-5), 10_000),
    Program("diffrax", "dense output", dense, Check(2e-2), 2_000),
    Program("diffrax", "event with root finding", event, Check(2e-2), 2_000),
    Program("diffrax", "max_steps reached, throw=False", out_of_steps, Check(2e-2, 0.98), 10_000),
    Program("diffrax", "gradient, RecursiveCheckpointAdjoint", gradient(diffrax.RecursiveCheckpointAdjoint()),
            Check(2e-2), 2_000),
    Program("diffrax", "gradient, DirectAdjoint", gradient(diffrax.DirectAdjoint()), Check(2e-2), 500),
    Program("diffrax", "gradient, BacksolveAdjoint", gradient(diffrax.BacksolveAdjoint()), Check(2e-2), 2_000),
    Program("diffrax", "jax.grad around the solves", gradient_of_all, Check(2e-2), 2_000),
    Program("diffrax", "neural ODE", neural, Check(5e-3), 2_000),
)
