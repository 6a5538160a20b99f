"""What a mapped call does, as data whose text answers: how many examples run at once, what decides that, what does not
run in lanes and why."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import math
import types
from collections.abc import Iterator, Sequence
from typing import Any

from lanax._config import logger
from lanax._devices.shares import Shares, for_each, shares_of
from lanax._devices.spread import shared_out
from lanax._jax import Atom
from lanax._pipeline import Axes, Kernel, Stages, equation_cost, stages
from lanax._plan import FIELDS, Plan, device_name
from lanax._planning.gains import gaining
from lanax._planning.partition import LANES, UNIFORM, XLA, Miss, count_equations
from lanax._planning.work import array_bytes, bytes_of, work_of
from lanax._program import Program, code_of
from lanax._reports import html
from lanax._reports.hints import hint
from lanax._reports.kernel import KernelReport, control_flow
from lanax._reports.warning import warn_of_misses, warn_of_whole
from lanax._runtime.ffi import pool_threads
from lanax._target import host

#: The route of a kernel of one lane that the plan asks for.
SERIAL = "serial"


@dataclasses.dataclass(frozen=True)
class Call:
    """One mapped call as it was bound, or, where `program` is None, one that was left to `jax.vmap` and why."""

    program: Program | None
    in_axes: Axes
    out_axes: Axes
    axis_size: int
    plan: Plan
    reason: str = ""
    name: str = "program"
    #: Of a program that was cut: calls, and between them what was left to `jax.vmap`.
    pieces: tuple[Call | tuple[Miss, ...], ...] = ()
    #: Of one that was left to `jax.vmap`: where the function is defined.
    source: str = ""
    #: Why the devices of the plan do not share the batch.
    unshared: str = ""

    @property
    def shares(self) -> Shares | None:
        """How devices share the batch."""
        alone = self.unshared or self.plan.devices in (None, 1)
        return None if alone else shares_of(self.plan, self.axis_size)

    @property
    def share_size(self) -> int:
        """Examples that one device has, at most."""
        return self.axis_size if self.shares is None else self.shares.most

    @property
    def stages(self) -> Stages:
        assert self.program is not None
        plan = self.plan if self.plan.devices is None else for_each(
            self.plan, 1 if self.shares is None else len(self.shares.devices))
        return stages(self.program, self.in_axes, self.out_axes, plan, self.share_size)


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


def is_recording() -> bool:
    """Whether mapped calls are collected."""
    return _calls.get() is not None


def record(program: Program, in_axes: Axes, out_axes: tuple[int, ...], axis_size: int, plan: Plan) -> None:
    """Note a mapped call for whoever is recording."""
    calls = _calls.get()
    if calls is not None:
        _, unshared = shared_out(program, in_axes, out_axes, axis_size, plan)
        calls.append(Call(program, in_axes, out_axes, axis_size, plan, unshared=unshared))


def record_plain(name: str, axis_size: int, plan: Plan, reason: str, source: str = "") -> None:
    """Note a mapped call of the function called `name`, defined at `source`, that is left to `jax.vmap`."""
    logger.info("%s: not in lanes: %s", name, Miss("program", "", reason))
    calls = _calls.get()
    if calls is not None:
        unshared = "" if plan.devices in (None, 1) else "one runs the whole batch: it is left to jax.vmap"
        calls.append(Call(None, (), (), axis_size, plan, reason, name, source=source, unshared=unshared))


def warn_plain(name: str, code: Any, reason: str) -> None:
    """Warn of such a call, unless somebody records it: the report will say it."""
    if _calls.get() is None:
        warn_of_whole(name, code, reason)


def users_line(fun: Any) -> str:
    """Where a function is defined, as `file:line (function)`; empty where unknown."""
    code = code_of(fun)
    return f"{code.co_filename}:{code.co_firstlineno} ({code.co_qualname})" if isinstance(code, types.CodeType) else ""


def record_pieces(program: Program, axis_size: int, plan: Plan, pieces: Sequence[Call | tuple[Miss, ...]]) -> None:
    """Note a mapped call of a program that was cut."""
    calls, name = _calls.get(), program.name
    if calls is not None:
        only = pieces[0] if len(pieces) == 1 and isinstance(pieces[0], Call) else None
        calls.append(only or Call(None, (), (), axis_size, plan, name=name, pieces=tuple(pieces)))
    else:
        warn_of_misses(name, program.code, [miss for piece in pieces if isinstance(piece, tuple) for miss in piece])


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
      plan: what was asked for; its `sources` say where.
      shares: where several devices share the batch, the name of each and how many examples it has; what is said of
        kernels is then of the first one.
      unshared: what happens where the devices that were asked for do not share it, and why.
    """

    name: str
    axis_size: int
    target: str
    routes: tuple[str, ...]
    kernels: tuple[KernelReport, ...]
    misses: tuple[Miss, ...]
    checks: tuple[str, ...]
    plan: Plan = dataclasses.field(default_factory=Plan)
    shares: tuple[tuple[str, int], ...] = ()
    unshared: str = ""

    @property
    def plan_line(self) -> str:
        """The choices in one line."""
        if not self.kernels:
            return "route xla"
        k = self.kernels[0]
        registers = f"{min(k.lanes, k.native_lanes)} x {k.vectors}"
        return f"route {'+'.join(self.routes)}, {k.lanes} lanes ({registers}), {k.threads} threads"

    def __str__(self) -> str:
        lines = [f"{self.name} over {self.axis_size} examples on {self.target}",
                 f"  route: {' -> '.join(self.routes) or UNIFORM}",
                 f"  asked for: {self._asked_for()}",
                 *[f"  devices: {line}" for line in self._devices()]]
        for i, kernel in enumerate(self.kernels):
            lines.append(f"  kernel {i}: {kernel.equations} equations")
            lines.extend(f"    {line}" for line in kernel.lines())
        if self.plan.threads is not None and XLA in self.routes:
            lines.append("  what XLA runs is on its own threads, whatever `threads` says")
        if self.checks:
            lines.append("  checks, run once after the kernels: " + "; ".join(self.checks))
        rest = "all of it, as the plan asks" if self.plan.route == XLA else "nothing"
        lines.append("  not in lanes:" + ("" if self.misses else f" {rest}"))
        for miss in self.misses:
            mend = hint(miss)
            lines.extend([f"    {miss}", *[f"      hint: {mend}"] * bool(mend)])
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Everything above as JSON takes it."""
        return {"name": self.name, "axis_size": self.axis_size, "target": self.target, "routes": list(self.routes),
                "plan": self.plan.typed(), "sources": dict(self.plan.sources), "plan_line": self.plan_line,
                "shares": [{"device": name, "examples": size} for name, size in self.shares],
                "unshared": self.unshared,
                "kernels": [kernel.to_dict() for kernel in self.kernels],
                "misses": [{**dataclasses.asdict(miss), "hint": hint(miss)} for miss in self.misses],
                "checks": list(self.checks)}

    def __rich__(self) -> Any:
        from rich.text import Text  # for who prints with rich alone

        text = Text(str(self))
        text.highlight_regex(r"^.* examples on .*$", "bold")
        text.highlight_regex(r"(?m)^ +(route|asked for|kernel \d+|not in lanes|bound by [a-z ]+)(?=[: ])", "bold cyan")
        text.highlight_regex(r"(?m)^ +hint:.*$", "green")
        text.highlight_regex(r"\bvarying\b", "yellow")
        return text

    def _repr_html_(self) -> str:
        rows = [("route", " \u2192 ".join(self.routes) or UNIFORM), ("asked for", self._asked_for()),
                *(("devices", line) for line in self._devices())]
        parts = [html.table(["", ""], rows)]
        for i, kernel in enumerate(self.kernels):
            lines = kernel.lines()
            facts = [line.partition(": ")[::2] for line in lines[:len(lines) - len(kernel.control_flow)]]
            parts += [f"<div>kernel {i}: {kernel.equations} equations</div>", html.table(["", ""], facts),
                      html.table(["loops and branches", "line", "lanes"],
                                  [("\u2003" * site.depth + site.kind, site.source, site.meaning)
                                   for site in kernel.control_flow])]
        missed = [(miss.primitive, miss.source, miss.reason, hint(miss)) for miss in self.misses]
        parts.append(html.table(["not in lanes", "line", "reason", "hint"], missed))
        return html.block(f"{self.name} over {self.axis_size:,} examples on {self.target}", *parts)

    def _devices(self) -> list[str]:
        """Who has which share, or why there are none; empty where one device is all that was asked for."""
        if self.shares:
            shares = ", ".join(f"{name} {size}" for name, size in self.shares)
            return [f"{shares} examples; what follows is of {self.shares[0][0]}"]
        return [self.unshared] if self.unshared else []

    def _asked_for(self) -> str:
        """The fields of the plan that are not left to lanax, and who set each."""
        fields = {name: f"{name}={value}" for name, value in self.plan.typed().items()}
        given = [f"{text} ({self.plan.sources.get(name, 'the call')})" for name, text in fields.items()]
        left = [name for name in FIELDS if name not in fields]
        return "; ".join([", ".join(given) or "nothing", *[f"automatic: {', '.join(left)}"] * bool(left)])


def report_of(call: Call) -> Report:
    """The report of one recorded call; compiles nothing."""
    target = f"{host().cpu}, {host().instruction_set}"
    if call.pieces:
        return _joined(call, target)
    if call.program is None:
        return Report(call.name, call.axis_size, target, (XLA,), (), (Miss("program", call.source, call.reason),), (),
                      call.plan, unshared=call.unshared)
    way = call.stages
    kernels = [way.kernel(i, *axes, call.share_size) for i, axes in kernel_axes(way)]
    shares = [(device_name(d), size) for d, size in zip(call.shares.devices, call.shares.sizes, strict=True)
              ] if call.shares else []
    devices = sum(size > 0 for _, size in shares) or 1
    serial = call.plan.route == SERIAL
    routes = tuple(SERIAL if serial and route == LANES else route for route in way.partition.routes)
    return Report(call.program.name, call.axis_size, target, routes,
                  tuple(_kernel_report(k, call.share_size, devices) for k in kernels), way.partition.misses,
                  tuple(c.source for c in way.checks), call.plan, tuple(shares), call.unshared)


def _joined(call: Call, target: str) -> Report:
    """The report of a program that was cut."""
    parts = [report_of(piece) if isinstance(piece, Call) else
             Report(call.name, call.axis_size, target, (XLA,), (), piece, ()) for piece in call.pieces]
    routes = [route for part in parts for route in part.routes]
    return Report(call.name, call.axis_size, target,
                  tuple(route for i, route in enumerate(routes) if i == 0 or route != routes[i - 1]),
                  tuple(k for part in parts for k in part.kernels), tuple(m for part in parts for m in part.misses),
                  tuple(c for part in parts for c in part.checks), call.plan,
                  next((part.shares for part in parts if part.shares), ()),
                  next((part.unshared for part in parts if part.unshared), ""))


def kernel_axes(way: Stages) -> list[tuple[int, tuple[Axes, Axes]]]:
    """For each part in lanes its index, and the batch axes of its inputs and results, as a run gives them."""
    axes = [*[None] * len(way.consts), *way.in_axes]
    inputs: dict[Atom, int | None] = dict(zip(way.expanded.invars, axes, strict=True))
    found = []
    for i, part in enumerate(way.partition.parts):
        if part.route == LANES and part.jaxpr.outvars:
            ins = tuple(inputs[v] for v in part.jaxpr.invars)
            outs = way.result_axes(part, ins)
            found.append((i, (ins, outs)))
            inputs.update(zip(part.jaxpr.outvars, outs, strict=True))
        else:
            inputs.update((v, None if part.route == UNIFORM else 0) for v in part.jaxpr.outvars)
    return found


def threads_of(kernel: Kernel, axis_size: int, devices: int = 1) -> int:
    """Most threads that work on a kernel, where so many devices share the cores."""
    most, cores = max(1, math.ceil(axis_size / kernel.plan.grain)), math.ceil(pool_threads() / devices)
    return min(kernel.threads or cores, cores, most)


def _kernel_report(kernel: Kernel, axis_size: int, devices: int) -> KernelReport:
    plan = kernel.plan
    threads = threads_of(kernel, axis_size, devices)
    read, written = bytes_of(kernel.jaxpr, kernel.in_axes, kernel.out_axes)
    mapped = zip(kernel.jaxpr.outvars, kernel.out_axes, strict=True)
    largest = axis_size * max((array_bytes(v.aval) for v, axis in mapped if axis is not None), default=0)
    return KernelReport(count_equations(kernel.jaxpr), plan.lanes, plan.native_lanes, plan.vectors, plan.ruling,
                        plan.reason, axis_size // plan.lanes, axis_size % plan.lanes, threads, plan.chunk,
                        plan.refill, kernel.source.scratch_bytes, tuple(gaining(kernel.jaxpr)), plan.uneven,
                        plan.accuracy, read, written, largest, work_of(kernel.jaxpr, equation_cost),
                        tuple(control_flow(kernel.uniformity)))


def text_of(call: Call, stage: str) -> str:
    """One stage of a recorded call as text."""
    if stage == "plan":
        return str(report_of(call))
    if call.pieces:
        return "\n".join(text_of(piece, stage) if isinstance(piece, Call) else
                         "\n".join(f"left to jax.vmap: {miss}" for miss in piece) for piece in call.pieces)
    if call.program is None:
        return f"left to jax.vmap: {call.reason}"
    way = call.stages
    if stage == "jaxpr":
        return str(way.expanded)
    if stage == "uniformity":
        return way.uniformity.text()
    kernels = [way.kernel(i, *axes, call.share_size) for i, axes in kernel_axes(way)]
    return "\n".join(kernel.stage(stage) for kernel in kernels)


def join_reports(reports: Sequence[Report]) -> str:
    """Several calls of one function, one after another."""
    return "\n".join(map(str, reports))
