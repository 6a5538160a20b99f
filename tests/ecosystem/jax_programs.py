"""Environments in the manner of gymnax, and modules of JAX itself."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as special
import jax.scipy.stats as stats
import numpy as np
from jax.experimental.ode import odeint
from program import Check, Program


def numbers(seed: int, low: float, high: float, *shape: int) -> Any:
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


# ---- environments ----------------------------------------------------------------------------------------------------
def cart_pole_reset(key: Any) -> Any:
    return jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05), jnp.int32(0)


def cart_pole_step(key: Any, state: Any, action: Any) -> Any:
    """A step, and a new episode where the old one has ended."""
    (x, v, angle, spin), time = state
    force = jnp.where(action == 1, 10.0, -10.0)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    push = (force + 0.05 * spin**2 * sin) / 1.1
    turn = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
    moved = jnp.array([x + 0.02 * v, v + 0.02 * (push - 0.05 * turn * cos / 1.1), angle + 0.02 * spin,
                       spin + 0.02 * turn]), time + 1
    done = (jnp.abs(moved[0][0]) > 2.4) | (jnp.abs(moved[0][2]) > 0.209) | (moved[1] >= 200)
    return jax.lax.cond(done, lambda: cart_pole_reset(key), lambda: moved), 1.0, done


def cart_pole(batch: int) -> Any:
    """A rollout of 100 random steps."""
    def rollout(key: Any) -> Any:
        first, rest = jax.random.split(key)

        def step(state: Any, key: Any) -> Any:
            choice, again = jax.random.split(key)
            state, reward, done = cart_pole_step(again, state, jax.random.bernoulli(choice).astype(jnp.int32))
            return state, (reward, done)

        state, (rewards, dones) = jax.lax.scan(step, cart_pole_reset(first), jax.random.split(rest, 100))
        return state, rewards.sum(), dones.sum()

    keys = jax.random.split(jax.random.key(1), batch)
    return lambda keys: jax.vmap(rollout)(keys), (keys,)


def grid_world(batch: int) -> Any:
    """Each step is mapped over the environments, as in a training loop."""
    walls = jnp.zeros((5, 5), bool).at[2, 1:4].set(True)
    moves = [lambda p: p.at[0].add(-1), lambda p: p.at[0].add(1), lambda p: p.at[1].add(-1), lambda p: p.at[1].add(1)]

    def step(key: Any, position: Any, action: Any) -> Any:
        new = jnp.clip(jax.lax.switch(action, moves, position), 0, 4)
        new = jnp.where(walls[new[0], new[1]], position, new)
        done = jnp.all(new == 4)
        new = jax.lax.cond(done, lambda: jax.random.randint(key, (2,), 0, 2), lambda: new)
        return new, jnp.where(done, 1.0, -0.01)

    def train(key: Any, positions: Any) -> Any:
        def one(positions: Any, key: Any) -> Any:
            act, again = jax.random.split(key)
            actions = jax.random.randint(act, (batch,), 0, 4)
            return jax.vmap(step)(jax.random.split(again, batch), positions, actions)

        return jax.lax.scan(one, positions, jax.random.split(key, 20))

    return train, (jax.random.key(2), np.random.default_rng(3).integers(0, 2, (batch, 2)).astype(np.int32))


# ---- modules of JAX --------------------------------------------------------------------------------------------------
def pendulum(y: Any, t: Any, friction: Any) -> Any:
    return jnp.array([y[1], -friction * y[1] - jnp.sin(y[0])])


def ode(batch: int) -> Any:
    times = jnp.linspace(0.0, 4.0, 5)
    args = numbers(4, -1.5, 1.5, batch, 2), numbers(5, 0.1, 0.5, batch)
    return lambda y, c: jax.vmap(lambda y, c: odeint(pendulum, y, times, c, rtol=1e-5, atol=1e-5))(y, c), args


def ode_gradient(batch: int) -> Any:
    times = jnp.linspace(0.0, 2.0, 3)

    def loss(y: Any, c: Any) -> Any:
        return jnp.sum(odeint(pendulum, y, times, c, rtol=1e-5, atol=1e-5)[-1] ** 2)

    args = numbers(6, -1.5, 1.5, batch, 2), numbers(7, 0.1, 0.5, batch)
    return lambda y, c: jax.vmap(jax.grad(loss, argnums=(0, 1)))(y, c), args


def distributions(batch: int) -> Any:
    def densities(x: Any, a: Any, b: Any) -> Any:
        return {"norm": stats.norm.cdf(x, a, b), "gamma": stats.gamma.logpdf(x, a), "beta": stats.beta.pdf(x / 4, a, b),
                "t": stats.t.logpdf(x, a), "poisson": stats.poisson.logpmf(jnp.floor(x), a),
                "laplace": stats.laplace.cdf(x, a, b), "quantile": stats.norm.ppf(x / 4.0),
                "chi2": stats.chi2.cdf(x, a), "entropy": special.entr(x / 4.0), "dirichlet":
                stats.dirichlet.logpdf(jnp.stack([x, 4.0 - x]) / 4.0, jnp.stack([a, b]))}

    args = numbers(8, 0.1, 3.9, batch), numbers(9, 0.5, 4.0, batch), numbers(10, 0.5, 4.0, batch)
    return lambda x, a, b: jax.vmap(densities)(x, a, b), args


PROGRAMS = (
    Program("gym", "CartPole, 100 steps, auto-reset", cart_pole, Check(1e-3, 0.98), 10_000),
    Program("gym", "grid world, vmap in a scan", grid_world, Check(), 20_000),
    Program("jax", "jax.experimental.ode.odeint", ode, Check(1e-3), 5_000),
    Program("jax", "gradient of odeint", ode_gradient, Check(1e-3), 2_000),
    Program("jax", "jax.scipy.stats", distributions, Check(1e-4), 100_000),
)
