"""Where complex numbers enter and leave a kernel; in between there are only their parts (`lanax._complex`)."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from lanax._lowering.arrays import Array
from lanax._lowering.context import Context
from lanax._lowering.emitter import within
from lanax._lowering.registry import register


@register("real", keys=True)
def _real_rule(ctx: Context, x: Array, **_: Any) -> Array:
    return ctx.b.view(x, ctx.avals_out[0].shape, lambda *i: (*i, 0))


@register("imag", keys=True)
def _imag_rule(ctx: Context, x: Array, **_: Any) -> Array:
    return ctx.b.view(x, ctx.avals_out[0].shape, lambda *i: (*i, 1))


@register("complex", keys=True)
def _complex_rule(ctx: Context, re: Array, im: Array, **_: Any) -> Array:
    b, shape = ctx.b, ctx.avals_out[0].shape
    re, im = b.operands((*shape, 2), re, im)

    def at(*index: Any) -> ir.Value:
        *i, part = index
        if isinstance(part, int):
            return (re, im)[part].at(*within((re, im)[part], tuple(i), shape))
        values = [x.at(*within(x, tuple(i), shape)) for x in (re, im)]
        return b.select(b.eq(part, 0), *values)

    return b.lazy((*shape, 2), re.dtype, at, (re, im))
