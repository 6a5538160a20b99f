# What lanax uses of llvmlite, which ships no types: see ir.pyi. Read by pyright alone.
from typing import Any

def __getattr__(name: str) -> Any: ...
