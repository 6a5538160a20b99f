"""What the regions of control flow read of the outside, and what loops carry from trip to trip."""

from __future__ import annotations

import math
from collections.abc import Sequence

from llvmlite import ir

from lanax._lowering.arrays import Array, Buffer, Elements, Memory
from lanax._lowering.context import Context
from lanax._lowering.windows import aside


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
            if self.b.is_small(x) and not indexed[i]:
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


#: Bytes of an array in lanes up to which loops have it gathered before they begin.
_MOST_GATHERED = 1 << 20


def gathered(ctx: Context, values: Sequence[Array], whole: Sequence[bool]) -> list[Array]:
    """Values of the region outside as a loop may read them, which reads some from end to end in each trip."""
    b = ctx.b
    found: dict[Buffer, Memory] = {}

    def together(x: Array) -> Array:
        if not isinstance(x, Memory) or x.copy_to is None or x.size * x.dtype.itemsize * b.lanes > _MOST_GATHERED:
            return x
        if x.buffer not in found:
            found[x.buffer] = b.copied(x)
        return borrow(found[x.buffer])

    return [together(x) if reads else x for x, reads in zip(outside(ctx, values), whole, strict=True)]


def outside(ctx: Context, values: Sequence[Array]) -> list[Array]:
    """Values of the region outside, settled, as a region inside may read them."""
    return [borrow(ctx.b.settled(x)) for x in values]
