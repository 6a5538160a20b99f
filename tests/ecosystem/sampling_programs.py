"""Chains by blackjax and numpyro, as their documentation runs them."""

from __future__ import annotations

from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import jax.scipy.stats as stats
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS, Predictive, log_likelihood
from program import Check, Program

SAMPLES = np.random.default_rng(1).normal(2.0, 0.7, 20).astype(np.float32)


def log_density(x: Any) -> Any:
    return jnp.sum(stats.norm.logpdf(SAMPLES, x["mean"], jnp.exp(x["log_scale"]))) - 0.5 * x["log_scale"] ** 2


def positions(seed: int, batch: int) -> Any:
    rng = np.random.default_rng(seed)
    return {"mean": rng.normal(2.0, 0.3, batch).astype(np.float32),
            "log_scale": rng.normal(-0.3, 0.2, batch).astype(np.float32)}


# ---- blackjax --------------------------------------------------------------------------------------------------------
def hmc(batch: int) -> Any:
    """Chains side by side: a scan over steps, each of which maps the kernel over the chains."""
    kernel = blackjax.hmc(log_density, step_size=0.05, inverse_mass_matrix=jnp.ones(2), num_integration_steps=8)

    def chains(key: Any, start: Any) -> Any:
        def step(states: Any, key: Any) -> Any:
            states, info = jax.vmap(kernel.step)(jax.random.split(key, batch), states)
            return states, (states.position, info.is_accepted)

        return jax.lax.scan(step, jax.vmap(kernel.init)(start), jax.random.split(key, 8))[1]

    return chains, (jax.random.key(2), positions(3, batch))


def nuts(batch: int) -> Any:
    """Whole chains mapped. Ten steps, since rounding decides where a trajectory turns."""
    kernel = blackjax.nuts(log_density, step_size=0.1, inverse_mass_matrix=jnp.ones(2))

    def chain(key: Any, start: Any) -> Any:
        def step(state: Any, key: Any) -> Any:
            state, info = kernel.step(key, state)
            return state, (state.position, info.num_integration_steps)

        return jax.lax.scan(step, kernel.init(start), jax.random.split(key, 10))[1]

    keys = jax.random.split(jax.random.key(4), batch)
    return lambda keys, start: jax.vmap(chain)(keys, start), (keys, positions(5, batch))


# ---- numpyro ---------------------------------------------------------------------------------------------------------
def model(observed: Any = None) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("data", 20):
        numpyro.sample("observed", dist.Normal(mean, scale), obs=observed)


def vectorised_chains(batch: int) -> Any:
    """`MCMC(..., chain_method="vectorized")`: adapts, then draws; few draws, since rounding grows."""
    def run(key: Any) -> Any:
        mcmc = MCMC(NUTS(model), num_warmup=4, num_samples=4, num_chains=batch, chain_method="vectorized",
                    progress_bar=False)
        mcmc.run(key, observed=SAMPLES)
        return mcmc.get_samples(group_by_chain=True)

    return run, (jax.random.key(6),)


def predictive(batch: int) -> Any:
    rng = np.random.default_rng(7)
    draws = {"mean": rng.normal(2.0, 0.2, batch).astype(np.float32),
             "scale": rng.uniform(0.5, 0.9, batch).astype(np.float32)}

    def run(key: Any, draws: Any) -> Any:
        predicted = Predictive(model, draws, parallel=True)(key)
        return predicted["observed"], log_likelihood(model, draws, observed=SAMPLES)["observed"]

    return run, (jax.random.key(8), draws)


PROGRAMS = (
    Program("blackjax", "HMC, vmap in a scan", hmc, Check(1e-2, 0.98), 10_000),
    Program("blackjax", "NUTS, scan in a vmap", nuts, Check(1e-2, 0.95), 1_000),
    Program("numpyro", "NUTS, vectorised chains", vectorised_chains, Check(1e-2, 0.9), 200),
    Program("numpyro", "Predictive and log_likelihood", predictive, Check(1e-4), 10_000),
)
