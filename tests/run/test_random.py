"""Random numbers: `lanax.vmap` draws what `jax.vmap` draws, in lanes, or says why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases_random import COUNTERS
from jax import lax
from jax import random as jr

import lanax

BATCH = 19

#: Some distributions in one program. Those that draw by rejection compare numbers that XLA may round otherwise.
GROUPS: dict[str, Callable[[Any], Any]] = {
    "bits": lambda k: (jr.bits(k, (3,)), jr.bits(k, (3,), jnp.uint8), jr.randint(k, (4,), 0, 9), jr.rademacher(k, (3,)),
                       jr.bernoulli(k, 0.3, (3,)), jr.uniform(k, (3,)), jr.key_data(jr.split(k, 2)),
                       jr.key_data(jr.fold_in(k, 7)), jr.key_data(jr.clone(k))),
    "order": lambda k: (jr.permutation(k, 7), jr.choice(k, 7, (3,)), jr.choice(k, 7, (3,), replace=False),
                        jr.choice(k, 4, (3,), p=jnp.array([0.1, 0.2, 0.3, 0.4])), jr.categorical(k, jnp.arange(4.0))),
    "smooth": lambda k: (jr.normal(k, (3,)), jr.gumbel(k, (2,)), jr.laplace(k, (2,)), jr.exponential(k), jr.cauchy(k),
                         jr.logistic(k), jr.lognormal(k), jr.truncated_normal(k, -1.0, 2.0, (2,)), jr.rayleigh(k, 1.0),
                         jr.weibull_min(k, 1.0, 2.0), jr.pareto(k, 2.0), jr.maxwell(k), jr.wald(k, 1.0),
                         jr.triangular(k, 0.0, 0.3, 1.0), jr.double_sided_maxwell(k, 0.0, 1.0), jr.geometric(k, 0.3)),
    "matrices": lambda k: (jr.multivariate_normal(k, jnp.zeros(2), jnp.eye(2) + 0.2), jr.orthogonal(k, 2)),
    "gamma": lambda k: (jr.gamma(k, 2.5), jr.loggamma(k, 0.3)),
    "of gamma": lambda k: (jr.t(k, 3.0), jr.dirichlet(k, jnp.array([1.0, 0.5]))),
    "counts": lambda k: (jr.poisson(k, 3.0), jr.binomial(k, 10, 0.3)),
}


def same(fun: Callable[..., Any], *args: Any, rtol: float = 2e-5) -> Any:
    """Checks against `jax.vmap`, integers exactly; gives the equations that are not in lanes."""
    mapped = lanax.vmap(fun)
    got, want = jax.tree.leaves(mapped(*args)), jax.tree.leaves(jax.vmap(fun)(*args))
    for x, y in zip(got, want, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        if y.dtype.kind in "biu":
            np.testing.assert_array_equal(x, y)
        else:
            np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-6)
    return [miss for miss in lanax.explain(mapped, *args).misses if miss.primitive != "program"]


def keys(impl: str, batch: int = BATCH) -> Any:
    return jr.split(jr.key(3, impl=impl), batch)


@pytest.mark.parametrize("name", GROUPS)
def test_distributions(name: str) -> None:
    assert not same(GROUPS[name], keys("threefry2x32"))


@pytest.mark.parametrize("impl", [impl for impl in COUNTERS if impl != "threefry2x32"])
def test_other_counters(impl: str) -> None:
    assert not same(GROUPS["bits"], keys(impl))
    assert not same(lambda k: jr.gamma(k, 2.5), keys(impl))


def test_keys_in_loops() -> None:
    def wait(key: Any) -> Any:
        """Draws until a number is large."""
        def step(state: Any) -> Any:
            key, part = jr.split(state[0])
            return key, jr.uniform(part), state[2] + 1

        return lax.while_loop(lambda state: state[1] < 0.9, step, (key, jnp.float32(0), 0))[1:]

    assert not same(wait, keys("threefry2x32"))


def test_derivative_of_a_draw() -> None:
    a = np.linspace(0.3, 5, BATCH, dtype=np.float32)
    assert not same(lambda k, a: jax.grad(lambda v: jr.gamma(k, v))(a), keys("threefry2x32"), a, rtol=1e-4)


def test_seeds() -> None:
    seeds = np.arange(BATCH, dtype=np.int32)
    for impl in ("threefry2x32", "rbg", "unsafe_rbg"):
        assert not same(lambda s, i=impl: jr.key_data(jr.key(s, impl=i)), seeds)


def test_keys_of_rbg_are_in_lanes_and_their_bits_are_not() -> None:
    """The bits that `jax.vmap` draws are those of the first key for the whole batch."""
    split = same(lambda k: (jr.key_data(jr.split(k, 3)), jr.key_data(jr.fold_in(k, 5))), keys("rbg"))
    assert not split
    (miss,) = same(lambda k: jr.bits(k, (3,)) + 1, keys("rbg"))
    assert miss.primitive == "random_bits"
    assert "first key" in miss.reason


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_programs_of_rbg_agree_with_vmap(impl: str) -> None:
    """Loops and draws by rejection too, though not in lanes."""
    def walk(key: Any) -> Any:
        def step(total: Any, part: Any) -> Any:
            return total + jr.normal(part), jr.uniform(part)

        return lax.scan(step, jnp.float32(0), jr.split(key, 3))

    assert same(walk, keys(impl))
    assert same(lambda k: jr.gamma(k, 2.5), keys(impl))
    same(lambda k: jr.normal(k, (2,)) * 2, keys(impl))


def test_an_unmapped_key_of_rbg() -> None:
    key = jr.key(1, impl="rbg")
    same(lambda x: x * jr.uniform(key, (3,)), np.arange(BATCH, dtype=np.float32))


@pytest.mark.parametrize("algorithm", [lax.RandomAlgorithm.RNG_DEFAULT, lax.RandomAlgorithm.RNG_PHILOX,
                                       lax.RandomAlgorithm.RNG_THREE_FRY], ids=lambda a: a.name)
def test_rng_bit_generator(algorithm: Any) -> None:
    words = np.random.default_rng(0).integers(0, 2**32, (BATCH, 4), dtype=np.uint32)
    (miss,) = same(lambda w: lax.rng_bit_generator(w, (3,), np.uint16, algorithm)[1] + 1, words)
    assert miss.primitive == "rng_bit_generator"


def test_how_bits_are_made_is_part_of_a_program() -> None:
    """Programs that are equal but for the setting under which they were traced are compiled apart."""
    keys = jax.random.split(jax.random.key(3), 5)
    for partitionable in (True, False):
        with jax.threefry_partitionable(partitionable):
            got, want = (mapper(lambda k: jax.random.bits(k, (3,)))(keys) for mapper in (lanax.vmap, jax.vmap))
        np.testing.assert_array_equal(got, want)
