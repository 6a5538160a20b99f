"""`while` and `scan` on lanes: a varying loop runs while any lane is active, uniform ones are plain loops."""

from __future__ import annotations

import itertools
import math
from typing import Any

from llvmlite import ir

from lanax._jax import scan_counts, words_type
from lanax._lowering.arrays import UNROLL, Array
from lanax._lowering.carry import Carry, borrow, gathered
from lanax._lowering.context import Context
from lanax._lowering.product import product_sizes
from lanax._lowering.registry import register
from lanax._rewrite.surgery import indexed_carries, inner_jaxprs, read_whole


@register("while", keys=True)
def _while_rule(ctx: Context, *args: Array, cond_nconsts: int, body_nconsts: int, cond_jaxpr: Any, body_jaxpr: Any,
                **_: Any) -> list[Array]:
    cond, body = ctx.inner
    split = cond_nconsts + body_nconsts
    whole = [*read_whole(cond.jaxpr)[:cond_nconsts], *read_whole(body.jaxpr)[:body_nconsts]]
    consts = gathered(ctx, args[:split], whole)
    cond_consts, body_consts = consts[:cond_nconsts], consts[cond_nconsts:]
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
    consts = gathered(ctx, args[:num_consts], read_whole(body.jaxpr)[:num_consts])
    unroll = _unrolls(length, body.jaxpr)
    xs = [borrow(x) if unroll else borrow(b.stored(x)) for x in args[first_x:]]
    initial = args[num_consts:first_x]
    dying = [num_consts + i in ctx.dying for i in range(num_carry)]
    varying = body.of(body.jaxpr.invars[num_consts:first_x])
    carry = Carry(ctx, initial, varying, dying, [*consts, *xs],
                  [i and not unroll for i in indexed_carries(body.jaxpr, num_consts, num_carry)])
    rows = [words_type(v.aval) for v in body.jaxpr.outvars[num_carry:]]
    ys = [b.allocate((length, *shape), dtype, varies)
          for (shape, dtype), varies in zip(rows, body.varying_out[num_carry:], strict=True)]

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
    return [*carry.arrays(values), *(b.unrolled(y) if b.is_small(y) else y for y in ys)]


#: A scan of at most this many equations in all its trips is emitted without a loop.
_SCAN_UNROLL = 128
#: And of at most this many where those inside its equations count too: scans in scans would multiply.
_SCAN_UNROLL_INNER = 1024
#: And of at most this many elements of results, or multiply-adds of products.
_SCAN_UNROLL_ELEMENTS = 4096


def _unrolls(length: int, body: Any) -> bool:
    return (length * max(1, len(body.eqns)) <= _SCAN_UNROLL
            and length * sum(map(_emitted, body.eqns)) <= _SCAN_UNROLL_INNER
            and length * sum(map(_elements, body.eqns)) <= _SCAN_UNROLL_ELEMENTS)


def _elements(eqn: Any) -> int:
    """Elements that are computed for an equation without a loop, roughly."""
    if eqn.primitive.name == "dot_general":
        lhs, rhs = (v.aval for v in eqn.invars)
        sizes = product_sizes(lhs, rhs, eqn.params["dimension_numbers"])
        return math.prod(itertools.chain(*sizes))
    inner = sum(_elements(e) for body in inner_jaxprs(eqn) for e in body.eqns)
    sizes = (getattr(v.aval, "size", 0) for v in eqn.outvars)
    return inner + sum(size for size in sizes if size <= UNROLL)


def _emitted(eqn: Any) -> int:
    """Equations that are emitted for one, those inside it included."""
    bodies = inner_jaxprs(eqn)
    inner = sum(_emitted(e) for body in bodies for e in body.eqns)
    unrolled = eqn.primitive.name == "scan" and _unrolls(eqn.params["length"], bodies[0])
    return 1 + inner * (eqn.params["length"] if unrolled else 1)
