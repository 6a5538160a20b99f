"""`python -m lanax bench`: times the benchmark suite, prints the table and writes JSON."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.status import Status

from lanax._commands.console import console
from lanax._suite.heap import one_heap
from lanax._suite.program import Program
from lanax._suite.programs import find
from lanax._suite.report import CLOSE, as_json, plan_checks_as_json, plan_table, seconds, table, times
from lanax._suite.scale import measure_all as measure_all_counts
from lanax._suite.scale_report import scale_as_json, scale_note, scale_table
from lanax._suite.timing import PlanCheck, Result, check_plan, measure

T = TypeVar("T")

BUDGET = 10.0
QUICK_BUDGET = 0.5


#: The programs that `--scale` runs where none is named.
SCALED = ("lorenz_rk",)


def run(names: Sequence[str], file: Path, quick: bool, plan_check: bool = False, scale: bool = False) -> int:
    """Times the programs of these names, all of them for no names. Returns 1 where an answer is wrong."""
    out = console()
    try:
        programs = find(names or SCALED if scale else names)
    except KeyError as error:
        out.print(error.args[0])
        return 2
    budget = QUICK_BUDGET if quick else BUDGET
    if plan_check:
        return _check_plans(programs, file, quick=quick, budget=budget, out=out)
    if scale:
        return _scale(programs, file, quick=quick, out=out)
    results = measure_all(programs, quick=quick, budget=budget, out=out)
    out.print(table(results, goals=not quick))
    _write(file, as_json(results), out)
    return verdict(results, out)


@one_heap()
def _check_plans(programs: Sequence[Program], file: Path, *, quick: bool, budget: float, out: Console) -> int:
    """Compares the automatic plan of the programs with every route, and names those that are far from the best."""
    checks = _one_by_one(programs, functools.partial(check_plan, quick=quick, budget=budget), _check_line, out)
    out.print(plan_table(checks))
    far = [f"{check.program.name} ({check.best}: {check.ratio:.2f} x)" for check in checks if check.ratio > CLOSE]
    out.print(f"more than {CLOSE - 1:.0%} slower than the best: {', '.join(far) or 'none'}")
    _write(file, plan_checks_as_json(checks), out)
    return 0


def _scale(programs: Sequence[Program], file: Path, *, quick: bool, out: Console) -> int:
    """Runs the programs on more and more devices and processes. Returns 1 where a process fails."""
    found = {}
    for program in programs:
        try:
            with out.status(program.title) as status:
                tell = functools.partial(_tell, status, program.title)
                found[program.name] = measure_all_counts(program, quick=quick, tell=tell)
        except RuntimeError as error:
            out.print(f"[bold red]{program.name}: [/]{escape(str(error))}")
            return 1
        out.print(scale_table(program, found[program.name]))
    out.print(scale_note())
    _write(file, scale_as_json(found), out)
    return 0


def _tell(status: Status, title: str, doing: str) -> None:
    status.update(f"{title}: {doing}")


def _write(file: Path, found: dict[str, Any], out: Console) -> None:
    file.write_text(json.dumps(found, indent=2) + "\n")
    out.print(f"wrote {file}")


def measure_all(programs: Sequence[Program], *, quick: bool, budget: float, out: Console) -> list[Result]:
    """Measures the programs one after the other and shows how far it is; leaves out what cannot be imported."""
    return _one_by_one(programs, functools.partial(measure, quick=quick, budget=budget), _line, out)


def _one_by_one(programs: Sequence[Program], do: Callable[..., T], line: Callable[[T], str], out: Console) -> list[T]:
    results = []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=out, transient=True) as progress:
        for number, program in enumerate(programs, 1):
            if program.missing():
                out.print(f"left out {program.name}: {', '.join(program.missing())} is not installed "
                          "(pip install 'lanax\\[demo]')")
                continue
            heading = f"{number}/{len(programs)} {program.title}"
            task = progress.add_task(heading)
            result = do(program, tell=lambda doing, task=task, heading=heading: progress.update(
                task, description=f"{heading}: [dim]{doing}[/]"))
            progress.remove_task(task)
            out.print(line(result))
            results.append(result)
    return results


def _check_line(check: PlanCheck) -> str:
    return f"{check.program.title}: auto {seconds(check.sides['auto'])}, [bold]{check.ratio:.2f}[/] of {check.best}"


def _line(result: Result) -> str:
    """What is shown as soon as a program is done."""
    return (
        f"{result.program.title}: {seconds(result.baseline.median)} -> {seconds(result.lanax.median)}, "
        f"[bold]{times(result.ratio)}[/] (compiled in {seconds(result.baseline.compile)} -> "
        f"{seconds(result.lanax.compile)})"
    )


def verdict(results: Sequence[Result], out: Console) -> int:
    """1 and a message where answers differ by more than the program allows, else 0."""
    wrong = [result.program.name for result in results if not result.comparison.passed]
    if wrong:
        out.print(f"[bold red]answers differ from those of jax.vmap: {', '.join(wrong)}[/]")
    return 1 if wrong else 0
