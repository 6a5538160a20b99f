"""The figures of docs/parallelism.md: how many examples run at once, and what that is worth. Run it on a quiet machine.

    python benchmarks/parallelism.py [--rounds 7]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lanax
from lanax._suite.programs import find
from lanax._suite.report import machine
from lanax._suite.timing import seconds

Runs = dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]


def escape_count(c: Any) -> Any:
    """Steps after which z -> z^2 + c leaves the circle of radius 2; at most 256."""

    def inside(state):
        x, y, n = state
        return (x * x + y * y <= 4.0) & (n < 256)

    def step(state):
        x, y, n = state
        return x * x - y * y + c[0], 2 * x * y + c[1], n + 1

    return lax.while_loop(inside, step, (0.0 * c[0], 0.0 * c[1], jnp.int32(0)))[2]


def points(side: int, dtype: Any = np.float32) -> Any:
    """A square picture of the Mandelbrot set, row after row."""
    x, y = np.meshgrid(np.linspace(-2, 0.5, side), np.linspace(-1.25, 1.25, side))
    return jnp.asarray(np.stack([x.ravel(), y.ravel()], 1).astype(dtype))


def newton(x: Any) -> Any:
    """Twenty steps on an array of 4096 numbers: more than registers hold, and the same for each example."""
    return lax.fori_loop(0, 20, lambda _, v: 0.5 * (v + x / v), x)


def mapped(fun: Callable[..., Any], **plan: Any) -> Callable[..., Any]:
    return jax.jit(lanax.vmap(fun, plan=lanax.Plan(**plan)))


def measure(title: str, runs: Runs, rounds: int) -> None:
    """Print the median of some rounds in which each way runs once."""
    print(f"\n{title}")
    for run, args in runs.values():
        jax.block_until_ready(run(*args))  # compiles
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, (run, args) in runs.items():
            times[name].append(seconds(run, args))
    for name, taken in times.items():
        print(f"  {name:38}{1e3 * statistics.median(taken):10.3f} ms   (least {1e3 * min(taken):.3f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    print(machine())
    p = points(1024)
    measure("Mandelbrot, 1,048,576 points", {
        "jax.vmap": (jax.jit(jax.vmap(escape_count)), (p,)),
        "jax.lax.map": (jax.jit(lambda p: lax.map(escape_count, p)), (p,)),
        "jax.lax.map(batch_size=1024)": (jax.jit(lambda p: lax.map(escape_count, p, batch_size=1024)), (p,)),
        "lanax.map, one thread": (jax.jit(lambda p: lanax.map(escape_count, p, plan=lanax.Plan(threads=1))), (p,)),
        "lanax.map": (jax.jit(lambda p: lanax.map(escape_count, p)), (p,)),
        "lanax.vmap": (mapped(escape_count), (p,)),
    }, rounds)
    native = lanax.explain(lanax.vmap(escape_count), p).kernels[0].native_lanes
    some = sorted({1, 4, native, 2 * native, 4 * native} - {128})
    measure("Mandelbrot by lanes, one thread", {
        f"lanes={n}": (mapped(escape_count, lanes=n, threads=1), (p,)) for n in some}, rounds)
    measure("Mandelbrot by threads", {f"threads={n}": (mapped(escape_count, threads=n), (p,)) for n in (1, 2)}, rounds)
    (straggler,) = find(["straggler"])
    case = straggler.make(straggler.batch)
    args = tuple(map(jnp.asarray, case.args))
    measure("256 examples, one of them 200 times as long", {
        "jax.vmap": (jax.jit(jax.vmap(case.fun, case.in_axes)), args),
        "jax.lax.map": (jax.jit(lambda *args: lax.map(lambda xs: case.fun(*xs), args)), args),
        "lanax.vmap": (jax.jit(lanax.vmap(case.fun, case.in_axes)), args),
    }, rounds)
    (scholes,) = find(["black_scholes"])
    case = scholes.make(scholes.batch)
    args = tuple(map(jnp.asarray, case.args))
    measure("Black-Scholes, 1,000,000 options: no loop", {
        "jax.vmap": (jax.jit(jax.vmap(case.fun, case.in_axes)), args),
        "jax.lax.map": (jax.jit(lambda *args: lax.map(lambda xs: case.fun(*xs), args)), args),
        "lanax.vmap": (jax.jit(lanax.vmap(case.fun, case.in_axes)), args),
    }, rounds)
    few = points(2)
    measure("Mandelbrot, 4 points", {
        "jax.vmap": (jax.jit(jax.vmap(escape_count)), (few,)),
        "jax.lax.map": (jax.jit(lambda p: lax.map(escape_count, p)), (few,)),
        "lanax.map": (jax.jit(lambda p: lanax.map(escape_count, p)), (few,)),
        "lanax.vmap": (mapped(escape_count), (few,)),
    }, 20 * rounds)
    large = jnp.asarray(np.random.default_rng(0).uniform(1, 2, (2000, 4096)).astype(np.float32))
    measure("Square roots by Newton's method, 2000 arrays of 4096", {
        "jax.vmap": (jax.jit(jax.vmap(newton)), (large,)),
        "jax.lax.map": (jax.jit(lambda x: lax.map(newton, x)), (large,)),
        "lanax.map": (jax.jit(lambda x: lanax.map(newton, x)), (large,)),
        "lanax.vmap, route lanes": (mapped(newton, route="lanes"), (large,)),
        "lanax.vmap": (mapped(newton), (large,)),
    }, rounds)
    jax.config.update("jax_enable_x64", True)
    double = points(1024, np.float64)
    measure("Mandelbrot in float64", {
        "jax.vmap": (jax.jit(jax.vmap(escape_count)), (double,)),
        "lanax.vmap": (mapped(escape_count), (double,)),
    }, rounds)


if __name__ == "__main__":
    main()
