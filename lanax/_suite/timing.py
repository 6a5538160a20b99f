"""Times a program under `jax.vmap` and under `lanax.vmap`, in turns, and compares the answers. Shows nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

import lanax
from lanax._suite.heap import Room
from lanax._suite.program import Case, Comparison, Program

MIN_RUNS = 3
MAX_RUNS = 101


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds that one side took: tracing and compiling once, then each run."""

    compile: float
    runs: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median of the runs, in seconds."""
        return statistics.median(self.runs)

    @property
    def spread(self) -> float:
        """Interquartile range of the runs, relative to their median."""
        low, _, high = statistics.quantiles(self.runs, n=4, method="inclusive")
        return (high - low) / self.median


@dataclasses.dataclass(frozen=True)
class Result:
    """What one program showed.

    Attributes:
      program: the program.
      batch: examples in the call.
      baseline, lanax: times of `jit(jax.vmap(f))` and of `jit(lanax.vmap(f))`.
      comparison: lanax's answer against the baseline's.
      plan: lanax's plan, in one line.
      answer: what lanax returned.
    """

    program: Program
    batch: int
    baseline: Timing
    lanax: Timing
    comparison: Comparison
    plan: str
    answer: Any = dataclasses.field(repr=False)

    @property
    def ratio(self) -> float:
        """How many times faster lanax is."""
        return self.baseline.median / self.lanax.median


@contextlib.contextmanager
def nothing_stored() -> Iterator[None]:
    """While it lasts kernels are compiled and not found on disk, and plans are those that lanax chooses."""
    before = lanax.config.cache
    lanax.config.update("cache", False)
    try:
        yield
    finally:
        lanax.config.update("cache", before)


@nothing_stored()
def measure(program: Program, *, quick: bool, budget: float, tell: Callable[[str], None] = lambda _: None) -> Result:
    """Runs a program both ways on the CPU.

    Args:
      program: what to run.
      quick: take its small size.
      budget: seconds to spend on the timed runs. Each side runs `MIN_RUNS` times at least, `MAX_RUNS` at most.
      tell: is told, in a few words, what is being done.
    """
    batch = program.quick if quick else program.batch
    tell("making inputs")
    case = program.make(batch)
    case = dataclasses.replace(case, args=jax.device_put(case.args, jax.devices("cpu")[0]))
    tell("compiling jax.vmap")
    baseline, baseline_compile = _compile(jax.vmap, case)
    tell("compiling lanax.vmap")
    ours, ours_compile = _compile(lanax.vmap, case)
    tell("comparing")
    expected, answer = (jax.block_until_ready(run(*case.args)) for run in (baseline, ours))
    comparison = program.check.compare(answer, expected)
    del expected
    baseline_runs, ours_runs = take_turns(baseline, ours, case.args, budget, tell)
    plan = lanax.explain(lanax.vmap(case.fun, case.in_axes), *case.args).plan_line
    return Result(
        program,
        axis_size(case),
        Timing(baseline_compile, baseline_runs),
        Timing(ours_compile, ours_runs),
        comparison,
        plan,
        answer,
    )


#: The sides of a check of plans, beside `jax.lax.map`: how each maps a function.
ROUTES = ("lanes", "xla", "serial")
SIDES: dict[str, Callable[..., Any]] = {
    "auto": lanax.vmap, "jax.vmap": jax.vmap,
    **{route: functools.partial(lanax.vmap, plan=lanax.Plan(route=route)) for route in ROUTES}}
LAX_MAP = "jax.lax.map"
#: Seconds of a run from which on what another one left to be cleaned up does not count.
_LONG = 0.3
#: A side that takes so many times as long as the fastest is not run again.
HOPELESS = 2.0
#: `jax.lax.map` is run where a part of the batch lets it look no more than so many times as slow as the fastest.
_PART, _HOPELESS_MAP = 64, 4.0


@dataclasses.dataclass(frozen=True)
class PlanCheck:
    """How near the automatic plan comes to the best of all sides.

    Attributes:
      program, batch: what was run.
      sides: seconds of each side that was run; a route that the automatic plan takes as it is is not run.
      plan: the automatic plan, in one line.
    """

    program: Program
    batch: int
    sides: dict[str, float]
    plan: str

    @property
    def best(self) -> str:
        """The fastest side."""
        return min(self.sides, key=lambda side: self.sides[side])

    @property
    def ratio(self) -> float:
        """Seconds of the automatic plan / those of the fastest side."""
        return self.sides["auto"] / self.sides[self.best]


@nothing_stored()
def check_plan(program: Program, *, quick: bool, budget: float,
               tell: Callable[[str], None] = lambda _: None) -> PlanCheck:
    """Runs a program on the CPU by every route, by `jax.vmap` and, where that is not hopeless, by `jax.lax.map`; see
    `measure`. Each round begins with another side, and each run finds room for its results: what one side leaves behind
    meets all alike. That takes one heap for all threads: see `one_heap`."""
    case = program.make(program.quick if quick else program.batch)
    case = dataclasses.replace(case, args=jax.device_put(case.args, jax.devices("cpu")[0]))
    runs: dict[str, Callable[..., Any]] = {}
    times: dict[str, list[float]] = {}
    auto = lanax.explain(lanax.vmap(case.fun, case.in_axes), *case.args)
    results = jax.eval_shape(jax.vmap(case.fun, case.in_axes), *case.args)
    room = Room([math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(results)])
    for side, vmap in SIDES.items():
        if side in ROUTES and _is_same(lanax.explain(vmap(case.fun, case.in_axes), *case.args), auto):
            continue
        tell(f"compiling {side}")
        runs[side], _ = _compile(vmap, case)
        jax.block_until_ready(runs[side](*case.args))
        times[side] = [_seconds_with_room(runs[side], case.args, room) for _ in range(2)]
    tell(f"trying {LAX_MAP}")
    if _part_seconds(case) * _PART <= _HOPELESS_MAP * min(map(min, times.values())):
        runs[LAX_MAP] = jax.jit(_lax_map(case)).lower(*case.args).compile()
        times[LAX_MAP] = [_seconds_with_room(runs[LAX_MAP], case.args, room)]
    end = time.perf_counter() + budget
    while len(times["auto"]) < MIN_RUNS or (len(times["auto"]) < MAX_RUNS and time.perf_counter() < end):
        tell(f"run {len(times['auto']) + 1}")
        limit = HOPELESS * min(map(min, times.values()))
        sides = [side for side in runs if side == "auto" or min(times[side]) <= limit]
        first = len(times["auto"]) % len(sides)
        for side in (*sides[first:], *sides[:first]):
            times[side].append(_seconds_with_room(runs[side], case.args, room))
    return PlanCheck(program, axis_size(case), {side: statistics.median(t) for side, t in times.items()},
                     auto.plan_line)


def _is_same(a: lanax.Report, b: lanax.Report) -> bool:
    return (a.routes, a.kernels) == (b.routes, b.kernels)


def seconds(run: Callable[..., Any], args: Sequence[Any]) -> float:
    """Until the results are there. Of a short run the second of two counts: after a call XLA's threads give memory back
    to the system, hundreds of megabytes of `jax.vmap`'s, and the call that follows, of the other side, pays for it."""
    first = _seconds_once(run, args)
    return first if first > _LONG else _seconds_once(run, args)


