"""Warns of what is left to `jax.vmap` although it costs much there: loops and branches without lane code. Once for each
function, which its code tells from others: a `def` or `lambda` that is run again and again makes the same function."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Hashable, Sequence
from typing import Any

from lanax._errors import PerformanceWarning
from lanax._jax import warn_at_users_line
from lanax._planning.partition import XLA, Miss, Partition
from lanax._program import Program
from lanax._rewrite.surgery import CONTROL_FLOW, inner_jaxprs

#: For each function the warning filters under which it has been warned of, and is not to be again.
_given: weakref.WeakKeyDictionary[Any, set[Hashable]] = weakref.WeakKeyDictionary()


def warn_of(program: Program, found: Partition) -> None:
    """Warn where a loop or a branch of a program has a miss, or goes to XLA with one that has."""
    loops = [e for part in found.parts if part.route == XLA for e in part.jaxpr.eqns if inner_jaxprs(e)]
    if loops and found.misses:
        warn_of_misses(program.name, program.code, found.misses, whole="a function with loops or branches")


def warn_of_misses(name: str, code: Any, misses: Sequence[Miss], whole: str = "") -> None:
    """One warning, of a loop or branch among the misses, or else of the first one where `whole` says what it stops."""
    miss = next((m for m in misses if m.primitive in CONTROL_FLOW), None)
    if miss:
        where = f" ({miss.source})" if miss.source else ""
        _warn(name, code, f"its `{miss.primitive}`{where}", miss.reason)
    elif whole:
        _warn(name, code, whole, f"`{misses[0].primitive}`: {misses[0].reason}")


def warn_of_whole(name: str, code: Any, reason: str) -> None:
    """Warn of a function that is left to `jax.vmap` as a whole."""
    _warn(name, code, "the whole function", reason)


def _warn(name: str, code: Any, what: str, reason: str) -> None:
    """Python's own registries know lines, not functions, and forget all when any library touches the filters."""
    given, filters = _given.setdefault(code, set()), tuple(warnings.filters)
    if filters in given:
        return
    text = (f"lanax: `{name}`: {what} is left to XLA, not in lanes: {reason}. "
            "lanax.explain says more, with a hint.")
    registry: dict[Any, Any] = {}
    warn_at_users_line(text, PerformanceWarning, registry)
    if registry.keys() - {"version"}:  # it was shown, by a filter that shows each warning once
        given.add(filters)
