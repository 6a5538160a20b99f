"""Diffrax by lanax."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanax

pytest.importorskip("diffrax")

import diffrax
import diffrax_programs
import equinox as eqx
from program import Program, assert_same


@pytest.mark.parametrize("program", diffrax_programs.PROGRAMS, ids=str)
def test_same(program: Program) -> None:
    assert_same(program)


def test_a_solve_that_fails_raises_the_same_error() -> None:
    """One example of many runs out of steps."""
    def solve(rate: jax.Array) -> jax.Array | None:
        return diffrax.diffeqsolve(diffrax.ODETerm(lambda t, y, args: -args * y), diffrax.Heun(), 0.0, 1.0, 0.1,
                                   jnp.float32(1.0), rate, max_steps=20,
                                   stepsize_controller=diffrax.PIDController(1e-3, 1e-3)).ys

    rates = jnp.ones(19).at[7].set(200.0)
    raised = []
    for patched in (contextlib.nullcontext(), lanax.patch()):
        with patched, pytest.raises(RuntimeError, match="maximum number of solver steps was reached") as error:
            eqx.filter_jit(lambda rates: jax.vmap(solve)(rates))(rates)
        raised.append(type(error.value))
    assert raised[0] is raised[1]


def test_the_import_swapped() -> None:
    """`from lanax import vmap` in the place of `from jax import vmap`."""
    def solve(y0: jax.Array) -> jax.Array | None:
        return diffrax.diffeqsolve(diffrax.ODETerm(lambda t, y, args: -y), diffrax.Tsit5(), 0.0, 1.0, 0.1, y0).ys

    starts = jnp.linspace(0.5, 2.0, 19)
    np.testing.assert_allclose(lanax.vmap(solve)(starts), jax.vmap(solve)(starts), rtol=1e-6)
    np.testing.assert_allclose(lanax.vmap(solve)(starts), starts[:, None] * np.exp(-1), rtol=1e-5)
    assert not lanax.explain(lanax.vmap(solve), starts).misses
