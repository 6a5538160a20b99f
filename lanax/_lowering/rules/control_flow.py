"""`while`, `scan` and `cond` on lanes: a varying loop runs while any lane is active, a varying branch is skipped where
no lane takes it, and uniform ones are plain loops and jumps."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from llvmlite import ir

from lanax._jax import scan_counts
from lanax._llvm import types as t
from lanax._lowering.arrays import UNROLL, Array, Elements, Memory
from lanax._lowering.context import Context
from lanax._lowering.keys import is_key, words_shape
from lanax._lowering.registry import RULES, register
from lanax._lowering.windows import aside
from lanax._rewrite.surgery import indexed_carries, inner_jaxprs


class Carry:
    """Loop-carried arrays as a flat list of lane values (small ones) and scratch memory (large ones, and those that the
    loop updates at an index known only at run time).

    `others`: what else the loop reads, which must not change with the carries. `indexed`: see `indexed_carries`.
    """

    def __init__(self, ctx: Context, initial: Sequence[Array], varying: Sequence[bool], dying: Sequence[bool],
                 others: Sequence[Array], indexed: Sequence[bool]):
        self.ctx, self.b = ctx, ctx.b
        self.varying = varying
        self.others = others
        self.taken: set[int] = set()
        self.buffers: dict[int, Memory] = {}
        self.initial: list[ir.Value] = []
        self.shapes = [(x.shape, x.dtype) for x in initial]
        for i, x in enumerate(initial):
            if x.small and not indexed[i]:
                flat = self.b.unrolled(x).values.flat
                self.initial.extend(self.b.splat(v) if varying[i] else v for v in flat)
            else:
                self.buffers[i] = self._buffer(x, varying[i], dying[i], i)

    def _buffer(self, x: Array, varying: bool, dying: bool, position: int) -> Memory:
        """Memory for a large carry: the initial value's own where nothing else needs it."""
        if (dying and isinstance(x, Memory) and x.owned and x.varying == varying
                and not any(x.buffer in o.reads for o in (*self.ctx.live, *self.others))
                and all(x.buffer is not o.buffer for o in self.buffers.values())):
            self.taken.add(position)
            return x
        out = self.b.allocate(x.shape, x.dtype, varying)
        out.born = self.ctx.mask
        self.b.copy(x, out)
        return out

    def arrays(self, values: Sequence[ir.Value]) -> list[Array]:
        """The carries inside the loop, given the present lane values."""
        out: list[Array] = []
        rest = iter(values)
        for i, (shape, dtype) in enumerate(self.shapes):
            if i in self.buffers:
                out.append(self.buffers[i])
            else:
                size = math.prod(shape)
                out.append(self.b.elements([next(rest) for _ in range(size)], shape, dtype))
        return out

    def advance(self, old: Sequence[Array], new: Sequence[Array], mask: ir.Value | None,
                frozen_read: Sequence[bool]) -> list[ir.Value]:
        """The lane values for the next trip; carries of inactive lanes stay where their frozen value is read."""
        values: list[ir.Value] = []
        staged: list[tuple[int, Array]] = []
        for i, (before, after) in enumerate(zip(old, new, strict=True)):
            if i in self.buffers:
                if not (isinstance(after, Memory) and after.buffer is self.buffers[i].buffer):
                    staged.append((i, self._aside(after)))
                continue
            for x, y in zip(self.b.unrolled(before).values.flat, self.b.unrolled(after).values.flat, strict=True):
                y = self.b.splat(y) if self.varying[i] else y
                keep = mask is not None and self.varying[i] and frozen_read[i]
                values.append(self.b.select(self.b.of_mask(mask), y, x) if keep and mask is not None else y)
        for i, source in staged:
            # A buffer of the region around this loop also holds what lanes that are inactive there have.
            outer = self.ctx.mask if i in self.taken else None
            self.b.copy(source, self.buffers[i], outer if mask is None else mask)
        return values

    def _aside(self, x: Array) -> Array:
        """A new carry out of the way of the buffers that are about to be overwritten."""
        for memory in self.buffers.values():
            x = aside(self.b, x, memory.buffer)
        return x


def borrow(x: Array) -> Array:
    """A value of the region outside, which the region inside may read but not overwrite."""
    if isinstance(x, Memory):
        return x.borrowed()
    if isinstance(x, Elements):
        x = Elements(x.values, x.dtype, x._pick)
    return x


def _outside(ctx: Context, values: Sequence[Array]) -> list[Array]:
    """Values of the region outside, settled, as a region inside may read them."""
    return [borrow(ctx.b.settled(x)) for x in values]


