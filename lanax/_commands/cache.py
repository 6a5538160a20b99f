"""`python -m lanax cache`: the compiled kernels that are kept on disk: lists, counts or removes them."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import Any

from rich.table import Table

from lanax._commands.console import console
from lanax._config import config
from lanax._plan import as_typed
from lanax._runtime import cache, plans

ACTIONS = {"list": "every kernel", "size": "how many there are, and how large", "clear": "remove them all"}


def run(action: str, as_json: bool) -> int:
    """Prints what is stored, or removes it. Returns 1 where files could not be removed."""
    if action == "clear":
        return _clear(as_json)
    entries = cache.entries()
    found: dict[str, Any] = {"folder": str(cache.folder()), "on": config.cache, "limit": config.cache_size,
                             "kernels": len(entries), "bytes": sum(entry.bytes for entry in entries)}
    if action == "list":
        found["entries"] = [{"name": e.name, "file": e.file.name, "bytes": e.bytes, "used": e.used} for e in entries]
    if as_json:
        _print_json(found)
        return 0
    if action == "list":
        console().print(_table(entries))
    state = "" if config.cache else "; new ones are not kept (LANAX_CACHE is off)"
    console().print(f"{found['kernels']} kernels in {found['folder']}, {_bytes(found['bytes'])} of at most "
                    f"{as_typed(config.cache_size)}{state}", soft_wrap=True)
    return 0


def _clear(as_json: bool) -> int:
    try:
        count, found = cache.clear(), plans.clear()
    except OSError as error:
        console().print(f"not all could be removed: {error}", soft_wrap=True)
        return 1
    if as_json:
        _print_json({"folder": str(cache.folder()), "removed": count, "removed_plans": found})
    else:
        plans_too = f" and {found} plans of lanax.tune" if found else ""
        console().print(f"removed {count} kernels{plans_too} from {cache.folder()}", soft_wrap=True)
    return 0


def _table(entries: list[cache.Entry]) -> Table:
    shown = Table()
    shown.add_column("function")
    shown.add_column("size", justify="right")
    shown.add_column("last used")
    shown.add_column("file", overflow="fold")
    for entry in entries:
        used = datetime.fromtimestamp(entry.used).isoformat(" ", "minutes")
        shown.add_row(entry.name or "(damaged)", _bytes(entry.bytes), used, entry.file.stem[:12])
    return shown


def _bytes(count: int) -> str:
    """A number of bytes to be read by people."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024  # type: ignore[assignment]
    return f"{count:.4g} GiB"


def _print_json(found: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
