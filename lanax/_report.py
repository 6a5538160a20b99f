"""What a mapped call does, as data whose text answers: how many examples run at once, what decides that, what does not
run in lanes and why."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

from lanax._jax import Atom
from lanax._partition import LANES, UNIFORM, XLA, Miss, count_equations
from lanax._pipeline import Axes, Kernel, Stages, stages
from lanax._plan import Plan
from lanax._program import Program
from lanax._runtime.ffi import pool_threads
from lanax._target import host


@dataclasses.dataclass(frozen=True)
class Call:
    """One mapped call as it was bound, or, where `program` is None, one that was left to `jax.vmap` and why."""

    program: Program | None
    in_axes: Axes
    out_axes: tuple[int, ...]
    axis_size: int
    plan: Plan
    reason: str = ""
    name: str = "program"

    @property
    def stages(self) -> Stages:
        assert self.program is not None
        return stages(self.program, self.in_axes, self.out_axes, self.plan)


_calls: contextvars.ContextVar[list[Call] | None] = contextvars.ContextVar("lanax_calls", default=None)


@contextlib.contextmanager
def recording() -> Iterator[list[Call]]:
    """Collects the mapped calls that are traced inside it."""
    calls: list[Call] = []
    token = _calls.set(calls)
    try:
        yield calls
    finally:
        _calls.reset(token)


def record(program: Program, in_axes: Axes, out_axes: tuple[int, ...], axis_size: int, plan: Plan) -> None:
    """Note a mapped call for whoever is recording."""
    calls = _calls.get()
    if calls is not None:
        calls.append(Call(program, in_axes, out_axes, axis_size, plan))


def record_plain(name: str, axis_size: int, plan: Plan, reason: str) -> None:
    """Note a mapped call of the function called `name` that is left to `jax.vmap`."""
    calls = _calls.get()
    if calls is not None:
        calls.append(Call(None, (), (), axis_size, plan, reason, name))


@dataclasses.dataclass(frozen=True)
class KernelReport:
    """One kernel.

    Attributes:
      equations: how many it holds, inner ones included.
      lanes, native_lanes, vectors, ruling, reason: examples of one step, and how they were found.
      steps, tail: whole steps, and examples left after them.
      threads, chunk: most threads that work on it; examples that a thread claims at a time (0: chosen at run time).
      refill: a lane that has left the program's loop takes the next example when not more than this many lanes are
        active; 0: each step runs until its last example is done.
      scratch_bytes: memory of each thread.
    """

    equations: int
    lanes: int
    native_lanes: int
    vectors: int
    ruling: str
    reason: str
    steps: int
    tail: int
    threads: int
    chunk: int
    refill: int
    scratch_bytes: int

    def lines(self) -> list[str]:
        """The kernel in words."""
        chunk = f"{self.chunk} examples" if self.chunk else "chosen from batch and threads at run time"
        return [
            f"lanes: {self.lanes} = {self.native_lanes} native {self.ruling} x {self.vectors} in flight "
            f"({self.reason})",
            f"steps: {self.steps} whole, tail of {self.tail}",
            f"uneven loops: lanes take the next example when {self.refill} or fewer are active" if self.refill else
            "uneven loops: a step runs until its last example is done",
            f"threads: at most {self.threads}; chunk: {chunk}",
            f"examples in flight: {self.lanes * self.threads}; scratch: {self.scratch_bytes} bytes a thread",
        ]


@dataclasses.dataclass(frozen=True)
class Report:
    """What one mapped call does. `str(report)` is the text.

    Attributes:
      name: the user's function.
      axis_size: examples in the batch.
      target: processor and instruction set.
      routes: the routes of the program's parts, in order.
      kernels: one for each part in lanes.
      misses: equations that are not in lanes, and why.
      checks: source lines of run-time checks that run once after the kernels.
    """

    name: str
    axis_size: int
    target: str
    routes: tuple[str, ...]
    kernels: tuple[KernelReport, ...]
    misses: tuple[Miss, ...]
    checks: tuple[str, ...]

    @property
    def plan_line(self) -> str:
        """The choices in one line."""
        if not self.kernels:
            return "route xla"
        k = self.kernels[0]
        return f"route {'+'.join(self.routes)}, {k.lanes} lanes ({k.native_lanes} x {k.vectors}), {k.threads} threads"

    def __str__(self) -> str:
        lines = [f"{self.name} over {self.axis_size} examples on {self.target}",
                 f"  route: {' -> '.join(self.routes) or UNIFORM}"]
        for i, kernel in enumerate(self.kernels):
            lines.append(f"  kernel {i}: {kernel.equations} equations")
            lines.extend(f"    {line}" for line in kernel.lines())
        if self.checks:
            lines.append("  checks, run once after the kernels: " + "; ".join(self.checks))
        lines.append("  not in lanes:" + ("" if self.misses else " nothing"))
        lines.extend(f"    {miss}" for miss in self.misses)
        return "\n".join(lines)


def report_of(call: Call) -> Report:
    """The report of one recorded call; compiles nothing."""
    target = f"{host().cpu}, {host().instruction_set}"
    if call.program is None:
        return Report(call.name, call.axis_size, target, (XLA,), (), (Miss("program", "", call.reason),), ())
    way = call.stages
    kernels = [way.kernel(i, *axes, call.axis_size) for i, axes in kernel_axes(way)]
    return Report(call.program.name, call.axis_size, target, way.partition.routes,
                  tuple(_kernel_report(k, call.axis_size) for k in kernels), way.partition.misses,
                  tuple(c.source for c in way.checks))


def kernel_axes(way: Stages) -> list[tuple[int, tuple[Axes, tuple[int, ...]]]]:
    """For each part in lanes its index, and the batch axes of its inputs and results, as a run gives them."""
    axes = [*[None] * len(way.consts), *way.in_axes]
    inputs: dict[Atom, int | None] = dict(zip(way.expanded.invars, axes, strict=True))
    wanted = way.wanted_axes
    found = []
    for i, part in enumerate(way.partition.parts):
        if part.route == LANES and part.jaxpr.outvars:
            outs = tuple(wanted.get(v, 0) for v in part.jaxpr.outvars)
            found.append((i, (tuple(inputs[v] for v in part.jaxpr.invars), outs)))
            inputs.update(zip(part.jaxpr.outvars, outs, strict=True))
        else:
            inputs.update((v, None if part.route == UNIFORM else 0) for v in part.jaxpr.outvars)
    return found


def _kernel_report(kernel: Kernel, axis_size: int) -> KernelReport:
    plan = kernel.plan
    most = max(1, math.ceil(axis_size / plan.grain))
    threads = min(plan.threads or pool_threads(), pool_threads(), most)
    return KernelReport(count_equations(kernel.jaxpr), plan.lanes, plan.native_lanes, plan.vectors, plan.ruling,
                        plan.reason, axis_size // plan.lanes, axis_size % plan.lanes, threads, plan.chunk,
                        plan.refill, kernel.source.scratch_bytes)


def text_of(call: Call, stage: str) -> str:
    """One stage of a recorded call as text."""
    if stage == "plan":
        return str(report_of(call))
    if call.program is None:
        return f"left to jax.vmap: {call.reason}"
    way = call.stages
    if stage == "jaxpr":
        return str(way.expanded)
    if stage == "uniformity":
        return way.uniformity.text()
    kernels = [way.kernel(i, *axes, call.axis_size) for i, axes in kernel_axes(way)]
    pick: dict[str, Any] = {"llvm": lambda k: k.source.text, "optimised": lambda k: k.compiled.optimised,
                            "asm": lambda k: k.compiled.asm}
    return "\n".join(pick[stage](k) for k in kernels)


def join_reports(reports: Sequence[Report]) -> str:
    """Several calls of one function, one after another."""
    return "\n".join(map(str, reports))
