"""`profile`: runs a mapped function with kernels that count, and says what its loops, branches and threads did."""

from __future__ import annotations

import dataclasses
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lanax._devices.shares import Shares
from lanax._errors import LanaxError
from lanax._lowering.meter import BRANCH, HEADER, LOOP, Site
from lanax._pipeline import Kernel, equation_cost
from lanax._plan import device_name
from lanax._planning.work import bytes_of, lines_of, work_of
from lanax._primitive import Run, bind, call_kernel, run_parts, shares_apart, watching
from lanax._reports import plot
from lanax._reports.bounds import bounds, duration
from lanax._reports.page import fragment, page
from lanax._reports.report import Call, Report, report_of, threads_of
from lanax._reports.usage import BranchUse, ChunkRun, DeviceUse, KernelUse, LoopUse, share
from lanax._runtime.speed import measured

#: How often the kernels without counters are run for their time.
RUNS = 5


@dataclasses.dataclass(frozen=True)
class Profile:
    """What a mapped call did. `str(profile)` is the text.

    Attributes:
      report: what was planned.
      seconds: median time of the whole call without counters, compiled as one.
      kernels: one for each part in lanes; where devices share the batch, as one of them runs all of it.
      results: what the function returned.
      devices: the devices that share the batch.
    """

    report: Report
    seconds: float
    kernels: tuple[KernelUse, ...]
    results: Any = dataclasses.field(repr=False)
    _sources: tuple[Kernel, ...] = dataclasses.field(default=(), repr=False, compare=False)
    devices: tuple[DeviceUse, ...] = ()

    @property
    def xla_seconds(self) -> float:
        """Time outside of the kernels: in parts for XLA, and between them."""
        return max(0.0, self.seconds - sum(kernel.seconds for kernel in self.kernels))

    def to_dict(self) -> dict[str, Any]:
        """Everything but the results, as JSON takes it; times are in seconds."""
        return {"report": self.report.to_dict(), "seconds": self.seconds, "xla_seconds": self.xla_seconds,
                "kernels": [kernel.to_dict() for kernel in self.kernels],
                "devices": [dataclasses.asdict(device) for device in self.devices]}

    def plot(self) -> Any:
        """A `matplotlib.figure.Figure`: for each kernel the lane use over the batch, and what each thread ran when.

        Raises:
          ModuleNotFoundError: matplotlib is not installed.
        """
        return plot.figure(self.report.name, self.kernels)

    def to_html(self, path: str | PathLike[str]) -> Path:
        """Write one page that needs no other file: summary, pictures, loops and branches, source lines, and the machine
        code of each kernel's hottest loop. Returns the path."""
        code = [kernel.stage("asm") for kernel in self._sources]
        Path(path).write_text(page(self.report, self.seconds, self.kernels, code), encoding="utf-8")
        return Path(path)

    def _repr_html_(self) -> str:
        return fragment(self.report, self.seconds, self.kernels)

    def __str__(self) -> str:
        inside = min(self.seconds, sum(kernel.seconds for kernel in self.kernels))  # they were timed by themselves
        lines = [f"{self.report.name} over {self.report.axis_size} examples on {self.report.target}",
                 f"  time: {duration(self.seconds)}, of that in kernels {duration(inside)}, in XLA "
                 f"{duration(self.xla_seconds)}"]
        if self.devices:
            lines.append(f"  devices: {'; '.join(map(str, self.devices))}")
            lines.append("  below: the whole batch on one device, where it was counted")
        for i, kernel in enumerate(self.kernels):
            lines.append(f"  kernel {i}, {kernel.lanes} lanes")
            lines.extend(f"    {line}" for line in kernel.lines())
        return "\n".join(lines)


