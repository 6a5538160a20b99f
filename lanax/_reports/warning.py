"""Warns of what is left to `jax.vmap` although it costs much there: loops and branches without lane code."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from types import FrameType

from lanax._errors import PerformanceWarning
from lanax._jax import is_users_file
from lanax._planning.partition import XLA, Miss, Partition
from lanax._rewrite.surgery import CONTROL_FLOW, inner_jaxprs


def warn_of(name: str, found: Partition) -> None:
    """Warn where a loop or a branch of the function `name` has a miss, or goes to XLA with one that has."""
    loops = [e for part in found.parts if part.route == XLA for e in part.jaxpr.eqns if inner_jaxprs(e)]
    if loops and found.misses:
        warn_of_misses(name, found.misses, whole="a function with loops or branches")


def warn_of_misses(name: str, misses: Sequence[Miss], whole: str = "") -> None:
    """One warning, of a loop or branch among the misses, or else of the first one where `whole` says what it stops."""
    miss = next((m for m in misses if m.primitive in CONTROL_FLOW), None)
    if miss:
        where = f" ({miss.source})" if miss.source else ""
        _warn(name, f"its `{miss.primitive}`{where}", miss.reason)
    elif whole:
        _warn(name, whole, f"`{misses[0].primitive}`: {misses[0].reason}")


def warn_of_whole(name: str, reason: str) -> None:
    """Warn of a function that is left to `jax.vmap` as a whole."""
    _warn(name, "the whole function", reason)


def _warn(name: str, what: str, reason: str) -> None:
    text = (f"lanax: `{name}`: {what} is left to XLA, not in lanes: {reason}. "
            "lanax.explain says more, with a hint.")
    frame = _users_frame()
    warnings.warn_explicit(text, PerformanceWarning, frame.f_code.co_filename, frame.f_lineno,
                           frame.f_globals.get("__name__"), frame.f_globals.setdefault("__warningregistry__", {}))


def _users_frame() -> FrameType:
    """The innermost frame that is neither lanax's nor a library's; the outermost one where there is none."""
    frame = sys._getframe(1)
    while not is_users_file(frame.f_code.co_filename) and frame.f_back is not None:
        frame = frame.f_back
    return frame
