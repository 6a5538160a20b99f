"""Rows for Equinox's reductions over the batch, where they only choose between ways to the same result."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from case import Case
from equinox.internal import unvmap_all, unvmap_any, unvmap_max
from jax import lax

F32, F64, I32 = np.float32, np.float64, np.int32


def _step_if_any(x: Any) -> Any:
    """A costly way for all where one needs it; the others get what they would have got."""
    return lax.cond(unvmap_any(x > 0.5), lambda: jnp.where(x > 0.5, jnp.sin(x), x), lambda: x)


def _shortcut_if_all(x: Any) -> Any:
    return lax.cond(unvmap_all(x > -0.5), lambda: x + 1, lambda: jnp.maximum(x, -0.5) + 1)


def _select(x: Any) -> Any:
    return jnp.where(unvmap_any(x < 0), jnp.maximum(x, 0) * 2, x * 2 * (x > 0))


def _in_loop(n: Any, x: Any) -> Any:
    """Inside a loop that lanes leave at different times: only active lanes count."""
    def step(s: Any) -> Any:
        i, y = s
        return i + 1, lax.cond(unvmap_any(y > 1), lambda: jnp.where(y > 1, y * 0.5, y + 0.25), lambda: y + 0.25)

    return lax.while_loop(lambda s: s[0] < n, step, (0, x))


def _while_any(n: Any, x: Any) -> Any:
    """A loop that goes on while any example does, as Equinox's do."""
    def step(s: Any) -> Any:
        i, y = s
        on = i < n
        return jnp.where(on, i + 1, i), jnp.where(on, y * 0.9 + 0.1, y)

    return lax.while_loop(lambda s: unvmap_any(s[0] < n), step, (0, x))


def _largest(n: Any, x: Any) -> Any:
    chosen = lax.convert_element_type(unvmap_max(n), bool)
    return lax.cond(chosen, lambda: jnp.where(n != 0, jnp.cos(x), x), lambda: x)


def _trips(rng: np.random.Generator, batch: int) -> np.ndarray:
    return rng.integers(0, 9, batch).astype(I32)


CASES = [
    Case("unvmap_any", "cond", _step_if_any, (((), F32),)),
    Case("unvmap_any", "array", _step_if_any, (((3,), F32),)),
    Case("unvmap_any", "select", _select, (((), F64),)),
    Case("unvmap_any", "in-loop", _in_loop, (_trips, ((), F32))),
    Case("unvmap_any", "while", _while_any, (_trips, ((), F32))),
    Case("unvmap_all", "cond", _shortcut_if_all, (((), F32),)),
    Case("unvmap_max", "int32", _largest, (_trips, ((), F32))),
    Case("unvmap_max", "uint8", lambda n, x: _largest(n.astype(np.uint8), x), (_trips, ((), F32))),
]
