"""What a profile counted, as data whose text answers: loops, branches, chunks and kernels of one run. Runs nothing."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lanax._reports.bounds import duration


@dataclasses.dataclass(frozen=True)
class LoopUse:
    """What a loop did over the whole batch.

    Attributes:
      kind, source, depth: `while` or `scan`; the user's line; how many loops and branches are around it.
      lanes: of one step of the kernel.
      entries, examples: how often a step came to it, and how many examples (lanes) did.
      trips, active: trips of steps, and of examples.
      longest: the most trips of one entry.
    """

    kind: str
    source: str
    depth: int
    lanes: int
    entries: int
    examples: int
    trips: int
    active: int
    longest: int

    @property
    def mean(self) -> float:
        """Trips of an example, on average."""
        return self.active / max(1, self.examples)

    @property
    def step_mean(self) -> float:
        """Trips of a step, on average: as many as its slowest example makes, where lanes are not refilled."""
        return self.trips / max(1, self.entries)

    @property
    def lane_use(self) -> float:
        """Active lanes / lanes, over all trips."""
        return self.active / max(1, self.trips * self.lanes)

    def to_dict(self) -> dict[str, Any]:
        """What was counted, and what follows from it, as JSON takes it."""
        return {**dataclasses.asdict(self), "mean": self.mean, "step_mean": self.step_mean, "lane_use": self.lane_use}

    @property
    def trips_text(self) -> str:
        """How many trips it made. A step makes at least as many as its examples on average, unless these change."""
        each = "between fillings" if self.step_mean < 0.99 * self.mean else "a step"
        return f"{self.mean:.1f} trips an example, {self.step_mean:.1f} {each}, {self.longest} at most"

    def __str__(self) -> str:
        return f"{self.kind}{_at(self.source)}: {self.trips_text}; lane use {self.lane_use:.0%}"


@dataclasses.dataclass(frozen=True)
class BranchUse:
    """What a branch did over the whole batch.

    Attributes:
      source, depth: the user's line; how many loops and branches are around it.
      lanes: of one step of the kernel.
      entries, examples: how often a step came to it, and how many examples (lanes) did.
      sides: for each side, how often it ran and for how many examples.
    """

    source: str
    depth: int
    lanes: int
    entries: int
    examples: int
    sides: tuple[tuple[int, int], ...]

    @property
    def lane_use(self) -> float:
        """Lanes that took the side that ran / lanes, over all sides that ran."""
        return sum(n for _, n in self.sides) / max(1, self.lanes * sum(runs for runs, _ in self.sides))

    def to_dict(self) -> dict[str, Any]:
        """What was counted, and what follows from it, as JSON takes it."""
        sides = [{"runs": runs, "examples": examples} for runs, examples in self.sides]
        return {"kind": "cond", **dataclasses.asdict(self), "sides": sides, "lane_use": self.lane_use}

    def __str__(self) -> str:
        shares = ", ".join(f"side {i} run by {runs / max(1, self.entries):.0%} of steps for "
                           f"{n / max(1, self.examples):.0%} of examples" for i, (runs, n) in enumerate(self.sides))
        return f"cond{_at(self.source)}: {shares}"


def _at(source: str) -> str:
    return f" at {source}" if source else ""


@dataclasses.dataclass(frozen=True)
class ChunkRun:
    """One chunk: its examples, when it ran (seconds from the kernel's start), on which thread, and its lane use."""

    begin: int
    end: int
    start: float
    stop: float
    thread: int
    lane_use: float


#: So many threads are named.
_NAMED_THREADS = 8


@dataclasses.dataclass(frozen=True)
class KernelUse:
    """What one kernel did.

    Attributes:
      axis_size: examples of the batch.
      lanes: examples of one step.
      seconds: median time of a run without counters.
      sites: its loops and branches, in the order of the program.
      chunks: in the order of their examples, as the run with counters had them.
      flops: floating-point operations of the whole batch, in idle lanes too; a fused multiply-add is two.
      bytes_in, bytes_out: of one example.
      bounds: how many seconds each limit of the machine alone would make it take, with the planned threads and the lane
        use that was counted; longest first.
      source_lines: for each line of the user's, by `file:line (function)`, roughly its part of all instructions.
    """

    axis_size: int
    lanes: int
    seconds: float
    sites: tuple[LoopUse | BranchUse, ...]
    chunks: tuple[ChunkRun, ...]
    flops: int
    bytes_in: int
    bytes_out: int
    bounds: Mapping[str, float]
    source_lines: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def loops(self) -> tuple[LoopUse, ...]:
        """The loops among the sites."""
        return tuple(site for site in self.sites if isinstance(site, LoopUse))

    @property
    def lane_use(self) -> float:
        """Active lanes / lanes over the trips of all loops; 1 without loops."""
        return share((loop.active, loop.trips * loop.lanes) for loop in self.loops)

    @property
    def threads(self) -> int:
        """Threads that ran a chunk."""
        return len({chunk.thread for chunk in self.chunks})

    @property
    def idle(self) -> tuple[float, ...]:
        """For each thread the part of the kernel's time in which it ran no chunk."""
        end = max(chunk.stop for chunk in self.chunks)
        busy = [sum(c.stop - c.start for c in self.chunks if c.thread == k) for k in range(self.threads)]
        return tuple(max(0.0, 1 - b / end) for b in busy)

    @property
    def gflops(self) -> float:
        """Billions of floating-point operations in a second."""
        return self.flops / self.seconds / 1e9

    @property
    def gbytes(self) -> float:
        """Billions of bytes, in and out, in a second."""
        return (self.bytes_in + self.bytes_out) * self.axis_size / self.seconds / 1e9

    def lines(self) -> Iterator[str]:
        """The kernel in words."""
        bound, least = next(iter(self.bounds.items()))
        yield f"time: {duration(self.seconds)}; {self.gflops:.3g} GFLOP/s, {self.gbytes:.3g} GB/s"
        cached = bound == "memory" and least > self.seconds
        part = "if nothing were in the caches" if cached else f"{least / self.seconds:.0%} of the time"
        yield f"bound by {bound}: {duration(least)}, {part}"
        chunks = Counter(chunk.thread for chunk in self.chunks)
        each = [f"{chunks[k]} chunks, idle {part:.0%}" for k, part in enumerate(self.idle)]
        more = ["..."] * (len(each) > _NAMED_THREADS)
        yield f"threads: {self.threads} ({'; '.join(each[:_NAMED_THREADS] + more)}); lane use: {self.lane_use:.0%}"
        for site in self.sites:
            yield "  " * site.depth + str(site)

    def to_dict(self) -> dict[str, Any]:
        """Everything above as JSON takes it; times are in seconds."""
        named = {name: getattr(self, name) for name in (
            "axis_size", "lanes", "seconds", "threads", "lane_use", "flops", "gflops", "bytes_in", "bytes_out",
            "gbytes")}
        return {**named, "idle": list(self.idle), "bounds": dict(self.bounds),
                "sites": [site.to_dict() for site in self.sites],
                "chunks": [dataclasses.asdict(chunk) for chunk in self.chunks],
                "source_lines": dict(self.source_lines)}


@dataclasses.dataclass(frozen=True)
class DeviceUse:
    """One of several devices that share a batch: its examples, and the seconds that it takes for them while all of the
    devices run."""

    device: str
    examples: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.device} {self.examples} examples, {duration(self.seconds)}"


def share(parts: Iterable[tuple[int, int]]) -> float:
    """The sum of the first numbers over that of the second ones; 1 where there is nothing."""
    used, available = (sum(column) for column in zip((0, 0), *parts, strict=True))
    return used / available if available else 1.0
