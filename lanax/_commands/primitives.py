"""`python -m lanax primitives`: what JAX's primitives become in a kernel, read from the registry. Lowers nothing."""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
import textwrap
from collections.abc import Iterable
from typing import Any

import jax
from rich.table import Table

from lanax._commands.console import console
from lanax._complex.registry import COMPOSED, PARTWISE
from lanax._jax import installed_primitives
from lanax._lowering import rules as _rules
from lanax._lowering.catalogue import NOT_NUMERIC, OTHER_PLATFORMS, REASONS
from lanax._lowering.registry import COMPOSITIONS, RULES
from lanax._rewrite.trace import CALLS, IDENTITIES

assert _rules  # importing the package registers the rules

CONTROL_FLOW = {
    "while": "A loop; where lanes leave it at different times, it runs while any lane is active.",
    "scan": "A loop that needs no mask; a short one is unrolled.",
    "cond": "A jump where its index is uniform; else each side that a lane takes, and cheap sides always.",
}
HEADINGS = ("primitive", "in a kernel", "cost", "notes")

INTRODUCTION = """\
# Primitives

<!-- Written by `python -m lanax primitives --markdown > docs/primitives.md`. Do not edit. -->

What each primitive of JAX becomes in a kernel. JAX's functions are made of these: `jax.make_jaxpr(f)(x)` shows which.

- **elementwise**: a few instructions for each element, registered as a row of a table.
- **rule**: a lowering rule of its own.
- **composition**: replaced by a JAX function of other primitives before anything is lowered.
- **inlined**: a call; the equations of what it calls take its place.
- **nothing**: gives its operands back; it steers XLA or differentiation.

*Cost* is the rough number of vector instructions for one element of the result, by which lanax plans. 0 means a view:
the element is read where it lies.

Whatever has no row is replaced by the jaxpr of the primitive's own `impl`, where that is written in JAX, or else runs
under `jax.vmap`, and `lanax.explain` names it. So do equations on values without a lane form: integers and
floats of less than 8 bits, 8-bit floats, and very large arrays.
"""

OTHERS = """
## What is not in lanes

At least 95 % of the numeric primitives of JAX are in lanes; `python -m lanax primitives` prints the figure for the JAX
that is installed. These are not, or not always:

"""

NOT_COUNTED = """
Not counted are calls, JAX's languages for kernels on other processors, and what is not numeric. Some of it has a place
in a kernel all the same, and then a row above:

"""

COMPLEX = """
## Complex numbers

A complex value is two real ones in a kernel. These primitives take complex values, beside loops and branches, and
become real ones of the table above. Matrices have at most 32 rows and columns for `eigh`, 16 for QR, singular values
and the Schur form, and 10 for LU, Cholesky's factor and triangular systems: with more, XLA was measured to be as fast.
Tridiagonal systems have any number of equations, and are not perturbed. `schur` and `eig` give eigenvalues in the order
in which they are found, mostly that of LAPACK; vectors may have another phase than LAPACK's.

"""


@dataclasses.dataclass(frozen=True)
class Row:
    """One primitive: its name, what it becomes in a kernel, its cost where it has one, and notes."""

    primitive: str
    becomes: str
    cost: str = ""
    notes: str = ""


def run(markdown: bool, as_json: bool = False) -> int:
    """Prints the table, as Markdown or JSON where asked for."""
    if as_json:
        json.dump(_as_dict(), sys.stdout, indent=2)
        sys.stdout.write("\n")
        return 0
    if markdown:
        sys.stdout.write(as_markdown())  # the console would wrap its lines
        return 0
    shown = Table(*HEADINGS)
    for row in table():
        shown.add_row(*dataclasses.astuple(row))
    console().print(shown)
    share = coverage()
    console().print(f"jax {jax.__version__}: {len(share.in_lanes)} of {len(share.numeric)} numeric primitives are in "
                    f"lanes ({share.percent:.0f} %).")
    for name in sorted(share.numeric - share.in_lanes):
        console().print(f"  not in lanes: {name}: {REASONS.get(name, 'no lowering rule')}")
    return 0


