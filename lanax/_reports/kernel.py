"""What one kernel does, as data whose text answers: lanes, cost of an example, what binds it, loops and branches."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from lanax._jax import source_line
from lanax._planning.uniformity import Uniformity
from lanax._planning.work import ASSUMED_TRIPS, Work
from lanax._reports.bounds import bounds, duration
from lanax._rewrite.surgery import CONTROL_FLOW
from lanax._runtime.speed import measured
from lanax._target import FRESH


@dataclasses.dataclass(frozen=True)
class ControlFlow:
    """A loop or a branch of a kernel.

    Attributes:
      kind, source, depth: `while`, `scan` or `cond`; the user's line; how many loops and branches are around it.
      varying: whether lanes part here: they leave the loop at different trips, or take different sides.
      trips: of a loop that has a fixed length; else None.
    """

    kind: str
    source: str
    depth: int
    varying: bool
    trips: int | None = None

    @property
    def meaning(self) -> str:
        """What it means for the lanes of a step."""
        if self.trips is not None:
            return f"uniform: {self.trips} trips for all"
        if self.kind == "cond":
            return ("varying: a side runs where any lane takes it" if self.varying else
                    "uniform: all lanes take the same side")
        return "varying: runs while any lane is active" if self.varying else "uniform: all lanes leave it together"

    def __str__(self) -> str:
        return f"{self.kind}{f' at {self.source}' if self.source else ''}: {self.meaning}"


def control_flow(found: Uniformity, depth: int = 0) -> Iterator[ControlFlow]:
    """The loops and branches in the order of the program, inner ones after those around them."""
    for i, eqn in enumerate(found.jaxpr.eqns):
        kind = eqn.primitive.name
        if kind in CONTROL_FLOW:
            yield ControlFlow(kind, source_line(eqn), depth, found.predicate_varies(i), eqn.params.get("length"))
        for inner in found.inner.get(i, ()):
            yield from control_flow(inner, depth + 1)


_ACCURACY = {"default": "functions within 1 ULP in float32, 2 in float64", "fast": "fast: functions within 4 ULP"}


#: So many primitives are named.
_NAMED = 6


def _listed(names: tuple[str, ...]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(f"`{name}`" for name in names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


@dataclasses.dataclass(frozen=True)
class KernelReport:
    """One kernel.

    Attributes:
      equations: how many it holds, inner ones included.
      lanes, native_lanes, vectors, ruling, reason: examples of one step; those that fill one register of the dtype that
        rules, registers in flight, that dtype; and why so many.
      steps, tail: whole steps, and examples left after them.
      threads, chunk: most threads that work on it; examples that a thread claims at a time (0: chosen at run time).
      refill: lanes that have left the program's loop take the next examples when they have waited so many trips, on
        average; 0: each step runs until its last example is done.
      gain: primitives that cost less in lanes than in XLA.
      uneven: why they do not.
      scratch_bytes: memory of each thread.
      accuracy: `default` or `fast`, of its elementary functions.
      bytes_in, bytes_out: what one example reads and writes.
      largest_result: bytes of the largest result over the whole batch.
      work: what one example computes, by estimate; a loop of unknown end is taken to make 16 trips.
      control_flow: loops and branches, in the order of the program.
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
    gain: tuple[str, ...] = ()
    uneven: str = ""
    accuracy: str = "default"
    bytes_in: int = 0
    bytes_out: int = 0
    largest_result: int = 0
    work: Work = dataclasses.field(default_factory=Work)
    control_flow: tuple[ControlFlow, ...] = ()

    @property
    def axis_size(self) -> int:
        """Examples of the batch."""
        return self.steps * self.lanes + self.tail

    @property
    def in_flight(self) -> int:
        """Examples that all threads together work on at once."""
        return min(self.axis_size, self.lanes * self.threads)

    @property
    def bounds(self) -> dict[str, float]:
        """Seconds that each limit of the machine alone would make it take were all lanes active, longest first. The
        machine is measured once, in some tens of milliseconds."""
        width = 8 * np.dtype(self.ruling).itemsize * self.axis_size
        return bounds(measured(), self.threads, math.ceil(self.axis_size / self.lanes), self.work.instructions * width,
                      self.work.divides * width, self.axis_size * (self.bytes_in + self.bytes_out), self.work.chain)

    @property
    def assumes_trips(self) -> bool:
        """Whether a loop's number of trips had to be guessed."""
        return any(site.kind == "while" for site in self.control_flow)

    def to_dict(self) -> dict[str, Any]:
        """Everything above as JSON takes it; times are in seconds."""
        guess = ASSUMED_TRIPS if self.assumes_trips else None
        return {**dataclasses.asdict(self), "in_flight": self.in_flight, "bounds": self.bounds, "assumed_trips": guess}

    def lines(self) -> list[str]:
        """The kernel in words."""
        chunk = f"{self.chunk} examples" if self.chunk else "chosen from batch and threads at run time"
        return [
            f"lanes: {self._registers} ({self.reason})",
            f"steps: {self.steps} whole, tail of {self.tail}",
            f"uneven loops: lanes that are done take the next examples when they have waited {self.refill} trips"
            if self.refill else
            f"uneven loops: a step runs until its last example is done{f' ({self.uneven})' * bool(self.uneven)}",
            f"threads: at most {self.threads}; chunk: {chunk}",
            f"examples in flight: {self.in_flight}; scratch: {self.scratch_bytes} bytes a thread",
            "why lanes: " + (f"{_listed(self.gain)}, which cost more in XLA" if self.gain else
                             "small arrays, and what parts of it hand on to each other, stay with the lanes"),
            f"accuracy: {_ACCURACY[self.accuracy]}",
            *self._cost_lines(),
            *("  " * site.depth + str(site) for site in self.control_flow),
        ]

    @property
    def _registers(self) -> str:
        native = f"{self.native_lanes} native {self.ruling}"
        if self.lanes < self.native_lanes:
            return f"{self.lanes} of {native}"
        return f"{self.lanes} = {native} x {self.vectors} in flight"

    def _cost_lines(self) -> list[str]:
        guess = f", taking loops of unknown end as {ASSUMED_TRIPS} trips" if self.assumes_trips else ""
        (bound, least), *others = self.bounds.items()
        rest = ", ".join(f"{name} {duration(seconds)}" for name, seconds in others)
        size = f"{self.largest_result >> 20} MiB"
        memory = (f"memory: glibc takes new pages for a result of {size} at each call, which the system clears first; "
                  "another malloc, such as tcmalloc, keeps them")
        return [*[memory] * (self.largest_result >= FRESH),
                f"each example: {self.bytes_in} bytes in, {self.bytes_out} out, "
                f"{self.scratch_bytes // self.lanes} of scratch; about {self.work.flops:.4g} flops{guess}",
                f"bound by {bound}: at least {duration(least)}; {rest}"]