def profile(mapped: Callable[..., Any], *args: Any, **kwargs: Any) -> Profile:
    """Run a mapped function and say what its loops, branches and threads did.

    The call runs with kernels that count, and a few times without, for its time. Counting costs time: the chunks'
    times are longer than those of an ordinary run.

    Args:
      mapped: what `lanax.vmap` returned, or a function that calls one; a `jax.jit` around it is taken off. Of several
        mapped calls, the profile is of the last one.
      *args, **kwargs: as for the function itself.

    Raises:
      LanaxError: no mapped call could be watched.
    """
    seen: list[_Watch] = []

    def watch(operands: Sequence[Any], params: Mapping[str, Any]) -> list[Any]:
        seen.append(_Watch(operands, params))
        return seen[-1].outs

    with watching(watch):
        results = _unjitted(mapped)(*args, **kwargs)
    if not seen:
        raise LanaxError(
            "lanax.profile: no mapped call could be watched. Either the function makes none, or only inside a trace "
            "(jax.jit, jax.grad, jax.lax.scan, ...), or it is left to jax.vmap as a whole (lanax.explain says why). "
            "Profile what lanax.vmap returned, with arrays as arguments.")
    return seen[-1].profile(results)


def _unjitted(fun: Any) -> Any:
    """What `jax.jit` was given, where `fun` is what it returned."""
    return fun.__wrapped__ if all(hasattr(fun, name) for name in ("lower", "trace", "__wrapped__")) else fun


class _Watch(Run):
    """One mapped call, run part by part, each kernel with counters."""

    def __init__(self, operands: Sequence[Any], params: Mapping[str, Any]):
        self.call = Call(**params)
        super().__init__(self.call.stages, self.call.axis_size)
        self.operands, self.params = operands, params
        self.kernels: list[KernelUse] = []
        self.sources: list[Kernel] = []
        outs = self(*operands) if self.axis_size else run_parts(*operands, **params)  # no example, no kernel
        self.outs = list(outs)[: len(self.call.out_axes)]

    def profile(self, results: Any) -> Profile:
        """The profile, with the time of the whole call."""
        seconds = _median_seconds(lambda *args: bind(args, **self.params), self.operands)
        devices = _device_uses(self.call.shares, self.operands, self.params) if self.call.shares else ()
        return Profile(report_of(self.call), seconds, tuple(self.kernels), results, tuple(self.sources), devices)

    def run_kernel(self, kernel: Kernel, args: Sequence[Any]) -> list[Any]:
        """The kernel's results; what it did is kept."""
        outs, use = _use_of(kernel, args, self.axis_size)
        self.kernels.append(use)
        self.sources.append(kernel)
        return outs


def _median_seconds(fun: Callable[..., Any], args: Sequence[Any]) -> float:
    run = jax.jit(fun)
    jax.block_until_ready(run(*args))  # compiles, and touches the memory
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        jax.block_until_ready(run(*args))
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _device_uses(shares: Shares, operands: Sequence[Any], params: Mapping[str, Any]) -> tuple[DeviceUse, ...]:
    """Median times that the devices take for their shares. For each of them a thread waits, since XLA may run one after
    another where one thread calls them."""
    runs = [(jax.jit(fun).lower(*args).compile(), args) if size else None
            for size, (fun, args) in zip(shares.sizes, shares_apart(operands, params), strict=True)]
    gate = threading.Barrier(len(runs))

    def seconds(run: Any) -> float:
        gate.wait()
        start = time.perf_counter()
        if run is None:
            return 0.0
        compiled, args = run
        jax.block_until_ready(compiled(*args))
        return time.perf_counter() - start

    with ThreadPoolExecutor(len(runs)) as pool:
        times = [list(pool.map(seconds, runs)) for _ in range(1 + RUNS)]  # the first one touches the memory
    medians = map(statistics.median, zip(*times[1:], strict=True))
    return tuple(DeviceUse(device_name(d), size, found)
                 for d, size, found in zip(shares.devices, shares.sizes, medians, strict=True))


