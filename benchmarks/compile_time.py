"""Time to trace and compile the diffrax program, `jit(jax.vmap(f))` against `jit(lanax.vmap(f))`.

Each try is a process of its own with empty caches, since JAX and diffrax keep what they have traced.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

import jax

import lanax
from lanax._suite import odes

TRIES = 3
EXAMPLES = 100_000
SIDES = {"jax": jax.vmap, "lanax": lanax.vmap}


def measure(side: str) -> None:
    """Prints the seconds of one side."""
    case = odes.lorenz_diffrax(EXAMPLES)
    jax.block_until_ready(jax.jit(lambda x: x + 1.0)(1.0))  # starts JAX
    start = time.perf_counter()
    jax.jit(SIDES[side](case.fun, case.in_axes)).lower(*case.args).compile()
    print(time.perf_counter() - start)


def seconds(side: str) -> float:
    """Seconds of one side in a new process."""
    with tempfile.TemporaryDirectory() as empty:
        environment = {**os.environ, "XDG_CACHE_HOME": empty, "JAX_ENABLE_COMPILATION_CACHE": "false"}
        command = [sys.executable, __file__, side]
        return float(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)


def main() -> int:
    """Prints the median of each side, and their ratio."""
    tries: dict[str, list[float]] = {side: [] for side in SIDES}
    for _ in range(TRIES):
        for side, values in tries.items():
            values.append(seconds(side))
    medians = {side: statistics.median(values) for side, values in tries.items()}
    for side, value in medians.items():
        print(f"{side + '.vmap':12s} {value:.2f} s")
    ratio = medians["lanax"] / medians["jax"]
    print(f"lanax / jax: {ratio:.2f} (limit 1.0)")
    return int(ratio > 1.0)


if __name__ == "__main__":
    sys.exit(measure(sys.argv[1]) if len(sys.argv) > 1 else main())
