"""Shows results as a table and as JSON. Measures nothing."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

import jax
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

import lanax
from lanax._suite.timing import LAX_MAP, ROUTES, SIDES, PlanCheck, Result, Timing
from lanax._target import host

#: How near the best the automatic plan is to be: at most 5 % slower.
CLOSE = 1.05


def seconds(value: float) -> str:
    """A time in the unit that suits it."""
    units = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}
    unit = next((unit for unit, size in units.items() if value >= size), "µs")
    scaled = value / units[unit]
    return f"{scaled:.{0 if scaled >= 100 else 1 if scaled >= 10 else 2}f} {unit}"


def times(value: float) -> str:
    """A ratio with as many digits as it is worth."""
    return f"{value:.0f} x" if value >= 20 else f"{value:.1f} x" if value >= 3 else f"{value:.2f} x"


def table(results: Sequence[Result], *, goals: bool) -> Group:
    """Times, ratio and difference of each program, and below them the plans."""
    shown = Table(title="jit(jax.vmap(f)) against jit(lanax.vmap(f))", title_justify="left", box=box.SIMPLE_HEAD)
    shown.add_column("program", no_wrap=True)
    for heading in ("examples", "jax.vmap", "lanax.vmap", "faster", *(("goal",) if goals else ()), "difference"):
        shown.add_column(heading, justify="right", no_wrap=True)
    plans = Table(title="lanax's plans", title_justify="left", box=box.SIMPLE_HEAD, show_header=False)
    for result in results:
        shown.add_row(
            result.program.title,
            f"{result.batch:,}",
            seconds(result.baseline.median),
            seconds(result.lanax.median),
            _ratio(result, goals),
            *((times(result.program.goal),) if goals else ()),
            _difference(result),
        )
        plans.add_row(result.program.name, result.plan)
    return Group(shown, plans)


def _ratio(result: Result, goals: bool) -> Text:
    reached = result.ratio >= (result.program.goal if goals else 1.0)
    return Text(times(result.ratio), style="bold green" if reached else "yellow")


def _difference(result: Result) -> Text:
    """The largest difference, or how many values differ where a few may."""
    comparison = result.comparison
    text = f"{comparison.difference:.1e}" if comparison.difference else "0"
    if result.program.check.fraction < 1.0 and comparison.agreeing < 1.0:
        text = f"{1.0 - comparison.agreeing:.2%} of values"
    return Text(text if comparison.passed else f"WRONG {text}", style="" if comparison.passed else "bold red")


def plan_table(checks: Sequence[PlanCheck]) -> Table:
    """For each program the seconds of every side, the best one, and how near the automatic plan comes to it."""
    shown = Table(title="the automatic plan against every route", title_justify="left", box=box.SIMPLE_HEAD)
    shown.add_column("program", no_wrap=True)
    sides = (*SIDES, LAX_MAP)
    for heading in (*sides, "best", "auto / best"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for check in checks:
        near = check.ratio <= CLOSE
        cells = [seconds(check.sides[s]) if s in check.sides else "= auto" if s in ROUTES else "-" for s in sides]
        ratio = Text(f"{check.ratio:.2f}", style="bold green" if near else "bold yellow")
        shown.add_row(check.program.name, *cells, check.best, ratio)
    return shown


def plan_checks_as_json(checks: Sequence[PlanCheck]) -> dict[str, Any]:
    """The same as JSON takes it; times are in seconds."""
    return {"machine": machine(), "plan_checks": [
        {"name": c.program.name, "batch": c.batch, "seconds": c.sides, "best": c.best, "ratio": c.ratio, "plan": c.plan}
        for c in checks]}


def machine() -> dict[str, Any]:
    """The machine and the versions that figures belong to."""
    target = host()
    return {
        "cpu": target.cpu,
        "instruction_set": target.instruction_set,
        "register_bits": target.register_bits,
        "cores": target.cores,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "jax": jax.__version__,
        "lanax": lanax.__version__,
    }


def as_json(results: Sequence[Result]) -> dict[str, Any]:
    """Everything that was measured, as JSON takes it. Times are in seconds."""
    return {"machine": machine(), "results": [_row(result) for result in results]}


def _row(result: Result) -> dict[str, Any]:
    return {
        "name": result.program.name,
        "title": result.program.title,
        "batch": result.batch,
        "ratio": result.ratio,
        "goal": result.program.goal,
        "jax": _timing(result.baseline),
        "lanax": _timing(result.lanax),
        "difference": result.comparison.difference,
        "agreeing": result.comparison.agreeing,
        "passed": result.comparison.passed,
        "plan": result.plan,
    }


def _timing(timing: Timing) -> dict[str, Any]:
    return {"compile": timing.compile, "median": timing.median, "spread": timing.spread, "runs": list(timing.runs)}
