"""What it brings that a lane which has left the loop takes the next example: lane use and time, with and without.

    python benchmarks/uneven.py [--batch N] [--rounds N] [--jax]

Ensembles of adaptive Lorenz solvers in random order and in the order of their trips, oscillators of which one in a
hundred takes a hundred times as many steps, and oscillators that take the same number. The ways take turns; the time is
the median. Nothing but the refilling is different: one kernel waits in each step for its slowest lane. `--jax` runs
`jax.jit(jax.vmap(f))` too, twice, which takes a minute.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import lanax
from lanax import _pipeline
from lanax._planning import planner
from lanax._suite.odes import adaptive_lorenz, lorenz_rk, rk4_step
from lanax._suite.timing import seconds

Arrays = tuple[np.ndarray, ...]


def oscillate(y0: jax.Array, steps: jax.Array) -> jax.Array:
    """State of a Van der Pol oscillator after some steps."""
    return jax.lax.fori_loop(0, steps, lambda _, y: rk4_step(y, 0.001, 1.0), y0)


def lorenz(batch: int, ordered: bool) -> Arrays:
    """The benchmark's ensemble; the parameter decides about how many trips a solver makes."""
    y0, rho = lorenz_rk(batch).args
    order = np.argsort(rho) if ordered else np.arange(batch)
    return y0[order], rho[order]


def oscillators(batch: int, longest: int) -> Arrays:
    """100 steps each, one in a hundred `longest`, at random."""
    rng = np.random.default_rng(6)
    steps = np.where(rng.random(batch) < 0.01, longest, 100).astype(np.int32)
    return rng.uniform(-2.0, 2.0, (batch, 2)).astype(np.float32), steps


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[int], Arrays]]] = {
    "Lorenz, random order": (adaptive_lorenz, lambda n: lorenz(n, False)),
    "Lorenz, in order": (adaptive_lorenz, lambda n: lorenz(n, True)),
    "1 in 100 takes 100 times as long": (oscillate, lambda n: oscillators(n, 10_000)),
    "all alike": (oscillate, lambda n: oscillators(n, 100)),
}


@contextlib.contextmanager
def refilling(allowed: bool) -> Iterator[None]:
    """While it lasts, no kernel that is planned refills its lanes, unless it is allowed."""
    before = planner._MOST_WAIT
    planner._MOST_WAIT = before if allowed else 0
    _pipeline._stages.cache_clear()
    try:
        yield
    finally:
        planner._MOST_WAIT = before
        _pipeline._stages.cache_clear()


def sides(fun: Callable[..., Any], args: Arrays) -> dict[bool, tuple[Any, float, int]]:
    """The compiled call, the lane use of its loop, and the trips that lanes wait for a refill; with and without."""
    found = {}
    for allowed in (True, False):
        with refilling(allowed):
            compiled = jax.jit(lambda *xs: lanax.vmap(fun)(*xs)).lower(*args).compile()
            profile = lanax.profile(lanax.vmap(fun), *args)
            kernel = profile.kernels[0]
            found[allowed] = compiled, kernel.lane_use, profile.report.kernels[0].refill
    return found


def medians(found: dict[bool, tuple[Any, float, int]], args: Arrays, rounds: int) -> dict[bool, float]:
    """Median seconds of either side."""
    placed = jax.device_put(args, jax.devices("cpu")[0])
    times: dict[bool, list[float]] = {side: [] for side in found}
    for _ in range(rounds + 1):
        for side, (compiled, _, _) in found.items():
            times[side].append(seconds(compiled, placed))
    return {side: statistics.median(runs[1:]) for side, runs in times.items()}


def seconds_of_jax(fun: Callable[..., Any], args: Arrays) -> float:
    """Seconds of the second run of `jax.jit(jax.vmap(fun))`."""
    run = jax.jit(jax.vmap(fun))
    jax.block_until_ready(run(*args))
    return seconds(run, args)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=100_000, help="examples (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="runs of each side (default %(default)s)")
    parser.add_argument("--jax", action="store_true", help="run jax.vmap too")
    options = parser.parse_args()
    table = Table("program", "lane use without", "with", "ms without", "with", "times as fast", "trips waited",
                  "ms of jax.vmap")
    for name, (fun, make) in PROGRAMS.items():
        args = make(options.batch)
        found = sides(fun, args)
        took = medians(found, args, options.rounds)
        table.add_row(name, f"{found[False][1]:.0%}", f"{found[True][1]:.0%}", f"{1e3 * took[False]:.1f}",
                      f"{1e3 * took[True]:.1f}", f"{took[False] / took[True]:.2f}", str(found[True][2]),
                      f"{1e3 * seconds_of_jax(fun, args):.0f}" if options.jax else "-")
    Console().print(table)


if __name__ == "__main__":
    main()
