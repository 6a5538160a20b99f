"""The bits of a result depend on the example alone: not on lanes, threads, chunk, or the batch around the example."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanax
from lanax._suite.loops import escape_count
from lanax._suite.odes import adaptive_lorenz, lorenz

BATCH = 75

Maker = Callable[[np.random.Generator], tuple[np.ndarray, ...]]


@pytest.fixture(autouse=True)
def _64_bits() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


# ---- programs --------------------------------------------------------------------------------------------------------
def particle_filter(observations: Any, noise: Any) -> Any:
    """A scan whose carry is a small array, with an indexed read."""

    def step(carry: Any, seen: Any) -> Any:
        mean, spread = carry
        gain = spread / (spread + noise)
        mean = mean + gain * (seen - mean[:1].sum()) * jnp.array([1.0, 0.5, 0.25], mean.dtype)
        spread = (1 - gain) * spread + jnp.exp(-jnp.abs(mean[jnp.argmax(mean)]))
        return (mean, spread), mean.sum() / 3

    carry, path = lax.scan(step, (jnp.zeros(3, observations.dtype), jnp.ones((), observations.dtype)), observations)
    return *carry, path


def branches(x: Any, kind: Any) -> Any:
    """`switch` and `cond`, one in the other, and a loop of uneven length in one of them."""

    def loop(v: Any) -> Any:
        return lax.while_loop(lambda u: u < 100, lambda u: u * 1.37 + 0.11, jnp.abs(v))

    choice = lax.switch(kind % 3, [lambda v: jnp.sin(v) / 3, loop, lambda v: lax.cond(v > 0, jnp.cos, loop, v)], x)
    return choice, lax.cond(choice > 1, lambda: choice / 7, lambda: choice * x)


def random_walk(key: Any) -> Any:
    def step(carry: Any, k: Any) -> Any:
        carry = carry + jax.random.normal(k, dtype=jnp.float32)
        return carry, jax.random.uniform(jax.random.fold_in(k, 7), dtype=jnp.float32) * carry

    last, path = lax.scan(step, jnp.float32(0), jax.random.split(key, 6))
    return last, path, jax.random.bits(key), jax.random.randint(key, (), 0, 100)


def memory(x: Any, index: Any) -> Any:
    """Gather, scatter, sorting and updates in place, on an array too large to be unrolled."""
    table = jnp.zeros(200, x.dtype).at[index].add(x).at[index[::-1] * 3 % 200].multiply(x[0])
    total = lax.fori_loop(0, 5, lambda i, t: t.at[index[i]].set(t[index[i]] / 3 + jnp.sin(t[i])), table)
    return total[index], jnp.sort(x), jnp.cumsum(x), total.sum()


def functions(x: Any, y: Any) -> Any:
    """Every elementary function, about as they are used."""
    u = jnp.abs(x) + 1e-3
    several = [jnp.exp(-u), jnp.exp2(x), jnp.log(u), jnp.log1p(u), jnp.expm1(x), jnp.sin(40 * x), jnp.cos(x),
               jnp.tan(x), jnp.tanh(x), jnp.sinh(x), jnp.cosh(x), jnp.arcsin(x / 9), jnp.arccos(x / 9), jnp.arctan(x),
               jnp.arcsinh(x), jnp.arccosh(1 + u), jnp.arctanh(x / 9), jnp.sqrt(u), lax.rsqrt(u), jnp.cbrt(x),
               jax.nn.sigmoid(x), lax.erf(x), lax.erfc(x), lax.erf_inv(x / 9), lax.lgamma(x), lax.digamma(u), u**y,
               jnp.arctan2(x, y), x % y, x / y, x * y + x]
    return jnp.stack(several), sum(several), jnp.stack(several).reshape(1, -1) @ jnp.stack(several)


def solve(y0: Any, rho: Any) -> Any:
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, r: lorenz(y, r)), diffrax.Tsit5(), 0.0, 0.5, 0.01, y0, args=rho,
        stepsize_controller=diffrax.PIDController(rtol=1e-5, atol=1e-5))
    return solution.ys, solution.stats["num_steps"]


def normal(dtype: Any, *shapes: tuple[int, ...]) -> Maker:
    return lambda rng: tuple(rng.normal(size=(BATCH, *shape)).astype(dtype) for shape in shapes)


def starts(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    y0 = np.ones(3) + 0.5 * rng.normal(size=(BATCH, 3))
    return y0.astype(np.float32), rng.uniform(0.5, 28, BATCH).astype(np.float32)


def plane(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    return tuple(rng.uniform(-1.5, 0.7, BATCH).astype(np.float32) for _ in range(2))


def keys(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    return (rng.integers(0, 1 << 32, (BATCH, 2), dtype=np.uint32),)


def indices(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    return rng.normal(size=(BATCH, 6)).astype(np.float32), rng.integers(0, 200, (BATCH, 6), dtype=np.int32)


def kinds(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    return 3 * rng.normal(size=BATCH), rng.integers(0, 9, BATCH)


#: Name -> function of one example, its arguments, their axes, lanes to run with beside one.
PROGRAMS: dict[str, tuple[Callable[..., Any], Maker, Any, tuple[int, ...]]] = {
    "mandelbrot": (escape_count, plane, 0, (2, 4, 8, 16, 32)),
    "adaptive ODE": (adaptive_lorenz, starts, 0, (2, 4, 8, 16, 32)),
    "filter": (particle_filter, normal(np.float32, (9,), ()), 0, (2, 4, 8, 16, 32)),
    "filter, shared noise": (particle_filter, lambda rng: (rng.normal(size=(BATCH, 9)), np.float64(0.7)), (0, None),
                             (2, 8, 16)),
    "branches": (branches, kinds, 0, (2, 4, 8, 16, 32)),
    "random numbers": (random_walk, keys, 0, (2, 4, 8, 16, 32)),
    "memory": (memory, indices, 0, (2, 8, 16)),
    "functions, float32": (functions, normal(np.float32, (), ()), 0, (2, 8, 16)),
    "functions, float64": (functions, normal(np.float64, (), ()), 0, (2, 4, 16)),
    "functions, shared exponent": (functions, lambda rng: (*normal(np.float32, ())(rng), np.float32(1.7)), (0, None),
                                   (8,)),
    "diffrax": (solve, starts, 0, (8, 16)),
}


# ---- runs ------------------------------------------------------------------------------------------------------------
def bits(results: Any) -> list[np.ndarray]:
    """Results as unsigned integers."""
    arrays = [np.asarray(x) for x in jax.tree.leaves(results)]
    return [x.view(f"u{x.dtype.itemsize}") if x.dtype.kind == "f" else x for x in arrays]


def arguments(name: str) -> tuple[np.ndarray, ...]:
    return PROGRAMS[name][1](np.random.default_rng(3))


def run(name: str, args: tuple[np.ndarray, ...], **plan: Any) -> list[np.ndarray]:
    fun, _, axes, _ = PROGRAMS[name]
    return bits(jax.jit(lanax.vmap(fun, axes, plan=lanax.Plan(**{"route": "lanes"} | plan)))(*args))


@functools.cache
def one_at_a_time(name: str) -> list[np.ndarray]:
    """The reference: scalar code in the calling thread."""
    return run(name, arguments(name), lanes=1, threads=1)


def assert_equal(got: list[np.ndarray], want: list[np.ndarray]) -> None:
    for x, y in zip(got, want, strict=True):
        np.testing.assert_array_equal(x, y)


def only(name: str, args: tuple[np.ndarray, ...], which: Any) -> tuple[np.ndarray, ...]:
    """Some examples of a batch."""
    axes = PROGRAMS[name][2]
    axes = [axes] * len(args) if isinstance(axes, int) else axes
    return tuple(x if axis is None else x[which] for x, axis in zip(args, axes, strict=True))


@pytest.mark.parametrize("name", PROGRAMS)
def test_these_are_one_kernel_each(name: str) -> None:
    fun, _, axes, _ = PROGRAMS[name]
    report = lanax.explain(lanax.vmap(fun, axes, plan=lanax.Plan(route="lanes")), *arguments(name))
    assert (report.routes, report.misses) == (("lanes",), ())


@pytest.mark.parametrize(("name", "lanes"), [(name, lanes) for name, row in PROGRAMS.items() for lanes in row[3]])
def test_lanes(name: str, lanes: int) -> None:
    assert_equal(run(name, arguments(name), lanes=lanes), one_at_a_time(name))


@pytest.mark.parametrize("name", ["mandelbrot", "adaptive ODE", "filter", "branches", "random numbers", "diffrax"])
@pytest.mark.parametrize("threads", [1, 2])
def test_threads_and_chunks(name: str, threads: int) -> None:
    for chunk in (None, 1, 7, 64):
        assert_equal(run(name, arguments(name), lanes=8, threads=threads, chunk=chunk), one_at_a_time(name))


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in ("filter, shared noise", "diffrax")])
def test_the_batch_around_an_example(name: str) -> None:
    args, want = arguments(name), one_at_a_time(name)
    order = np.random.default_rng(0).permutation(BATCH)
    for which in (slice(0, 1), slice(0, 7), slice(3, 20), slice(40, 75), order):
        got = run(name, only(name, args, which), lanes=8)
        assert_equal(got, [x[which] for x in want])


def test_a_large_batch_in_both_threads() -> None:
    """So large that the pool's threads take part, whatever they claim."""
    args = tuple(np.tile(x, 400) for x in arguments("mandelbrot"))
    want = [np.tile(x, 400) for x in one_at_a_time("mandelbrot")]
    for _ in range(3):
        assert_equal(run("mandelbrot", args), want)


def test_lanes_chosen_by_lanax() -> None:
    for name in ("mandelbrot", "adaptive ODE", "branches", "random numbers"):
        assert_equal(run(name, arguments(name), route="auto"), one_at_a_time(name))
        assert_equal(run(name, arguments(name), route="serial"), one_at_a_time(name))


def test_random_bits_are_those_of_jax() -> None:
    """And so are integers; floats agree with the per-example loop."""
    args = arguments("random numbers")
    got, want = run("random numbers", args), bits(jax.jit(jax.vmap(random_walk))(*args))
    assert_equal(got[2:], want[2:])
    for name in ("adaptive ODE", "branches", "memory"):
        fun, _, axes, _ = PROGRAMS[name]
        mine = jax.tree.leaves(lanax.vmap(fun, axes)(*arguments(name)))
        for x, y in zip(mine, jax.tree.leaves(jax.vmap(fun, axes)(*arguments(name))), strict=True):
            np.testing.assert_allclose(x, y, rtol=2e-3, atol=1e-4)
