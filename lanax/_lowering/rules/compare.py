"""Comparisons and selections."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from lanax._llvm import types as t
from lanax._lowering.arrays import Array
from lanax._lowering.context import Context
from lanax._lowering.lanewise.arithmetic import total_order
from lanax._lowering.registry import register

_OPS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def _register_comparison(name: str, op: str) -> None:
    def rule(ctx: Context, x: Array, y: Array, **_: Any) -> Array:
        signed = np.dtype(x.dtype).kind == "i"
        return ctx.b.map(lambda u, v: ctx.b.compare(op, u, v, signed), np.dtype(bool), x, y)

    register(name)(rule)


for _name, _op in _OPS.items():
    _register_comparison(_name, _op)


def _register_total_comparison(name: str, op: str) -> None:
    def rule(ctx: Context, x: Array, y: Array, **_: Any) -> Array:
        b = ctx.b

        def fn(u: ir.Value, v: ir.Value) -> ir.Value:
            if t.is_float(u.type):
                return b.compare(op, total_order(b, u), total_order(b, v))
            return b.compare(op, u, v, np.dtype(x.dtype).kind == "i")

        return b.map(fn, np.dtype(bool), x, y)

    register(name)(rule)


for _name in ("eq", "le", "lt"):
    _register_total_comparison(f"{_name}_to", _OPS[_name])


@register("is_finite")
def _is_finite_rule(ctx: Context, x: Array, **_: Any) -> Array:
    b = ctx.b
    return b.map(lambda v: b.lt(b.fabs(v), float("inf")), np.dtype(bool), x)


@register("select_n")
def _select_n_rule(ctx: Context, which: Array, *cases: Array, **_: Any) -> Array:
    b = ctx.b

    def pick(w: ir.Value, *values: ir.Value) -> ir.Value:
        if len(values) == 1:
            return values[0]
        if t.bit_width(w.type) == 1:
            return b.select(w, values[1], values[0])
        out = values[-1]
        for k in reversed(range(len(values) - 1)):
            out = b.select(b.eq(w, k) if k else b.le(w, 0), values[k], out)
        return out

    if which.shape == cases[0].shape:
        return b.map(pick, cases[0].dtype, which, *cases)
    shape = cases[0].shape
    cases = b.operands(shape, *cases)
    return b.lazy(shape, cases[0].dtype, lambda *i: pick(which.at(), *(c.at(*i) for c in cases)), (which, *cases))
