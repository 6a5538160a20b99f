"""Times a program under `jax.vmap` and under `lanax.vmap`, in turns, and compares the answers. Shows nothing."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax

import lanax
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
    baseline_runs, ours_runs = _take_turns(baseline, ours, case.args, budget, tell)
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


def axis_size(case: Case) -> int:
    """Examples in the call: the leading size of its last argument, which all programs map."""
    return jax.tree.leaves(case.args[-1])[0].shape[0]


def _compile(vmap: Callable[..., Any], case: Case) -> tuple[Callable[..., Any], float]:
    start = time.perf_counter()
    compiled = jax.jit(vmap(case.fun, case.in_axes)).lower(*case.args).compile()
    return compiled, time.perf_counter() - start


def _take_turns(
    first: Callable[..., Any],
    second: Callable[..., Any],
    args: tuple[Any, ...],
    budget: float,
    tell: Callable[[str], None],
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Times both in turns, so that a change of the machine's speed meets both alike."""
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + budget
    while len(times[0]) < MIN_RUNS or (len(times[0]) < MAX_RUNS and time.perf_counter() < end):
        tell(f"run {len(times[0]) + 1}")
        for runs, run in zip(times, (first, second), strict=True):
            start = time.perf_counter()
            jax.block_until_ready(run(*args))
            runs.append(time.perf_counter() - start)
    return tuple(times[0]), tuple(times[1])
