"""The console that the commands write to. Knows no command."""

from __future__ import annotations

from rich.console import Console

#: Columns of output that goes to a file or a pipe, where there is no terminal to ask.
PIPE_WIDTH = 120


def console() -> Console:
    """Standard output, wide enough for the tables where it is no terminal."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(width=PIPE_WIDTH, highlight=False)
