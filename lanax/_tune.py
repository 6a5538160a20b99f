"""`tune`: times a handful of plans on the user's own data, in turns, and keeps the best."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lanax._api import Mapped, explain, vmap
from lanax._config import overriding, resolve
from lanax._errors import LanaxError
from lanax._jax import words_of
from lanax._plan import MAX_LANES, Plan
from lanax._reports.progress import bar
from lanax._reports.report import Report
from lanax._runtime import plans

#: Runs of one plan: at least, at most.
MIN_RUNS, MAX_RUNS = 3, 31
#: A plan that takes so many times as long as the best is not run again.
_HOPELESS = 2.0
#: A plan must be so much faster than the automatic one to be taken instead; with fewer than `MIN_RUNS`, more.
_WORTH, _WORTH_AT_FIRST_SIGHT = 0.97, 0.8
#: The part of the time in which new plans are begun.
_FOR_COMPILING = 0.6
#: The part of the values that may differ by more than the tolerance: where one rounding decides about a branch.
_OUTLIERS = 0.01


@dataclasses.dataclass(frozen=True)
class Row:
    """One plan.

    Attributes:
      plan: what it asks for; `Plan()` is the automatic one.
      routes: the routes that the program takes by it.
      seconds: median time of a run; infinite where it did not run.
      spread: the interquartile range of the runs, relative to their median.
      runs: how many there were.
      ratio: seconds / those of the automatic plan.
      difference: the largest `|a - b| / max(1, |b|)` of its results from those of the automatic plan.
      note: why it is not taken, where something is wrong with it.
    """

    plan: Plan
    routes: tuple[str, ...]
    seconds: float
    spread: float
    runs: int
    ratio: float
    difference: float
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Tuning:
    """What `tune` found. `str(tuning)` is a table.

    Attributes:
      name: the user's function.
      axis_size: examples in the batch.
      plan: the best plan: `lanax.vmap(f, plan=tuning.plan)`; `Plan()` where the automatic one is as good.
      rows: the plans, fastest first.
      complete: False where the time was up before every plan had its runs.
      files: where it was stored.
    """

    name: str
    axis_size: int
    plan: Plan
    rows: tuple[Row, ...]
    complete: bool
    files: tuple[Path, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.name} over {self.axis_size} examples", f"  {'seconds':>10} {'spread':>7} {'x auto':>7}  plan"]
        for row in self.rows:
            chosen = " <- best" if row.plan == self.plan else ""
            note = f" ({row.note})" if row.note else ""
            name = str(row.plan) if row.plan != Plan() else f"automatic: {' -> '.join(row.routes)}"
            figures = (f"{row.seconds:.3g}", f"{row.spread:.0%}", f"{row.ratio:.2f}") if row.runs else "---"
            lines.append("  {:>10} {:>7} {:>7}  ".format(*figures) + name + note + chosen)
        lines += [] if self.complete else ["  the time was up before every plan had its runs"]
        lines += [f"  stored: {file}" for file in self.files]
        return "\n".join(lines)


def tune(f: Callable[..., Any], *args: Any, in_axes: Any = 0, seconds: float = 20.0, tolerance: float = 1e-3,
         progress: bool = True, store: bool = False) -> Tuning:
    """Time a handful of plans on these arguments, in turns, and find the best: routes, lanes, threads, chunks.

    Fields of a plan that the settings around it give (`use_plan`, `config`, the environment, the function's own plan)
    stay as they are. What was stored before does not count.

    Args:
      f: a function of one example, or what `lanax.vmap` gave.
      *args: arrays for a whole batch, as the mapped function takes them.
      in_axes: as for `jax.vmap`; where `f` is mapped already, it has its own.
      seconds: about how long it may take; a run or a compilation that has begun is not interrupted.
      tolerance: of the results of a plan at most 1 % may differ from those of the automatic plan by more than this,
        relative to max(1, |value|); else the plan is not taken.
      progress: show a bar on standard error.
      store: keep the best plan on disk, for later calls that leave the plan open: those of the same program, with a
        batch of about this size (a factor of two), on such a machine. `python -m lanax cache clear` removes it.

    Raises:
      LanaxError: no call of `lanax.vmap` was made.
    """
    mapped = f if isinstance(f, Mapped) or isinstance(getattr(f, "__wrapped__", None), Mapped) else vmap(f, in_axes)
    args = jax.tree.map(lambda x: jax.device_put(x) if isinstance(x, (np.ndarray, jax.Array)) else x, args)
    with plans.asking() as keys:
        report = explain(mapped, *args)
        wanted = set(keys)
        race = _Race(mapped, args, seconds, tolerance)
        with bar(of_examples=False, shown=progress) as shown:
            task = shown.add_task(f"tuning {report.name}", total=seconds)
            begin = time.monotonic()
            for doing in race.run(report):
                shown.update(task, completed=min(seconds, time.monotonic() - begin),
                             description=f"tuning {report.name}: {doing}")
    result = race.result(report)
    return dataclasses.replace(result, files=tuple(plans.store(wanted, report.name, result.plan))) if store else result


@dataclasses.dataclass
class _Runner:
    """One plan on its way: compiled, compared, timed."""

    plan: Plan
    report: Report
    compiled: Any = None
    times: list[float] = dataclasses.field(default_factory=list)
    difference: float = 0.0
    note: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.times) if self.times else float("inf")

    @property
    def spread(self) -> float:
        if len(self.times) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.times, n=4, method="inclusive")
        return (high - low) / self.median

    @property
    def sound(self) -> bool:
        """Whether it may be taken."""
        return bool(self.times) and not self.note


class _Race:
    """The plans that are tried, the automatic one first."""

    def __init__(self, mapped: Callable[..., Any], args: Sequence[Any], seconds: float, tolerance: float):
        self.mapped, self.args, self.tolerance = mapped, args, tolerance
        self.end = time.monotonic() + seconds
        self.end_of_trying = time.monotonic() + _FOR_COMPILING * seconds
        self.runners: list[_Runner] = []
        self.answer: Any = None
        self.complete = True

    def run(self, auto: Report) -> Iterator[str]:
        """Try all plans; says what it does before it does it."""
        yield "automatic"
        self._enter(Plan(), auto)
        yield from self._try(_routes_and_lanes(auto))
        best = self._best()
        yield from self._try(_threads_and_chunks(best))
        while (waiting := [r for r in self._hopeful() if len(r.times) < MAX_RUNS]) and time.monotonic() < self.end:
            for runner in waiting:
                yield f"run {len(runner.times) + 1} of {runner.plan}"
                self._time(runner)
        self.complete = self.complete and all(len(r.times) >= MIN_RUNS for r in self._hopeful())

    def result(self, auto: Report) -> Tuning:
        first, best = self.runners[0], self._best()
        worth = _WORTH if min(len(first.times), len(best.times)) >= MIN_RUNS else _WORTH_AT_FIRST_SIGHT
        plan = best.plan if best.median < worth * first.median else first.plan
        rows = [Row(r.plan, r.report.routes, r.median, r.spread, len(r.times), r.median / first.median, r.difference,
                    r.note) for r in sorted(self.runners, key=lambda r: r.median)]
        return Tuning(auto.name, auto.axis_size, plan, tuple(rows), self.complete)

    def _try(self, candidates: Sequence[Plan]) -> Iterator[str]:
        for plan in candidates:
            if time.monotonic() > self.end_of_trying:
                self.complete = False
                return
            with overriding(plan):
                report = explain(self.mapped, *self.args)
            if all(_differs(report, r.report) for r in self.runners):
                yield str(plan)
                self._enter(plan, report)

    def _enter(self, plan: Plan, report: Report) -> None:
        """Compile a plan, compare its results, time it twice."""
        runner = _Runner(plan, report)
        self.runners.append(runner)
        try:
            with overriding(plan):
                runner.compiled = jax.jit(lambda *args: self.mapped(*args)).lower(*self.args).compile()
            answer = jax.block_until_ready(runner.compiled(*self.args))
        except (LanaxError, MemoryError, jax.errors.JaxRuntimeError) as error:
            if not self.runners[1:]:
                raise
            runner.note = f"it does not run: {error}".splitlines()[0]
            return
        if self.answer is None:
            self.answer = answer
        runner.difference, agrees = _compare(answer, self.answer, self.tolerance)
        runner.note = "" if agrees else f"its results differ by {runner.difference:.1e}"
        self._time(runner)
        self._time(self.runners[0])

    def _time(self, runner: _Runner) -> None:
        begin = time.perf_counter()
        jax.block_until_ready(runner.compiled(*self.args))
        runner.times.append(time.perf_counter() - begin)

    def _best(self) -> _Runner:
        return min((r for r in self.runners if r.sound), key=lambda r: r.median)

    def _hopeful(self) -> list[_Runner]:
        least = self._best().median
        return [r for r in self.runners if r is self.runners[0] or (r.sound and r.median <= _HOPELESS * least)]


def _routes_and_lanes(auto: Report) -> list[Plan]:
    """Every route, and one, two and four registers in flight."""
    given = resolve(auto.plan).given()
    native = auto.kernels[0].native_lanes if auto.kernels else 0
    found = [Plan(route="lanes")]
    found += [Plan(route="lanes", lanes=native * k) for k in (1, 2, 4) if 1 < native * k <= MAX_LANES]
    found += [Plan(route="xla"), Plan(route="serial")]
    return [plan for plan in found if not any(given.get(name, value) != value for name, value in plan.given().items())
            and not (plan.route == "serial" and given.get("lanes", 1) != 1)]


def _threads_and_chunks(best: _Runner) -> list[Plan]:
    """One thread, and a few chunks, beside the best plan so far."""
    kernels, size = best.report.kernels, best.report.axis_size
    if not kernels:
        return []
    lanes, threads = kernels[0].lanes, kernels[0].threads
    open_fields = {name for name in ("threads", "chunk") if getattr(best.report.plan, name) is None}
    found = [best.plan.replace(threads=1)] if threads > 1 and "threads" in open_fields else []
    chunks = sorted({-(-size // (threads * parts) // lanes) * lanes for parts in (1, 8, 128)} - {0})
    return found + [best.plan.replace(chunk=chunk) for chunk in chunks if "chunk" in open_fields]


def _differs(a: Report, b: Report) -> bool:
    """Whether two reports are of different runs."""
    return (a.routes, a.kernels) != (b.routes, b.kernels)


def _compare(answer: Any, expected: Any, tolerance: float) -> tuple[float, bool]:
    """The largest difference of two results, and whether enough of the values agree."""
    worst, outside, count = 0.0, 0, 0
    for got, want in zip(jax.tree.leaves(answer), jax.tree.leaves(expected), strict=True):
        apart = _apart(got, want)
        worst = max(worst, float(apart.max(initial=0.0)))
        outside += int((apart > tolerance).sum())
        count += apart.size
    return worst, outside <= _OUTLIERS * count


def _apart(got: Any, want: Any) -> np.ndarray:
    """`|a - b| / max(1, |b|)`; 0 for the same infinity or NaN."""
    a, b = np.asarray(words_of(got)), np.asarray(words_of(want))
    kind = np.complex128 if a.dtype.kind == "c" else np.float64
    a, b = a.astype(kind), b.astype(kind)
    with np.errstate(invalid="ignore"):
        apart = np.abs(a - b) / np.maximum(1.0, np.abs(b))
    return np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.nan_to_num(apart, nan=np.inf))