def _seconds_with_room(run: Callable[..., Any], args: Sequence[Any], room: Room) -> float:
    """The same, where there is room for the results."""
    room.prepare()
    first = _seconds_once(run, args)
    if first > _LONG:
        return first
    room.prepare()
    return _seconds_once(run, args)


def _seconds_once(run: Callable[..., Any], args: Sequence[Any]) -> float:
    start = time.perf_counter()
    results = jax.block_until_ready(run(*args))
    taken = time.perf_counter() - start
    del results
    return taken


def _lax_map(case: Case) -> Callable[..., Any]:
    """The call by `jax.lax.map`; what is not mapped is closed over."""
    def run(*args: Any) -> Any:
        mapped = tuple(x for x, m in zip(args, _mapped(case), strict=True) if m)

        def one(some: Sequence[Any]) -> Any:
            rest = iter(some)
            return case.fun(*(next(rest) if m else x for x, m in zip(args, _mapped(case), strict=True)))

        return jax.lax.map(one, mapped)

    return run


def _mapped(case: Case) -> list[bool]:
    axes = case.in_axes if isinstance(case.in_axes, tuple) else (case.in_axes,) * len(case.args)
    return [axis is not None for axis in axes]


def _part_seconds(case: Case) -> float:
    """What `jax.lax.map` takes for a part of the batch."""
    size = max(1, axis_size(case) // _PART)
    part = [jax.tree.map(lambda x: x[:size], x) if m else x for x, m in zip(case.args, _mapped(case), strict=True)]
    run = jax.jit(_lax_map(case))
    jax.block_until_ready(run(*part))
    return seconds(run, part)


def axis_size(case: Case) -> int:
    """Examples in the call: the leading size of its last argument, which all programs map."""
    return jax.tree.leaves(case.args[-1])[0].shape[0]


def _compile(vmap: Callable[..., Any], case: Case) -> tuple[Callable[..., Any], float]:
    start = time.perf_counter()
    compiled = jax.jit(vmap(case.fun, case.in_axes)).lower(*case.args).compile()
    return compiled, time.perf_counter() - start


def take_turns(
    first: Callable[..., Any],
    second: Callable[..., Any],
    args: Sequence[Any],
    budget: float,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Times both in turns, so that a change of the machine's speed meets both alike."""
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + budget
    while len(times[0]) < MIN_RUNS or (len(times[0]) < MAX_RUNS and time.perf_counter() < end):
        tell(f"run {len(times[0]) + 1}")
        for runs, run in zip(times, (first, second), strict=True):
            runs.append(seconds(run, args))
    return tuple(times[0]), tuple(times[1])
