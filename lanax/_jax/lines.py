"""Where an equation comes from: the user's lines in source infos, and lanax's own left out of tracebacks.

Tracebacks end at the function that was traced, so what a library jits has no frame of the user's.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from typing import Any

from jax._src import source_info_util, traceback_util

from lanax._jax.classes import JaxprEqn

_LANAX = os.path.dirname(os.path.dirname(__file__))

# A line of lanax's own is never the user's in what JAX says about where a value was made, and left out of tracebacks
# as JAX's own lines are, below an `api_boundary`.
source_info_util.register_exclusion(_LANAX + os.sep)
traceback_util.register_exclusion(_LANAX)
api_boundary = traceback_util.api_boundary

_LIBRARIES = ("site-packages", "dist-packages", os.path.dirname(os.__file__), _LANAX)
#: The benchmark programs are written as users write theirs.
_PROGRAMS = os.path.join(_LANAX, "_suite") + os.sep
source_info_util.register_inclusion(_PROGRAMS)


@functools.cache
def is_users_file(filename: str) -> bool:
    """True for a file of the user's own, rather than one of a library or of lanax."""
    if filename.startswith(_PROGRAMS):
        return True
    return not any(part in filename for part in _LIBRARIES) and source_info_util.is_user_filename(filename)


def warn_at_users_line(text: str, category: type[Warning], registry: dict[Any, Any] | None = None) -> None:
    """Warn at the innermost frame that is neither lanax's nor a library's; at the outermost one where there is none.
    `registry`: of what need not be shown again; None: this is shown anyway."""
    frame = sys._getframe(1)
    while not is_users_file(frame.f_code.co_filename) and frame.f_back is not None:
        frame = frame.f_back
    warnings.warn_explicit(text, category, frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__"),
                           registry)


def has_users_line(info: source_info_util.SourceInfo) -> bool:
    """True where a source info holds a line of the user's own, rather than of a library."""
    frames = info.traceback.raw_frames()[0] if info.traceback is not None else ()
    return any(is_users_file(code.co_filename) for code in frames)


def source_line(eqn: JaxprEqn) -> str:
    """The user's line that made an equation, as `file:line (function)`; empty where unknown."""
    frames = source_info_util.user_frames(eqn.source_info.traceback)
    frame = next((f for f in frames if is_users_file(f.file_name)), None)
    if frame is None:
        return source_info_util.summarize(eqn.source_info)
    return f"{frame.file_name}:{frame.start_line} ({frame.function_name})"
