"""Speed and answers of libraries that know nothing of lanax, inside `lanax.patch()` beside outside of it.

    python benchmarks/ecosystem.py [words ...] [--seconds S] [--markdown]

The programs are those of `tests/ecosystem`. Each is one function, compiled outside and inside a patch and run in turns
in one process. Words choose the programs whose library or title holds one of them. `--markdown` writes
`docs/ecosystem.md`. The exit status is 1 where answers differ by more than a program allows.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.metadata
import pathlib
import statistics
import sys

import jax
from rich.console import Console
from rich.table import Table

import lanax
from lanax import _target
from lanax._suite.program import Comparison
from lanax._suite.timing import take_turns

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "ecosystem"))

from program import Program, compile_both, precision  # noqa: E402

MODULES = ("diffrax_programs", "optimistix_programs", "networks_programs", "sampling_programs", "jax_programs")
HEADER = ("library", "program", "examples", "route", "jax.vmap", "lanax", "faster", "difference")

INTRODUCTION = """# Other libraries

<!-- Written by `python benchmarks/ecosystem.py --markdown`. Do not edit. -->

Libraries that map with `jax.vmap`, or whose functions you map, need no change and know nothing of lanax:

```python
import diffrax
import jax.numpy as jnp
import lanax

def solve(y0):
    term = diffrax.ODETerm(lambda t, y, args: -y)
    return diffrax.diffeqsolve(term, diffrax.Tsit5(), 0.0, 1.0, 0.1, y0).ys

lanax.vmap(solve)(jnp.linspace(0.5, 2.0, 1000))        # in the place of jax.vmap
```

**Where `vmap` is in your code** (diffrax, optimistix, lineax, optax, environments, blackjax's loops over chains), write
`from lanax import vmap` for `from jax import vmap`, or `lanax.vmap` for `jax.vmap`.

**Where it is in the library's**, use [`lanax.patch()`](map_and_patch.md), as a `with` block or once for the process:
`equinox.filter_vmap`, `flax.linen.vmap`, `flax.nnx.vmap`, numpyro's `chain_method="vectorized"`, `Predictive` and
`log_likelihood`.

- `jax.grad` goes inside the mapped function or around it, and so do all adjoints of diffrax.
- Errors that a library raises at run time (`throw=True`, `equinox.error_if`) are raised as under `jax.vmap`, also where
  one example of many fails.
- Results depend on rounding where a program does: an adaptive solver may accept another step, and a long chain of NUTS
  takes another turn. Both answers are right then; short chains and statistics agree.

## Measured

Each program is one function, compiled by `jax.jit` outside and inside `lanax.patch()`, and run in turns in one process:
medians. *Difference* is the largest `|a - b| / max(1, |b|)` over all results, or, where rounding decides about a step
of a few examples, how many values differ by more than that program's tolerance. *Route* says what runs in lanes:
`lanes` is the whole mapped program in one kernel, `lanes -> xla -> lanes` a program that was cut.

{machine}; jax {jax}; {versions}.

"""


def milliseconds(seconds: float) -> str:
    """To three digits."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.1 else f"{seconds * 1e3:,.0f} ms"


@dataclasses.dataclass(frozen=True)
class Row:
    """What one program showed; times are in seconds."""

    program: Program
    route: str
    reasons: tuple[str, ...]
    plain: float
    patched: float
    comparison: Comparison

    def cells(self) -> tuple[str, ...]:
        """As the tables show it."""
        ratio = self.plain / self.patched
        return (self.program.library, self.program.title, f"{self.program.batch:,}", self.route,
                milliseconds(self.plain), milliseconds(self.patched),
                f"{ratio:.0f} x" if ratio >= 10 else f"{ratio:.1f} x", self.difference())

    def difference(self) -> str:
        """The largest difference, or how many values differ where a few may."""
        found = self.comparison
        text = f"{found.difference:.0e}" if found.agreeing == 1.0 else f"{1.0 - found.agreeing:.1%} of values"
        return text if found.passed else f"WRONG {text}"


def measure(program: Program, seconds: float) -> Row:
    """Compiles, compares and times one program."""
    with precision(program):
        ways = compile_both(program, program.batch)
        comparison = program.check.compare(ways.patched(*ways.args), ways.plain(*ways.args))
        plain, patched = map(statistics.median, take_turns(ways.plain, ways.patched, ways.args, seconds))
    routes = dict.fromkeys(" -> ".join(report.routes) for report in ways.reports if report.routes)
    reasons = dict.fromkeys(f"`{miss.primitive}`: {miss.reason}" for report in ways.reports for miss in report.misses)
    return Row(program, ", ".join(routes), tuple(reasons), plain, patched, comparison)


def programs(words: list[str], out: Console) -> list[Program]:
    """Those of the libraries that are installed."""
    found: list[Program] = []
    for name in MODULES:
        try:
            found += importlib.import_module(name).PROGRAMS
        except ImportError as error:
            out.print(f"left out {name}: {error}")
    return [p for p in found if not words or any(word.lower() in f"{p.library} {p.title}".lower() for word in words)]


def versions(rows: list[Row]) -> str:
    """The libraries that were measured, with their versions."""
    names = [name for name in dict.fromkeys(row.program.library for row in rows) if name not in ("gym", "jax")]
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


def page(rows: list[Row]) -> str:
    """docs/ecosystem.md."""
    host = _target.host()
    text = INTRODUCTION.format(machine=f"{host.cpu}, {host.instruction_set}, {host.cores} cores", jax=jax.__version__,
                               versions=versions(rows))
    lines = [HEADER, ["---"] * len(HEADER), *(row.cells() for row in rows)]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    left = [f"- {row.program.library}, {row.program.title}: {reason}" for row in rows for reason in row.reasons]
    return "\n".join([text + table, "", "## Not in lanes", "", *(left or ["Nothing."]), ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="programs to measure; all by default")
    parser.add_argument("--seconds", type=float, default=2.0, metavar="S", help="for the runs of each program (2)")
    parser.add_argument("--markdown", action="store_true", help="write docs/ecosystem.md")
    options = parser.parse_args()
    out = Console()
    table = Table(*HEADER, title=f"lanax {lanax.__version__}, jax {jax.__version__}")
    rows: list[Row] = []
    for program in programs(options.words, out):
        rows.append(measure(program, options.seconds))
        out.print(*rows[-1].cells(), *rows[-1].reasons, sep="  ", highlight=False)
        table.add_row(*rows[-1].cells())
    out.print(table)
    if options.markdown:
        (ROOT / "docs" / "ecosystem.md").write_text(page(rows))
    return int(not all(row.comparison.passed for row in rows))


if __name__ == "__main__":
    sys.exit(main())
