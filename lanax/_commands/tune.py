"""`python -m lanax tune`: times a handful of plans of a program of the user's."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import lanax
from lanax import Tuning
from lanax._commands.console import console
from lanax._commands.explain import mapped_call, reported


def run(function: Any, args: Sequence[Any], in_axes: Any, case: str | None, as_json: bool, *, seconds: float,
        store: bool) -> int:
    """Prints the table, or JSON. Returns 2 for a command line that cannot be used, 1 where the function fails."""
    return reported(lambda: _show(lanax.tune(*mapped_call(function, args, in_axes, case), seconds=seconds, store=store,
                                             progress=not as_json), as_json))


def _show(found: Tuning, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(_as_json(found), indent=2) + "\n")
    else:
        console().print(str(found), soft_wrap=True, markup=False)
        console().print(f"best: {found.plan!r}", soft_wrap=True, markup=False)


def _as_json(found: Tuning) -> dict[str, Any]:
    """Everything that was measured; times are in seconds, and null where a plan did not run."""
    return {
        "name": found.name, "axis_size": found.axis_size, "plan": found.plan.given(), "complete": found.complete,
        "files": list(map(str, found.files)),
        "rows": [{"plan": r.plan.given(), "routes": list(r.routes), "seconds": r.seconds if r.runs else None,
                  "spread": r.spread, "runs": r.runs, "ratio": r.ratio if r.runs else None,
                  "difference": r.difference if r.difference < float("inf") else None, "note": r.note}
                 for r in found.rows],
    }
