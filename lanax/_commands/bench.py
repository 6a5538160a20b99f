"""`python -m lanax bench`: times the benchmark suite, prints the table and writes JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from lanax._commands.console import console
from lanax._suite.program import Program
from lanax._suite.programs import find
from lanax._suite.report import as_json, seconds, table, times
from lanax._suite.timing import Result, measure

BUDGET = 10.0
QUICK_BUDGET = 0.5


def run(names: Sequence[str], file: Path, quick: bool) -> int:
    """Times the programs of these names, all of them for no names. Returns 1 where an answer is wrong."""
    out = console()
    try:
        programs = find(names)
    except KeyError as error:
        out.print(error.args[0])
        return 2
    results = measure_all(programs, quick=quick, budget=QUICK_BUDGET if quick else BUDGET, out=out)
    out.print(table(results, goals=not quick))
    file.write_text(json.dumps(as_json(results), indent=2) + "\n")
    out.print(f"wrote {file}")
    return verdict(results, out)


def measure_all(programs: Sequence[Program], *, quick: bool, budget: float, out: Console) -> list[Result]:
    """Measures the programs one after the other and shows how far it is; leaves out what cannot be imported."""
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
            result = measure(
                program,
                quick=quick,
                budget=budget,
                tell=lambda doing, task=task, heading=heading: progress.update(
                    task, description=f"{heading}: [dim]{doing}[/]"
                ),
            )
            progress.remove_task(task)
            out.print(_line(result))
            results.append(result)
    return results


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
