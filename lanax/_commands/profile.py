"""`python -m lanax profile`: runs a function over a batch and says what its loops, branches and threads did."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lanax
from lanax._commands.console import console
from lanax._commands.explain import mapped_call, reported


def run(function: Any, args: Sequence[Any], in_axes: Any, case: str | None, as_json: bool, html: Path | None) -> int:
    """Prints the profile, and writes it as a page where asked for. Returns 2 for a command line that cannot be used, 1
    where the function itself fails."""
    return reported(lambda: _show(lanax.profile(*mapped_call(function, args, in_axes, case)), as_json, html))


def _show(made: lanax.Profile, as_json: bool, html: Path | None) -> None:
    if html is not None:
        made.to_html(html)
    if as_json:
        sys.stdout.write(json.dumps(made.to_dict(), indent=2) + "\n")
        return
    console().print(str(made), soft_wrap=True, markup=False)
    if html is not None:
        console().print(f"wrote {html}", soft_wrap=True, markup=False)
