"""What a program of a library is, and how it is run as its users run it: unchanged, inside and outside `lanax.patch()`.

`benchmarks/ecosystem.py` times the same programs.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax

import lanax
from lanax._reports.report import Report, recording, report_of
from lanax._suite.program import Check


@dataclasses.dataclass(frozen=True)
class Program:
    """One use of a library.

    Attributes:
      library: its name on PyPI.
      title: what is computed.
      make: from a batch size, the function and its arguments; the function calls `jax.vmap` or has the library do so.
      check: how its answers are compared.
      batch: examples for timing.
      left: part of the reason why something in it is not in lanes; empty where all is.
      x64: float64.
    """

    library: str
    title: str
    make: Callable[[int], tuple[Callable[..., Any], tuple[Any, ...]]]
    check: Check
    batch: int = 1000
    left: str = ""
    x64: bool = False

    def __str__(self) -> str:
        return f"{self.library} {self.title}".replace(" ", "_")


@dataclasses.dataclass(frozen=True)
class Ways:
    """A program compiled both ways.

    Attributes:
      plain, patched: by `jax.vmap` and by lanax; both take `args`.
      reports: of the mapped calls over the batch, in the order in which they were traced.
    """

    plain: Callable[..., Any]
    patched: Callable[..., Any]
    args: tuple[Any, ...]
    reports: tuple[Report, ...]


def compile_both(program: Program, batch: int) -> Ways:
    """Compiles the very same function outside and inside `lanax.patch()`."""
    call, args = program.make(batch)
    run = jax.jit(call)
    plain = run.lower(*args).compile()
    with lanax.patch(), recording() as calls:
        patched = run.lower(*args).compile()
    # What a library maps inside an example, over the rows of a Jacobian say, is part of that example's program.
    return Ways(plain, patched, args, tuple(report_of(found) for found in calls if found.axis_size == batch))


@contextlib.contextmanager
def precision(program: Program) -> Iterator[None]:
    """Switches to the precision that the program wants."""
    before = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_enable_x64", program.x64)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)


def assert_same(program: Program, batch: int = 19) -> None:
    """The answers are those of `jax.vmap`, and no more is left to it than the program says."""
    with precision(program):
        ways = compile_both(program, batch)
        want, got = ways.plain(*ways.args), ways.patched(*ways.args)
    comparison = program.check.compare(got, want)
    assert comparison.passed, f"{comparison.agreeing:.1%} agree, largest difference {comparison.difference:.1e}"
    assert ways.reports, "nothing was mapped by lanax"
    misses = [str(miss) for report in ways.reports for miss in report.misses]
    if program.left:
        assert any(program.left in miss for miss in misses), misses
    else:
        assert misses == []
        assert any(report.kernels for report in ways.reports)
