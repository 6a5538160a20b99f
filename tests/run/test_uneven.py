"""Loops that lanes leave at different trips: free lanes take the next examples, even work is stored by whole steps, the
report says what stands against it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equinox.internal import unvmap_any
from helpers import run_kernel
from jax import lax

import lanax

RNG = np.random.default_rng(7)


def drift(v: jax.Array) -> jax.Array:
    """A long trip."""
    return jnp.cos(v) * 0.5 + jnp.tanh(v[::-1]) * 0.25 + jnp.sin(v * 1.5)


def walk(y: jax.Array, trips: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Some trips of two numbers; also how many it made."""
    y, n = lax.while_loop(lambda s: s[1] < trips, lambda s: (drift(s[0]), s[1] + 1), (y, jnp.int32(0)))
    return y * 2.0, n


def inputs(trips: Any) -> tuple[np.ndarray, np.ndarray]:
    trips = np.asarray(trips, np.int32)
    return RNG.uniform(-1, 1, (trips.size, 2)).astype(np.float32), trips


EVEN = np.full(61, 5)
APART = np.where(np.arange(61) % 7 == 3, 40, np.arange(61) % 3)
ONE = np.where(np.arange(24) == 9, 60, 1)


@pytest.mark.parametrize("trips", [EVEN, APART, ONE, np.repeat([2, 0, 4], 8)],
                         ids=["even", "apart", "one long", "by steps"])
def test_the_same_bits_however_lanes_are_filled(trips: Any) -> None:
    args = inputs(trips)
    want = run_kernel(walk, args)
    np.testing.assert_array_equal(want[1], args[1])
    for y, row in zip(want[0][::5], zip(*(a[::5] for a in args), strict=True), strict=True):
        np.testing.assert_allclose(y, walk(*row)[0], rtol=2e-5, atol=1e-6)
    for lanes, wait in ((8, 1), (4, 10), (1, 2), (64, 3), (64, 10), (32, 1)):
        for few in (False, True):
            for x, y in zip(run_kernel(walk, args, lanes=lanes, refill=wait, few=few), want, strict=True):
                np.testing.assert_array_equal(x, y)


def test_lanes_stay_in_use() -> None:
    """One example in fifty takes two hundred times as long, in random order."""
    args = inputs(np.where(RNG.random(20_000) < 0.02, 1000, 5))
    mapped = lanax.vmap(walk, plan=lanax.Plan(threads=1))
    made = lanax.profile(mapped, *args)
    assert made.report.kernels[0].refill > 0
    assert "uneven loops: lanes that are done take the next examples when they have waited" in str(made.report)
    assert made.kernels[0].lane_use > 0.5
    plain = args[1].reshape(-1, 8)  # a step of only eight would wait for its slowest
    assert plain.mean() / plain.max(axis=1).mean() < 0.2
    np.testing.assert_array_equal(made.results[1], args[1])


def nested(y: jax.Array, trips: jax.Array) -> jax.Array:
    return lax.fori_loop(0, 3, lambda _, v: walk(v, trips)[0], y)


def twice(y: jax.Array, trips: jax.Array) -> jax.Array:
    return walk(walk(y, trips)[0], trips)[0]


def alike(y: jax.Array, trips: jax.Array) -> jax.Array:
    return lax.fori_loop(0, 30, lambda _, v: drift(v), y) + trips


def long_rows(y: jax.Array, trips: jax.Array) -> jax.Array:
    return walk(jnp.tile(y, 50), trips)[0]


def short(y: jax.Array, trips: jax.Array) -> jax.Array:
    return lax.while_loop(lambda n: n < trips, lambda n: n + 1, 0 * trips) + y


def asks(y: jax.Array, trips: jax.Array) -> jax.Array:
    def trip(s: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        v = lax.cond(unvmap_any(s[1] == 0), lambda: drift(s[0]), lambda: s[0])
        return lax.while_loop(lambda u: jnp.sum(u * u) > 0.1, lambda u: 0.8 * u, v), s[1] + 1

    return lax.while_loop(lambda s: s[1] < trips, trip, (y, jnp.int32(0)))[0]


@pytest.mark.parametrize(("fun", "reason"), [
    (asks, "its trips ask what other lanes do, and hold another uneven loop"),
    (nested, "the uneven loop is inside another loop or a branch"),
    (twice, "there are other loops or branches before or behind the uneven loop"),
    (alike, "no loop that lanes leave at different trips"),
    (long_rows, "there are arrays of more than 64 elements"),
    (short, "a trip is short, about"),
], ids=lambda v: getattr(v, "__name__", ""))
def test_the_report_says_why_not(fun: Callable[..., Any], reason: str) -> None:
    report = lanax.explain(lanax.vmap(fun, plan=lanax.Plan(route="lanes")), *inputs(EVEN))
    assert f"uneven loops: a step runs until its last example is done ({reason}" in str(report)
    assert report.to_dict()["kernels"][0]["uneven"].startswith(reason)
