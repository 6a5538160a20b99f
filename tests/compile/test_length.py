"""Short code for long programs: small arrays in memory, loops that stay."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import loop

import lanax


def steps(times: int, x: Any) -> Any:
    """So many elementwise steps on a matrix, none of which can be left out."""
    for i in range(times):
        x = jnp.where(x > i, x * 0.75 - x.T, x + 0.25 * x[::-1])
    return x


def program(bodies: int, times: int) -> Any:
    def run(x: Any) -> Any:
        for _ in range(bodies):
            x = jax.lax.cond(x[0, 0] > 0, lambda x: steps(times, x), lambda x: -x, x)
        return jnp.cumsum(x, axis=0), x @ x, jnp.sort(x, axis=1), jnp.sum(x)

    return run


@pytest.mark.parametrize(("bodies", "times", "stay"), [(1, 4, False), (1, 100, False), (6, 20, True)])
def test_loops_of_long_programs_stay(bodies: int, times: int, stay: bool) -> None:
    """But what one body computes in a straight line is unrolled."""
    x = np.random.default_rng(0).normal(size=(19, 6, 6)).astype(np.float32)
    fun = program(bodies, times)
    mapped = lanax.vmap(fun, plan=lanax.Plan(route="lanes"))
    assert ("llvm.loop.unroll.disable" in mapped.lower(x).as_text("llvm")) == stay
    for got, want in zip(mapped(x), loop(fun, [x]), strict=True):
        np.testing.assert_allclose(got, want, 1e-5, 1e-5)


def test_the_exponential_of_a_complex_matrix() -> None:
    """LLVM keeps its hands off the loops."""
    rng = np.random.default_rng(0)
    a = (rng.normal(size=(5, 8, 8)) + 1j * rng.normal(size=(5, 8, 8))).astype(np.complex64)
    mapped = lanax.vmap(jax.scipy.linalg.expm, plan=lanax.Plan(route="lanes"))
    lowered = mapped.lower(a)
    assert len(lowered.as_text("llvm").splitlines()) < 20_000
    assert len(lowered.as_text("optimised").splitlines()) < 20_000
    np.testing.assert_allclose(mapped(a), jax.vmap(jax.scipy.linalg.expm)(a), 1e-3, 1e-3)
