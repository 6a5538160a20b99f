"""`cond` on lanes: a side of a varying branch is skipped where no lane takes it, uniform ones are plain jumps."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from llvmlite import ir

from lanax._jax import scan_counts, words_type
from lanax._llvm import types as t
from lanax._lowering.arrays import Array, Memory
from lanax._lowering.carry import outside
from lanax._lowering.context import Context
from lanax._lowering.registry import RULES, register
from lanax._lowering.windows import aside


@register("cond", keys=True)
def _cond_rule(ctx: Context, index: Array, *args: Array, branches: Any, **_: Any) -> list[Array]:
    b = ctx.b
    operands = outside(ctx, args)
    which = index.at()
    if isinstance(which, ir.Constant):
        return ctx.lower_inner(min(max(int(which.constant), 0), len(branches) - 1), operands, ctx.mask)
    varying = [any(u.varying_out[k] for u in ctx.inner) or index.varying for k in range(len(ctx.avals_out))]
    homes = _homes(ctx, args, operands, varying)
    for position, home in homes.values():
        operands[position] = home
    results = _Results(ctx, varying, {k: home for k, (_, home) in homes.items()})
    count = len(branches)
    ctx.counts.enter(ctx.mask)

    def side(k: int) -> list[ir.Value]:
        ctx.counts.side(k, ctx.mask)
        return results.take(ctx.lower_inner(k, operands, ctx.mask), None, None)

    if not index.varying:
        if len(branches) == 2 and t.bit_width(which.type) > 1:
            which = b.ir.icmp_signed(">", which, b.like(which, 0))
            return results.arrays(b.branch(which, lambda: side(1), lambda: side(0)))
        low, high = b.like(which, 0), b.like(which, count - 1)
        which = b.select(b.lt(which, low), low, b.select(b.gt(which, high), high, which))
        return results.arrays(b.switch(which, [functools.partial(side, k) for k in range(count)]))
    return results.arrays(_varying_cond(ctx, which, operands, results))


def _homes(ctx: Context, args: Sequence[Array], operands: Sequence[Array], varying: Sequence[bool]
           ) -> dict[int, tuple[int, Memory]]:
    """By result, the operand in whose memory all sides may leave it, each side in the lanes that take it."""
    out: dict[int, tuple[int, Memory]] = {}
    for k, varies in enumerate(varying):
        origins = {_origin(side.jaxpr, side.jaxpr.outvars[k]) for side in ctx.inner}
        position = origins.pop()
        if origins or position is None or any(position == taken for taken, _ in out.values()):
            continue
        x = args[position]
        others = [*operands[:position], *operands[position + 1:]]
        if (isinstance(x, Memory) and not ctx.b.is_small(x) and x.varying == varies
                and ctx.may_overwrite(position + 1, x) and not any(x.buffer in o.reads for o in others)):
            out[k] = position, x
    return out


def _origin(jaxpr: Any, result: Any) -> int | None:
    """Which input of a jaxpr a result is, perhaps updated by index."""
    for eqn in reversed(jaxpr.eqns):
        if result in eqn.outvars:
            position = _updated_operand(eqn, eqn.outvars.index(result))
            if position is None:
                return None
            result = eqn.invars[position]
    return next((i for i, v in enumerate(jaxpr.invars) if v is result), None)


def _updated_operand(eqn: Any, result: int) -> int | None:
    """The operand that a result of an equation has the memory of, where it can be updated in place."""
    name = eqn.primitive.name
    if name == "dynamic_update_slice" or name.startswith("scatter"):
        return 0
    if name == "while":
        return eqn.params["cond_nconsts"] + eqn.params["body_nconsts"] + result
    if name == "scan":
        consts, carries = scan_counts(eqn.params)
        return consts + result if result < carries else None
    return None


class _Results:
    """What the sides of a branch give: lane values of small results, memory for large ones.

    `homes`: by result, memory of an operand that is to hold it, and may hold it when a side has run.
    """

    def __init__(self, ctx: Context, varying: Sequence[bool], homes: Mapping[int, Memory]):
        self.b = ctx.b
        self.varying = varying
        self.homes = homes
        self.outer = ctx.mask
        self.shapes = list(map(words_type, ctx.avals_out))
        self.memory: list[Memory | None] = []
        for i, ((shape, dtype), v) in enumerate(zip(self.shapes, varying, strict=True)):
            size = math.prod(shape)
            self.memory.append(None if size <= self.b.unroll else homes.get(i) or self.b.allocate(shape, dtype, v))

    def take(self, new: Sequence[Array], mask: ir.Value | None, old: Sequence[ir.Value] | None) -> list[ir.Value]:
        """The lane values after one side has run for the lanes of `mask`."""
        out: list[ir.Value] = []
        staged: list[tuple[Memory, Array, ir.Value | None]] = []
        previous = iter(old or ())
        for i, (memory, x, varies) in enumerate(zip(self.memory, new, self.varying, strict=True)):
            if memory is not None:
                if not (isinstance(x, Memory) and x.buffer is memory.buffer):
                    outer = self.outer if i in self.homes else None
                    staged.append((memory, self._aside(x), outer if mask is None else mask))
                continue
            for v in self.b.unrolled(x).values.flat:
                v = self.b.splat(v) if varies else v
                if old is not None and mask is not None:
                    v = self.b.select(self.b.of_mask(mask), v, next(previous))
                out.append(v)
        for memory, x, where in staged:
            self.b.copy(x, memory, where)
        return out

    def _aside(self, x: Array) -> Array:
        """A result out of the way of the operands that are about to be overwritten."""
        for home in self.homes.values():
            x = aside(self.b, x, home.buffer)
        return x

    def arrays(self, values: Sequence[ir.Value]) -> list[Array]:
        rest = iter(values)
        out: list[Array] = []
        for memory, (shape, dtype) in zip(self.memory, self.shapes, strict=True):
            if memory is not None:
                out.append(memory)
                continue
            size = math.prod(shape)
            out.append(self.b.elements([next(rest) for _ in range(size)], shape, dtype))
        return out


def _varying_cond(ctx: Context, which: ir.Value, operands: list[Array], results: _Results) -> list[ir.Value]:
    """Each side in turn for the lanes that take it; a side that no lane takes is jumped over, a cheap one is not."""
    b = ctx.b
    count = len(ctx.inner)
    values: list[ir.Value] | None = None
    for k in reversed(range(count)):
        mask = b.mask_and(_takes(ctx, which, k, count), ctx.mask)
        first = values is None
        if _cheap(ctx.inner[k].jaxpr):
            ctx.counts.side(k, mask)
            new = ctx.lower_inner(k, operands, mask)
            values = results.take(new, None if first and not any(results.memory) else mask, values)
            continue
        before = _zeros(ctx, results) if values is None else values

        def side(k: int = k, mask: ir.Value = mask, before: list[ir.Value] = before) -> list[ir.Value]:
            ctx.counts.side(k, mask)
            return results.take(ctx.lower_inner(k, operands, mask), mask, before)

        values = b.branch(b.any(mask), side, lambda before=before: before)
    assert values is not None
    return values


def _takes(ctx: Context, which: ir.Value, k: int, count: int) -> ir.Value:
    """i1 lanes: whether a lane takes side `k`; an index out of range is clamped."""
    b = ctx.b
    if t.bit_width(which.type) == 1:
        return which if k else b.not_(which)
    if k == 0:
        return b.le(which, 0)
    return b.ge(which, k) if k == count - 1 else b.eq(which, k)


def _zeros(ctx: Context, results: _Results) -> list[ir.Value]:
    b = ctx.b
    out: list[ir.Value] = []
    for memory, (shape, dtype) in zip(results.memory, results.shapes, strict=True):
        if memory is None:
            size = math.prod(shape)
            out.extend([b.splat(b.constant(0, dtype))] * size)
    return out


#: A side of at most this many equations, none of them a loop or a branch, is computed by all lanes and selected.
_CHEAP_SIDE = 8
_CHEAP_EQUATION = 6


def _cheap(jaxpr: Any) -> bool:
    """Whether all lanes may compute a side: few elementwise equations, none of them long."""
    return len(jaxpr.eqns) <= _CHEAP_SIDE and all(
        e.primitive.name in RULES and RULES[e.primitive.name].cost <= _CHEAP_EQUATION
        and e.primitive.name not in ("while", "scan", "cond") and all(v.aval.size <= 4 for v in e.outvars)
        for e in jaxpr.eqns)
