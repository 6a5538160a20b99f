"""`python -m lanax explain`: how a function would run over a batch. Runs nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import lanax
from lanax._commands.console import console
from lanax._suite.programs import find


class UsageError(Exception):
    """The command line does not say what to look at."""


def run(function: Any, args: Sequence[Any], in_axes: Any, case: str | None, as_json: bool) -> int:
    """Prints the report. Returns 2 for a command line that cannot be used, 1 where the function itself fails."""
    return reported(lambda: _show(lanax.explain(*mapped_call(function, args, in_axes, case)), as_json))


def _show(report: lanax.Report, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(report.to_dict(), indent=2) + "\n")
    else:
        console().print(report, soft_wrap=True)


def mapped_call(function: Any, args: Sequence[Any], in_axes: Any, case: str | None) -> tuple[Any, ...]:
    """The mapped function and its arguments.

    Raises:
      UsageError: there is no function or more than one, or a suite's program of this name cannot run.
    """
    if case is None:
        if function is None or not args:
            raise UsageError("name a function and its arguments, as in module:function --arg float32[1000,3], or a "
                             "program of the benchmark suite with --case")
        if not callable(function):
            raise UsageError(f"what is named is no function but {type(function).__name__}: {function!r}")
        mapped = function if isinstance(function, _MAPPED) else lanax.vmap(function, in_axes)
        return mapped, *args
    if function is not None or args:
        raise UsageError("--case brings its own function and arguments: leave out the others")
    try:
        (program,) = find([case])
    except KeyError as error:
        raise UsageError(error.args[0]) from None
    if program.missing():
        raise UsageError(f"{program.name} needs {', '.join(program.missing())}, which is not installed")
    made = program.make(program.batch)
    return lanax.vmap(made.fun, made.in_axes), *made.args


#: The class of what `lanax.vmap` returns.
_MAPPED = type(lanax.vmap(lambda x: x))


def reported(act: Callable[[], None]) -> int:
    """Acts, and writes what goes wrong to standard error, in a line. Returns the exit status."""
    try:
        act()
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except (TypeError, ValueError, lanax.LanaxError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    return 0
