"""What the processes of these tests run, and how they are started. Imported by the tests and by what they start."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent
#: Of machines that are busy with other tests.
SECONDS = 240.0


def grown(x: Any) -> Any:
    """A loop that each example leaves at its own time."""
    from jax import lax

    return lax.while_loop(lambda v: v[0] < 50, lambda v: (v[0] * 1.5 + 1, v[1] + 1), (x, 0))


def numbers(rows: int) -> np.ndarray:
    return np.linspace(-1.5, 49.0, rows, dtype=np.float32)


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a process has ended."""

    code: int
    out: str
    err: str


def run_processes(script: str, count: int, *args: object, seconds: float = SECONDS) -> list[Ended]:
    """Runs `count` processes of a script of this folder, which get their number, the number of all, a free port and
    `args`. None is left when it returns."""
    port = free_port()
    env = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS" and "proxy" not in k.lower()}
    env |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(FOLDER), "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryDirectory() as place:
        files = [(Path(place, f"{i}.out"), Path(place, f"{i}.err")) for i in range(count)]
        processes = []
        for i, (out, err) in enumerate(files):
            command = [sys.executable, str(FOLDER / script), str(i), str(count), str(port), *map(str, args)]
            with out.open("w") as to, err.open("w") as errors:
                processes.append(subprocess.Popen(command, env=env, stdout=to, stderr=errors))
        try:
            end = time.monotonic() + seconds
            for process in processes:
                process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass
        finally:
            codes = [process.poll() for process in processes]
            for process in processes:
                process.kill()
                process.wait()
        return [Ended(-999 if code is None else code, out.read_text(), err.read_text())
                for code, (out, err) in zip(codes, files, strict=True)]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def shown(ended: list[Ended]) -> str:
    return "\n".join(f"--- process {i}: {e.code}\n{e.out}\n{e.err}" for i, e in enumerate(ended))
