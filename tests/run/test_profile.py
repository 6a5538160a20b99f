"""What `lanax.profile` counts, against counts by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanax
from lanax._reports.profile import BranchUse, LoopUse

BATCH = 1003


def halvings(n):
    """How often `n` can be halved before it is 0, one at a time."""
    return lax.while_loop(lambda s: s[0] > 0, lambda s: (s[0] // 2, s[1] + 1), (n, jnp.int32(0)))[1]


def numbers() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 1 << 20, BATCH).astype(np.int32)


def steps(values: np.ndarray, lanes: int) -> list[np.ndarray]:
    """The values of each step; the last is filled up with its last value."""
    padded = np.concatenate([values, np.repeat(values[-1:], -len(values) % lanes)])
    return list(padded.reshape(-1, lanes))


@pytest.mark.parametrize("lanes", [1, 8, 32])
def test_a_loop_is_counted(lanes):
    n = numbers()
    made = lanax.profile(lanax.vmap(halvings, plan=lanax.Plan(lanes=lanes, threads=1)), n)
    trips = np.array([int(x).bit_length() for x in n])
    np.testing.assert_array_equal(made.results, trips)
    (kernel,) = made.kernels
    (loop,) = kernel.loops
    assert loop.kind == "while"
    assert loop.longest == trips.max()
    if made.report.kernels[0].refill:  # no example is run twice
        assert (loop.examples, loop.active) == (BATCH, trips.sum())
        return
    by_step = steps(trips, lanes)
    assert loop.entries == len(by_step)
    assert loop.active == sum(s.sum() for s in by_step)
    assert loop.trips == sum(s.max() for s in by_step)
    assert loop.lane_use == pytest.approx(loop.active / (loop.trips * lanes))


def test_branches_are_counted():
    x = np.random.default_rng(1).standard_normal(BATCH).astype(np.float32)

    def example(v):
        return lax.cond(v > 0.5, lambda v: halvings(v.astype(jnp.int32)).astype(jnp.float32),
                        lambda v: lax.fori_loop(0, 5, lambda _, u: jnp.sin(u), v), v)

    made = lanax.profile(lanax.vmap(example, plan=lanax.Plan(lanes=8)), x)
    np.testing.assert_allclose(made.results, jax.vmap(example)(x), rtol=1e-5)
    sites = made.kernels[0].sites
    branch = next(site for site in sites if isinstance(site, BranchUse))
    taken = steps(x > 0.5, 8)
    assert branch.examples == 8 * len(taken)
    assert branch.sides[1] == (sum(s.any() for s in taken), sum(s.sum() for s in taken))
    assert branch.sides[0] == (sum((~s).any() for s in taken), sum((~s).sum() for s in taken))
    fixed = next(site for site in sites if isinstance(site, LoopUse) and site.kind == "scan")
    assert fixed.depth == 1
    assert fixed.mean == 5


def test_chunks_cover_the_batch():
    made = lanax.profile(lanax.vmap(halvings, plan=lanax.Plan(lanes=8, chunk=64)), numbers())
    chunks = made.kernels[0].chunks
    assert [c.begin for c in chunks] == [0, *(c.end for c in chunks[:-1])]
    assert chunks[-1].end == BATCH
    assert all(0 <= c.start <= c.stop for c in chunks)
    assert all(0 < c.lane_use <= 1 for c in chunks)
    assert {c.thread for c in chunks} == set(range(made.kernels[0].threads))
    assert all(0 <= idle < 1 for idle in made.kernels[0].idle)


def test_operations_and_bytes():
    made = lanax.profile(lanax.vmap(lambda x: lax.fori_loop(0, 10, lambda _, y: y * y + 0.5, x),
                                    plan=lanax.Plan(lanes=8, route="lanes")), np.ones(800, np.float32))
    kernel = made.kernels[0]
    assert kernel.flops == 800 * 10 * 2
    assert (kernel.bytes_in, kernel.bytes_out) == (4, 4)
    assert set(kernel.bounds) == {"arithmetic", "division and square root", "memory", "latency"}
    assert kernel.bounds["division and square root"] == 0
    assert list(kernel.bounds.values()) == sorted(kernel.bounds.values(), reverse=True)


def test_the_bits_are_those_of_an_ordinary_run():
    def example(x):
        return lax.while_loop(lambda y: y < 50.0, lambda y: y * 1.5 + jnp.sin(y) ** 2, x)

    x = np.random.default_rng(2).uniform(1, 3, BATCH).astype(np.float32)
    mapped = lanax.vmap(example)
    np.testing.assert_array_equal(lanax.profile(mapped, x).results, mapped(x))


def test_a_jitted_function_and_one_that_calls_a_mapped_one():
    mapped = lanax.vmap(halvings)
    n = numbers()
    whole = lanax.profile(jax.jit(mapped), n)
    inside = lanax.profile(lambda n: mapped(n + 1).sum(), n)
    assert whole.kernels[0].loops
    assert int(inside.results) == sum((int(x) + 1).bit_length() for x in n)


def test_parts_for_xla_are_run_too():
    x = np.random.default_rng(3).standard_normal((40, 256)).astype(np.float32)

    def example(v):
        return lax.while_loop(lambda s: s < 5, lambda s: s + jnp.float32(1), jnp.fft.fft(v).real.sum())

    made = lanax.profile(lanax.vmap(example), x)
    assert made.report.misses
    np.testing.assert_allclose(made.results, jax.vmap(example)(x), rtol=1e-4, atol=1e-3)


def test_nothing_to_watch():
    with pytest.raises(lanax.LanaxError, match="no mapped call could be watched"):
        lanax.profile(jnp.sin, np.float32(1))
    with pytest.raises(lanax.LanaxError, match="no mapped call could be watched"):
        lanax.profile(lambda x: jax.jit(lanax.vmap(halvings))(x), numbers())


def test_the_text_names_the_users_line():
    text = str(lanax.profile(lanax.vmap(halvings), numbers()))
    assert "test_profile.py" in text
    assert "lane use" in text
    assert "bound by" in text
