"""Registers whole families of primitives: those that act on each element by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from lanax._lowering.arrays import Array
from lanax._lowering.context import Context
from lanax._lowering.lanewise.rounding import round_to
from lanax._lowering.registry import register

Fn = Callable[..., ir.Value]


def elementwise(name: str, fn: Fn, cost: float = 1.0) -> None:
    """Register `fn(b, dtype, *lane_values)`, where `dtype` is that of the first operand."""

    def rule(ctx: Context, *arrays: Array, **_: Any) -> Array:
        dtype, out = arrays[0].dtype, np.dtype(ctx.avals_out[0].dtype)
        return ctx.b.map(lambda *v: round_to(ctx.b, fn(ctx.b, dtype, *v), out), out, *arrays)

    rule.__name__ = f"_{name}_rule"
    register(name, cost=cost)(rule)
