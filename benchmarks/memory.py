"""Peak memory of one million examples of a `scan` of 1000 steps, beyond the inputs and outputs.

Each side runs in a process of its own, since a peak cannot be taken back.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import jax

import lanax
from lanax._suite import odes

EXAMPLES = 1_000_000
LIMIT = 16.0
SIDES = {"jax": jax.vmap, "lanax": lanax.vmap}


def megabytes(arrays: object) -> float:
    """Size of all arrays of a pytree."""
    return sum(array.nbytes for array in jax.tree.leaves(arrays)) / 1e6


def peak() -> float:
    """Largest resident memory of this process so far, in megabytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def forget_peak() -> None:
    """Sets the peak back to what is resident now, where the system can (Linux)."""
    forget = Path("/proc/self/clear_refs")
    if forget.exists():
        forget.write_text("5")


def measure(side: str) -> None:
    """Prints inputs, outputs and what the call took beyond them."""
    case = odes.rk4_vdp(EXAMPLES)
    run = jax.jit(SIDES[side](case.fun, case.in_axes)).lower(*case.args).compile()
    args = jax.block_until_ready(jax.device_put(case.args, jax.devices("cpu")[0]))
    forget_peak()
    before = peak()
    outputs = jax.block_until_ready(run(*args))
    print(megabytes(args), megabytes(outputs), peak() - before - megabytes(outputs))


def main() -> int:
    """Prints a row for each side."""
    beyond = 0.0
    for side in SIDES:
        command = [sys.executable, __file__, side]
        shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        inputs, outputs, beyond = map(float, shown.split())
        print(f"{side + '.vmap':12s} inputs {inputs:.1f} MB, outputs {outputs:.1f} MB, beyond them {beyond:.1f} MB")
    print(f"limit for lanax: {LIMIT} MB beyond")
    return int(beyond > LIMIT)


if __name__ == "__main__":
    sys.exit(measure(sys.argv[1]) if len(sys.argv) > 1 else main())
