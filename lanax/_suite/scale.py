"""How a program scales: the same on 1, 2, 4, 8 devices and in 1, 2, 4 processes, each in a process of its own.

Every device, and every process, has one thread, so that a device stands for a core. `python -m lanax._suite.scale` is
what the processes run. Shows nothing.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import lanax
from lanax import distributed
from lanax._suite.program import Case, Program
from lanax._suite.programs import find

DEVICES, PROCESSES = (1, 2, 4, 8), (1, 2, 4)
#: Parts of the fixed batch that one device or process has where the batch grows with their number.
_PART = 4
#: Examples of a batch that costs nothing but the call, for each device or process.
_FEW = 8
RUNS, QUICK_RUNS = 15, 3
#: Seconds that one measurement may take, processes and their imports and all.
SECONDS = 300.0
_COLLECTIVES = re.compile(r"\b(all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)\b")


@dataclasses.dataclass(frozen=True)
class Job:
    """One measurement.

    Attributes:
      kind, count: `"devices"` or `"processes"`, and how many.
      program: of the suite, by name.
      fixed, growing: examples of the two batches, the second for so many devices.
      runs: of each batch.
    """

    kind: str
    count: int
    program: str
    fixed: int
    growing: int
    runs: int


@dataclasses.dataclass(frozen=True)
class Measured:
    """What one measurement gave. Times are the least of the runs, in seconds.

    Attributes:
      fixed, growing: of a call, the results left in place.
      gathered: of a call on the fixed batch, the results given to all processes; None for devices.
      overhead: of a call on a few examples: what it costs beside the work.
      moved: bytes that a call on the fixed batch sends between devices, or to gather between processes; None: some.
    """

    kind: str
    count: int
    fixed: float
    growing: float
    gathered: float | None
    overhead: float
    moved: int | None


def measure_all(program: Program, *, quick: bool, tell: Callable[[str], None] = lambda _: None) -> list[Measured]:
    """Every number of devices, then of processes.

    Raises:
      RuntimeError: a process fails, or does not end.
    """
    batch = (program.quick if quick else program.batch) // max(DEVICES) * max(DEVICES)
    results = []
    for kind, counts in (("devices", DEVICES), ("processes", PROCESSES)):
        for count in counts:
            tell(f"{count} {kind}")
            runs = QUICK_RUNS if quick else RUNS
            results.append(_measure(Job(kind, count, program.name, batch, batch // _PART * count, runs)))
    return results


def _measure(job: Job) -> Measured:
    processes = job.count if job.kind == "processes" else 1
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    with tempfile.TemporaryDirectory() as place:
        outs = [Path(place, f"{i}.json") for i in range(processes)]
        started = [_start(job, i, port, out) for i, out in enumerate(outs)]
        end = time.monotonic() + SECONDS
        try:
            said = [process.communicate(timeout=max(0.0, end - time.monotonic()))[0] for process in started]
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{job.count} {job.kind} did not end within {SECONDS:.0f} s") from None
        finally:
            for process in started:
                process.kill()
                process.wait()
        bad = next((i for i, process in enumerate(started) if process.returncode), None)
        if bad is not None:
            raise RuntimeError(f"{job.count} {job.kind}: process {bad} failed:\n{said[bad][-2000:]}")
        return Measured(**json.loads(outs[0].read_text()))


def _start(job: Job, number: int, port: int, out: Path) -> subprocess.Popen[str]:
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "LANAX_THREADS": "1"}
    if job.kind == "devices":
        env["XLA_FLAGS"] = f"{env.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={job.count}"
    task = json.dumps({"job": dataclasses.asdict(job), "number": number, "port": port, "out": str(out)})
    return subprocess.Popen([sys.executable, "-m", "lanax._suite.scale", task], env=env, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


# ---- in the processes ------------------------------------------------------------------------------------------------


def _devices(job: Job, case: Callable[[int], Case]) -> Measured:
    """`jit(lanax.vmap(f))` of a batch that is sharded over the devices."""
    mesh = Mesh(np.array(jax.devices()), ("batch",))

    def seconds(batch: int) -> tuple[float, int | None]:
        made = case(batch)
        axes = _axes(made)
        args = [jax.device_put(x, NamedSharding(mesh, PartitionSpec() if axis is None else PartitionSpec("batch")))
                for x, axis in zip(made.args, axes, strict=True)]
        run = jax.jit(lanax.vmap(made.fun, made.in_axes)).lower(*args).compile()
        return _least(lambda: jax.block_until_ready(run(*args)), job.runs), (
            None if _COLLECTIVES.search(run.as_text() or "") else 0)

    fixed, moved = seconds(job.fixed)
    growing, _ = seconds(job.growing)
    overhead, _ = seconds(_FEW * job.count)
    return Measured(job.kind, job.count, fixed, growing, None, overhead, moved)


def _processes(job: Job, case: Callable[[int], Case]) -> Measured:
    """`lanax.distributed.map` of a batch that every process has."""

    def seconds(batch: int, gather: bool) -> float:
        made = case(batch)
        axes = _axes(made)
        mapped = tuple(x for x, axis in zip(made.args, axes, strict=True) if axis is not None)

        def one(some: Any) -> Any:
            rest = iter(some)
            return made.fun(*(x if axis is None else next(rest) for x, axis in zip(made.args, axes, strict=True)))

        chunk = max(1, -(-batch // (4 * job.count)))
        return _least(lambda: jax.block_until_ready(distributed.map(one, mapped, gather=gather, chunk=chunk)),
                       job.runs)

    fixed, gathered = seconds(job.fixed, False), seconds(job.fixed, True)
    growing, overhead = seconds(job.growing, False), seconds(_FEW * job.count, False)
    return Measured(job.kind, job.count, fixed, growing, gathered, overhead, _gathered_bytes(job, case(_FEW)))


def _gathered_bytes(job: Job, few: Case) -> int:
    """Bytes that all processes receive from others, of the results of the fixed batch."""
    outs = jax.eval_shape(jax.vmap(few.fun, few.in_axes), *few.args)
    row = sum(x.dtype.itemsize * int(np.prod(x.shape[1:])) for x in jax.tree.leaves(outs))
    return row * job.fixed * (job.count - 1)


def _axes(case: Case) -> tuple[Any, ...]:
    return case.in_axes if isinstance(case.in_axes, tuple) else (case.in_axes,) * len(case.args)


def _least(call: Callable[[], Any], runs: int) -> float:
    call()
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def main(text: str) -> None:
    """One process of a measurement; the first one writes what it has measured."""
    task = json.loads(text)
    job = Job(**task["job"])
    program = find([job.program])[0]
    if job.kind == "processes":
        distributed.initialize(f"127.0.0.1:{task['port']}", job.count, task["number"])
    measured = (_devices if job.kind == "devices" else _processes)(job, program.make)
    if task["number"] == 0:
        Path(task["out"]).write_text(json.dumps(dataclasses.asdict(measured)))


if __name__ == "__main__":
    main(sys.argv[1])