def _as_dict() -> dict[str, Any]:
    share = coverage()
    return {"jax": jax.__version__, "numeric": len(share.numeric), "in_lanes": len(share.in_lanes),
            "percent": share.percent, "primitives": [dataclasses.asdict(row) for row in table()],
            "complex": complex_primitives(),
            "not_in_lanes": {name: REASONS.get(name, "no lowering rule")
                             for name in sorted(share.numeric - share.in_lanes)}}


def as_markdown() -> str:
    """The page `docs/primitives.md`."""
    rows = [(f"`{row.primitive}`", row.becomes, row.cost, row.notes) for row in table()]
    page = INTRODUCTION + "\n" + "".join(map(_line, [HEADINGS, ["---"] * len(HEADINGS), *rows]))
    page += OTHERS + "".join(_item(f"`{name}`: {reason}.") for name, reason in sorted(REASONS.items()))
    page += NOT_COUNTED + "".join(
        _item(f"{kind}: " + ", ".join(f"`{name}`" for name in sorted(names))) for kind, names in NOT_NUMERIC.items())
    return page + COMPLEX + textwrap.fill(", ".join(f"`{name}`" for name in complex_primitives()), 118) + "\n"


def _item(text: str) -> str:
    return textwrap.fill(text, 118, initial_indent="- ", subsequent_indent="  ") + "\n"


@dataclasses.dataclass(frozen=True)
class Coverage:
    """What of the installed JAX is numeric, and what of that is in lanes, by names."""

    numeric: frozenset[str]
    in_lanes: frozenset[str]

    @property
    def percent(self) -> float:
        """The share that is in lanes."""
        return 100.0 * len(self.in_lanes) / len(self.numeric)


def coverage() -> Coverage:
    """Counts the primitives of the installed JAX: a numeric one is in lanes where it has a row of the table, or the
    rules of complex numbers take it."""
    counted = {name for name, counts in installed_primitives(OTHER_PLATFORMS).items() if counts}
    numeric = counted.difference(*NOT_NUMERIC.values(), CALLS, IDENTITIES)
    known = {row.primitive for row in table()} | set(complex_primitives())
    return Coverage(frozenset(numeric), frozenset(numeric & known))


def complex_primitives() -> list[str]:
    """The primitives that take complex values."""
    return sorted({"imag", "real", *COMPOSED, *PARTWISE})


def _line(cells: Iterable[str]) -> str:
    return f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|\n"


def table() -> list[Row]:
    """A row for each primitive, by name; what comes first on the way to a kernel counts."""
    rows = {name: Row(name, "composition", notes=_text(fun)) for name, fun in COMPOSITIONS.items()
            if not name.startswith("lanax_")}
    rows |= {name: _rule(name) for name in RULES}
    rows |= {name: Row(name, "inlined") for name in (*CALLS, "custom_linear_solve")}
    rows |= {name: Row(name, "nothing") for name in IDENTITIES}
    return sorted(rows.values(), key=lambda row: row.primitive)


def _rule(name: str) -> Row:
    entry = RULES[name]
    if name in CONTROL_FLOW:
        composed = f" As a composition: {_text(COMPOSITIONS[name])}" if name in COMPOSITIONS else ""
        return Row(name, "control flow", notes=CONTROL_FLOW[name] + composed)
    kind = "elementwise" if entry.rule.__module__ == "lanax._lowering.families" else "rule"
    return Row(name, kind, f"{entry.cost:g}", " ".join(filter(None, map(_text, (entry.supports, entry.rule)))))


def _text(fun: Any) -> str:
    """The first paragraph of the docstring of a function of lanax's own, in one line."""
    own = (getattr(fun, "__module__", None) or "").startswith("lanax.")
    first = inspect.cleandoc(fun.__doc__ or "").split("\n\n")[0] if own else ""
    return " ".join(first.split()).replace("|", "\\|")
