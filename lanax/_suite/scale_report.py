"""Shows how programs scale, as a table and as JSON. Measures nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from lanax._suite.program import Program
from lanax._suite.report import machine, seconds
from lanax._suite.scale import Measured
from lanax._target import host


def efficiencies(measured: Measured, results: Sequence[Measured]) -> dict[str, float]:
    """Of one row: of the fixed batch (1: n devices take an nth of the time of one), of the growing one (1: n devices
    take as long for n times as much), and both as parts of what the cores of this machine allow."""
    one = next(m for m in results if (m.kind, m.count) == (measured.kind, 1))
    cores = min(measured.count, host().cores)
    fixed = one.fixed / measured.fixed
    growing = one.growing / measured.growing
    return {"fixed": fixed / measured.count, "growing": growing, "fixed_of_cores": fixed / cores,
            "growing_of_cores": growing * measured.count / cores}


def scale_table(program: Program, results: Sequence[Measured]) -> Table:
    """A row for each number of devices and of processes."""
    shown = Table(title=f"{program.title}: devices and processes of one thread each", title_justify="left",
                  box=box.SIMPLE_HEAD)
    for heading in ("", "fixed batch", "efficiency", "growing batch", "efficiency", "of the cores", "gathered", "moved",
                    "a call"):
        shown.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for m in results:
        parts = efficiencies(m, results)
        shown.add_row(f"{m.count} {m.kind if m.count > 1 else {'devices': 'device'}.get(m.kind, 'process')}",
                      seconds(m.fixed), f"{parts['fixed']:.0%}", seconds(m.growing), f"{parts['growing']:.0%}",
                      f"{parts['fixed_of_cores']:.0%}, {parts['growing_of_cores']:.0%}",
                      "-" if m.gathered is None else seconds(m.gathered), _bytes(m.moved), seconds(m.overhead))
    return shown


def scale_note() -> str:
    """What the cores of this machine mean for the figures."""
    cores = host().cores
    return (f"This machine has {cores} {'core' if cores == 1 else 'cores'}: more than {cores} devices or processes "
            f"take turns, and an efficiency of {cores}/n is then all that there can be; 'of the cores' is the part of "
            "that, for the fixed and the growing batch. 'gathered': the fixed batch, with the results given to every "
            "process; 'moved': the bytes of that, or between devices. 'a call': on a few examples.")


def _bytes(count: int | None) -> str:
    if count is None:
        return "some"
    return "0" if not count else f"{count / 1e6:.1f} MB"


def scale_as_json(found: Mapping[str, Sequence[Measured]]) -> dict[str, Any]:
    """The same as JSON takes it; times are in seconds."""
    return {"machine": machine(), "scale": [
        {"name": name, **dataclasses.asdict(m), "efficiency": efficiencies(m, results)}
        for name, results in found.items() for m in results]}
