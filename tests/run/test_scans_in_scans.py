"""Scans in scans: what is emitted without a loop does not multiply."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanax


def nested(depth: int, length: int) -> Any:
    """Scans of few equations each, one in the other, behind a branch as a bounded loop has it."""
    def body(x: Any) -> Any:
        return jnp.sin(x) * 0.5 + x * 0.25

    for _ in range(depth):
        def body(x: Any, inner: Any = body) -> Any:
            def step(carry: Any, _: Any) -> Any:
                return jax.lax.cond(carry < 3.0, inner, lambda v: v, carry), carry

            last, all_ = jax.lax.scan(step, x, None, length)
            return last + 0.125 * all_.sum()

    return body


@pytest.mark.parametrize(("depth", "length"), [(1, 4), (2, 4), (3, 16), (4, 8)])
def test_stay_small(depth: int, length: int) -> None:
    fun = nested(depth, length)
    x = jnp.linspace(-1.0, 4.0, 19)
    np.testing.assert_allclose(lanax.vmap(fun)(x), jax.vmap(fun)(x), rtol=1e-5)
    assert lanax.vmap(fun).lower(x).as_text("llvm").count("\n") < 15_000
