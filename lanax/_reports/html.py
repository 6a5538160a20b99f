"""Pieces of HTML for notebooks and pages. Knows nothing of what they show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape as escape

#: Colours follow the reader's light or dark setting; a notebook's own text colour is left as it is.
STYLE = """
.lanax { font: 14px/1.5 system-ui, sans-serif; max-width: 60rem; overflow-wrap: anywhere; }
.lanax table { border-collapse: collapse; margin: .4rem 0 1rem; font-variant-numeric: tabular-nums; }
.lanax th, .lanax td { text-align: left; vertical-align: top; padding: .15rem 1rem .15rem 0;
  border-bottom: 1px solid #8884; }
.lanax table { font-size: inherit; } .lanax td:first-child { white-space: nowrap; overflow-wrap: normal; }
.lanax th { font-weight: 600; } .lanax code { font-family: ui-monospace, monospace; font-size: .92em; }
.lanax .number { text-align: right; white-space: nowrap; } .lanax .dim { opacity: .7; }
"""


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of text, which is escaped; numbers (int and float) are aligned to the right. Empty for no rows."""
    lines = [f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows]
    head = f"<tr>{''.join(f'<th>{escape(h)}</th>' for h in headings)}</tr>" if any(headings) else ""
    return f"<table>{head}{''.join(lines)}</table>" if lines else ""


def _cell(value: object) -> str:
    number = isinstance(value, (int, float)) or (isinstance(value, str) and value[:1].isdigit() and len(value) < 16)
    text = f"{value:,}" if isinstance(value, int) else f"{value:.3g}" if isinstance(value, float) else str(value)
    return f'<td{" class=number" if number else ""}>{escape(text)}</td>'


def block(title: str, *parts: str) -> str:
    """A titled piece of a notebook's output."""
    return f'<div class="lanax"><style>{STYLE}</style><strong>{escape(title)}</strong>{"".join(parts)}</div>'
