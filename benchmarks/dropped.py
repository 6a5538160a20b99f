"""Resident memory while many different functions are compiled, called once and dropped: it is to stay flat.

Each way runs in a process of its own, without lanax's disk cache: `eager` calls `lanax.vmap(f)`, `jit` calls
`jax.jit(lanax.vmap(f))`, and `jax` calls `jax.jit(jax.vmap(f))`, to tell what JAX keeps.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

import lanax

#: Growth in megabytes over the second half of the functions.
LIMIT = 30.0
WAYS: dict[str, Callable[[Any], Any]] = {
    "eager": lanax.vmap,
    "jit": lambda f: jax.jit(lanax.vmap(f)),
    "jax": lambda f: jax.jit(jax.vmap(f)),
}


def resident() -> float:
    """Resident memory of this process, in megabytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def mappings() -> int:
    """Mappings of memory of this process, of which Linux allows 65,530."""
    return Path("/proc/self/maps").read_bytes().count(b"\n")


def different(number: int) -> Callable[[jax.Array], jax.Array]:
    """A small function of one example with a loop; for each number its own."""
    def fun(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda v: v < number, lambda v: v * 2 + 1, x)

    return fun


def measure(way: str, count: int) -> int:
    """Prints a row for each tenth of the functions; 1 where they leave more than the limit."""
    xs = np.linspace(0, 1, 1000, dtype=np.float32)
    taken = []
    for i in range(count):
        jax.block_until_ready(WAYS[way](different(i + 1))(xs))
        if (i + 1) % (count // 10) == 0:
            gc.collect()
            taken.append(resident())
            print(f"{way:6s} {i + 1:6d} functions: {taken[-1]:7.1f} MB resident, {mappings():5d} mappings", flush=True)
    growth = taken[-1] - taken[4]
    print(f"{way:6s} second half: {growth:+.1f} MB (limit {LIMIT})", flush=True)
    return int(growth > LIMIT)


def main() -> int:
    """Runs one way after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ways", nargs="*", default=["eager", "jit"], help=f"some of {', '.join(WAYS)}")
    parser.add_argument("--count", type=int, default=10_000, help="functions")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.here:
        return measure(given.ways[0], given.count)
    environment = {**os.environ, "LANAX_CACHE": "off", "JAX_ENABLE_COMPILATION_CACHE": "false"}
    options = ["--count", str(given.count), "--here"]
    return max(subprocess.run([sys.executable, __file__, way, *options], env=environment, check=False).returncode
               for way in given.ways)


if __name__ == "__main__":
    sys.exit(main())
