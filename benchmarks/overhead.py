"""What a call costs beyond its work: a small jitted kernel against a jitted `x + 1`, both on 16 numbers."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

import lanax

CALLS = 500
ROUNDS = 101
LIMIT = 2.0


def microseconds_per_call(run: Callable[[jax.Array], jax.Array], x: jax.Array) -> float:
    """Mean over `CALLS` calls, each waited for."""
    start = time.perf_counter()
    for _ in range(CALLS):
        run(x).block_until_ready()
    return (time.perf_counter() - start) / CALLS * 1e6


def main() -> int:
    """Prints both, and their ratio."""
    x = jax.device_put(jnp.arange(16.0), jax.devices("cpu")[0])
    sides = {
        "jit(x + 1)": jax.jit(lambda x: x + 1.0),
        "jit(jax.vmap(x * x + 1))": jax.jit(jax.vmap(lambda x: x * x + 1.0)),
        "jit(lanax.vmap(x * x + 1))": jax.jit(lanax.vmap(lambda x: x * x + 1.0)),
    }
    rounds: dict[str, list[float]] = {name: [] for name in sides}
    for run in sides.values():
        microseconds_per_call(run, x)
    for _ in range(ROUNDS):
        for name, run in sides.items():
            rounds[name].append(microseconds_per_call(run, x))
    medians = {name: statistics.median(values) for name, values in rounds.items()}
    for name, value in medians.items():
        print(f"{name:28s} {value:6.2f} µs")
    ratio = medians["jit(lanax.vmap(x * x + 1))"] / medians["jit(x + 1)"]
    print(f"lanax / jit(x + 1): {ratio:.2f} (limit {LIMIT})")
    return int(ratio > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