def _use_of(kernel: Kernel, args: Sequence[Any], axis_size: int) -> tuple[list[Any], KernelUse]:
    """Run a kernel with counters, and without them for its time: its results, and what it did."""
    counting = kernel.counting()
    meter, lanes = counting.source.meter, counting.plan.lanes
    assert meter is not None
    run = jax.jit(lambda *args: call_kernel(counting, args))
    jax.block_until_ready(run(*args))
    *outs, words = jax.block_until_ready(run(*args))
    runs = list(_runs(np.asarray(words).view(np.int64), axis_size, lanes))
    rows = np.array([row for _, row in runs])
    sites = tuple(_site_use(site, rows[:, site.first:site.first + site.columns], lanes) for site in meter.sites)
    chunks = _chunks(runs, meter.sites, lanes)
    seconds = _median_seconds(lambda *args: call_kernel(kernel, args), args)
    uses = {key: sites[meter.sites.index(site)] for key, site in meter.by_equation.items()}
    trips = {key: use.mean for key, use in uses.items() if isinstance(use, LoopUse)}
    chain = work_of(counting.uniformity.jaxpr, equation_cost, trips).chain
    lines = lines_of(counting.uniformity.jaxpr, equation_cost, trips)
    instructions = max(1.0, sum(lines.values()))
    read, written = bytes_of(kernel.jaxpr, kernel.in_axes, kernel.out_axes)
    ran = rows[:, [block.column for block in meter.blocks]].sum(0)
    total = ran @ np.array([(b.flops, b.bits, b.divided_bits) for b in meter.blocks]).reshape(-1, 3)
    flops, bits, divided = (int(x) for x in total)
    use = KernelUse(axis_size, lanes, seconds, sites, chunks, flops, read, written, {},
                    {line: count / instructions for line, count in lines.items() if count})
    least = bounds(measured(), threads_of(kernel, axis_size), axis_size / lanes / use.lane_use, bits, divided,
                   axis_size * (read + written), chain)
    return outs, dataclasses.replace(use, bounds=least)


def _runs(rows: np.ndarray, axis_size: int, lanes: int) -> Iterator[tuple[int, np.ndarray]]:
    """Of each run of the kernel, in the order of the examples: its first example and its counters."""
    begin = 0
    while begin < axis_size:
        row = rows[begin // lanes]
        yield begin, row
        begin = int(row[HEADER.index("end")])


def _site_use(site: Site, columns: np.ndarray, lanes: int) -> LoopUse | BranchUse:
    """What a loop or a branch did, from its counters: (runs of the kernel, columns)."""
    total = [int(x) for x in columns.sum(0)]
    if site.sides:
        sides = total[len(BRANCH):]
        return BranchUse(site.source, site.depth, lanes, total[0], total[1], tuple(zip(sides[::2], sides[1::2],
                                                                                   strict=True)))
    named = dict(zip(LOOP, total, strict=True))
    return LoopUse(site.kind, site.source, site.depth, lanes, named["entries"], named["entered"], named["trips"],
                   named["active"], int(columns[:, LOOP.index("longest")].max()))


def _chunks(runs: Sequence[tuple[int, np.ndarray]], sites: Sequence[Site], lanes: int) -> tuple[ChunkRun, ...]:
    """When and where each chunk ran; threads are numbered in the order in which they started."""
    column = {name: i for i, name in enumerate(HEADER)}
    first = min(int(row[column["start"]]) for _, row in runs)
    threads: dict[int, int] = {}
    for _, row in sorted(runs, key=lambda run: run[1][column["start"]]):
        threads.setdefault(int(row[column["thread"]]), len(threads))
    loops = [(s.first + LOOP.index("active"), s.first + LOOP.index("trips")) for s in sites if not s.sides]
    return tuple(
        ChunkRun(begin, int(row[column["end"]]), (int(row[column["start"]]) - first) / 1e9,
                 (int(row[column["stop"]]) - first) / 1e9, threads[int(row[column["thread"]])],
                 share((int(row[active]), int(row[trips]) * lanes) for active, trips in loops))
        for begin, row in runs)