@register("while", keys=True)
def _while_rule(ctx: Context, *args: Array, cond_nconsts: int, body_nconsts: int, cond_jaxpr: Any, body_jaxpr: Any,
                **_: Any) -> list[Array]:
    cond, body = ctx.inner
    split = cond_nconsts + body_nconsts
    cond_consts = _outside(ctx, args[:cond_nconsts])
    body_consts = _outside(ctx, args[cond_nconsts:split])
    initial = args[split:]
    dying = [split + i in ctx.dying for i in range(len(initial))]
    varying = body.of(body.jaxpr.invars[body_nconsts:])
    carry = Carry(ctx, initial, varying, dying, [*cond_consts, *body_consts],
                  indexed_carries(body.jaxpr, body_nconsts, len(initial)))
    b = ctx.b

    def active(values: list[ir.Value], mask: ir.Value | None) -> ir.Value:
        """Which lanes go on: a mask where the predicate varies, else a scalar."""
        (on,) = ctx.lower_inner(0, [*cond_consts, *carry.arrays(values)], mask)
        on = on.at()
        if not cond.varying_out[0]:
            return on
        return b.mask_and(b.splat(on), mask)

    if not cond.varying_out[0]:
        def step(values: list[ir.Value]) -> tuple[list[ir.Value], ir.Value]:
            ctx.counts.trip(ctx.mask)
            old = carry.arrays(values)
            new = ctx.lower_inner(1, [*body_consts, *old], ctx.mask)
            values = carry.advance(old, new, None, ctx.used)
            return values, active(values, ctx.mask)

        ctx.counts.enter(ctx.mask)
        return carry.arrays(b.loop(active(carry.initial, ctx.mask), carry.initial, step))

    def masked_step(values: list[ir.Value]) -> tuple[list[ir.Value], ir.Value]:
        *values, mask = values
        ctx.counts.trip(mask)
        old = carry.arrays(values)
        new = ctx.lower_inner(1, [*body_consts, *old], mask)
        values = carry.advance(old, new, mask, ctx.used)
        mask = active(values, mask)
        return [*values, mask], b.any(mask)

    ctx.counts.enter(ctx.mask)
    start = active(carry.initial, ctx.mask)
    final = b.loop(b.any(start), [*carry.initial, start], masked_step)
    return carry.arrays(final[:-1])


@register("scan", keys=True)
def _scan_rule(ctx: Context, *args: Array, length: int, reverse: bool, **params: Any) -> list[Array]:
    b = ctx.b
    (body,) = ctx.inner
    num_consts, num_carry = scan_counts(params)
    first_x = num_consts + num_carry
    consts = _outside(ctx, args[:num_consts])
    unroll = _unrolls(length, body.jaxpr)
    xs = [borrow(x) if unroll else borrow(b.stored(x)) for x in args[first_x:]]
    initial = args[num_consts:first_x]
    dying = [num_consts + i in ctx.dying for i in range(num_carry)]
    varying = body.of(body.jaxpr.invars[num_consts:first_x])
    carry = Carry(ctx, initial, varying, dying, [*consts, *xs],
                  [i and not unroll for i in indexed_carries(body.jaxpr, num_consts, num_carry)])
    ys = [b.allocate((length, *_physical(v.aval)), _word_dtype(v.aval), varies)
          for v, varies in zip(body.jaxpr.outvars[num_carry:], body.varying_out[num_carry:], strict=True)]

    def step(i: Any, values: list[ir.Value]) -> list[ir.Value]:
        ctx.counts.trip(ctx.mask)
        where = b.isub(length - 1, i) if reverse else i
        old = carry.arrays(values)
        items = [b.view(x, x.shape[1:], lambda *k, x=x: (where, *k)) for x in xs]
        new = ctx.lower_inner(0, [*consts, *old, *items], ctx.mask)
        for y, item in zip(ys, new[num_carry:], strict=True):
            b.for_each(item.shape, lambda *k, y=y, item=item: y.put((where, *k), item.at(*k)))
        return carry.advance(old, new[:num_carry], None, ctx.used)

    ctx.counts.enter(ctx.mask)
    if unroll:
        values = carry.initial
        for i in range(length):
            values = step(i, values)
    else:
        values = b.count(length, carry.initial, step)
    return [*carry.arrays(values), *(b.unrolled(y) if y.small else y for y in ys)]


#: A scan of at most this many equations in all its trips is emitted without a loop.
_SCAN_UNROLL = 128
#: And of at most this many where those inside its equations count too: scans in scans would multiply.
_SCAN_UNROLL_INNER = 1024


def _unrolls(length: int, body: Any) -> bool:
    return (length * max(1, len(body.eqns)) <= _SCAN_UNROLL
            and length * sum(map(_emitted, body.eqns)) <= _SCAN_UNROLL_INNER)


def _emitted(eqn: Any) -> int:
    """Equations that are emitted for one, those inside it included."""
    bodies = inner_jaxprs(eqn)
    inner = sum(_emitted(e) for body in bodies for e in body.eqns)
    unrolled = eqn.primitive.name == "scan" and _unrolls(eqn.params["length"], bodies[0])
    return 1 + inner * (eqn.params["length"] if unrolled else 1)


def _physical(aval: Any) -> tuple[int, ...]:
    return (*aval.shape, *words_shape(aval)) if is_key(aval) else tuple(aval.shape)


def _word_dtype(aval: Any) -> Any:
    return "uint32" if is_key(aval) else aval.dtype


@register("cond", keys=True)
def _cond_rule(ctx: Context, index: Array, *args: Array, branches: Any, **_: Any) -> list[Array]:
    b = ctx.b
    operands = _outside(ctx, args)
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
        if (isinstance(x, Memory) and not x.small and x.varying == varies and ctx.may_overwrite(position + 1, x)
                and not any(x.buffer in o.reads for o in others)):
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
        self.shapes = [(_physical(a), _word_dtype(a)) for a in ctx.avals_out]
        self.memory: list[Memory | None] = []
        for i, ((shape, dtype), v) in enumerate(zip(self.shapes, varying, strict=True)):
            size = math.prod(shape)
            self.memory.append(None if size <= UNROLL else homes.get(i) or self.b.allocate(shape, dtype, v))

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
