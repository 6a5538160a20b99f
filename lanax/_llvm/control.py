"""Branches and loops. Values that cross a block edge do so through phis; a varying bool crosses as a full-width
integer where the target has no mask registers (measured: twice as fast as `<n x i1>` on AVX2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from lanax._llvm import types as t
from lanax._llvm.lanes import Lanes

Values = list[ir.Value]


class Control(Lanes):
    """`Lanes` with masks, branches and loops. `mask_bits` is the width of a lane of a mask, None for real masks.

    Where `keeps_loops` is set, LLVM is told not to unroll the loops that are emitted.
    """

    keeps_loops = False

    def __init__(self, builder: ir.IRBuilder, lanes: int, mask_bits: int | None):
        super().__init__(builder, lanes)
        self.mask_bits = mask_bits

    # -- masks ---------------------------------------------------------------------------------------------------
    def to_mask(self, condition: ir.Value) -> ir.Value:
        """i1 lanes as a mask: the form in which a bool crosses a block edge."""
        if self.mask_bits is None or not isinstance(condition.type, ir.VectorType):
            return condition
        return self.ir.sext(condition, ir.VectorType(ir.IntType(self.mask_bits), condition.type.count))

    def mask_and(self, condition: ir.Value, mask: ir.Value | None) -> ir.Value:
        """The mask of the lanes of `mask` (all where it is None) in which `condition` (i1 lanes) holds."""
        if mask is None:
            return self.to_mask(condition)
        return self.select(condition, mask, self.like(mask, 0))

    def of_mask(self, mask: ir.Value) -> ir.Value:
        """A mask as i1 lanes."""
        if t.bit_width(mask.type) == 1:
            return mask
        return self.ir.icmp_signed("<", mask, self.like(mask, 0))

    def any(self, mask: ir.Value) -> ir.Value:
        """Whether any lane of a mask is on, as a scalar i1."""
        if not isinstance(mask.type, ir.VectorType):
            return mask
        bits = t.bit_width(mask.type)
        if bits == 1:  # mask registers, or bools that are not a mask yet
            word = self.ir.bitcast(mask, ir.IntType(mask.type.count))
        else:  # one `vptest`; no packing
            word = self.intrinsic("vector.reduce.or", ir.IntType(bits), mask, overload=mask.type)
        return self.ir.icmp_unsigned("!=", word, ir.Constant(word.type, 0))

    def word(self, mask: ir.Value) -> ir.Value:
        """A mask as the bits of an i64, lowest lane first."""
        bits = self.of_mask(mask)
        word = self.ir.bitcast(bits, ir.IntType(self.lanes)) if self.lanes > 1 else bits
        return self.ir.zext(word, t.I64) if self.lanes < 64 else word

    def active(self, mask: ir.Value | None) -> ir.Value:
        """How many lanes of a mask are on, as i64; None is a mask of all, and a scalar holds for all."""
        every = ir.Constant(t.I64, self.lanes)
        if mask is None:
            return every
        if self.lanes > 1 and not isinstance(mask.type, ir.VectorType):
            return self.select(self.of_mask(mask), every, self.like(every, 0))
        return self.intrinsic("ctpop", t.I64, self.word(mask))

    def _pack(self, values: Values) -> tuple[Values, list[bool]]:
        is_bool = [isinstance(v.type, ir.VectorType) and t.bit_width(v.type) == 1 for v in values]
        return [self.to_mask(v) if b else v for v, b in zip(values, is_bool, strict=True)], is_bool

    def _unpack(self, values: Values, is_bool: Sequence[bool]) -> Values:
        return [self.of_mask(v) if b else v for v, b in zip(values, is_bool, strict=True)]

    # -- blocks --------------------------------------------------------------------------------------------------
    def phis(self, incoming: Sequence[tuple[ir.Block, Values]]) -> Values:
        """One phi for each value at the head of the current block; none where all sides give the same."""
        out: Values = []
        for column in zip(*(values for _, values in incoming), strict=True):
            if all(v is column[0] or (isinstance(v, ir.Constant) and v == column[0]) for v in column):
                out.append(column[0])
                continue
            phi = self.ir.phi(column[0].type)
            for (block, _), value in zip(incoming, column, strict=True):
                phi.add_incoming(value, block)
            out.append(phi)
        return out

    def branch(self, condition: ir.Value, then: Callable[[], Values], otherwise: Callable[[], Values]) -> Values:
        """The values of `then` where the scalar `condition` holds, else of `otherwise`; only one of them runs."""
        yes, no = (self.ir.append_basic_block(name) for name in ("then", "else"))
        self.ir.cbranch(condition, yes, no)
        return self._sides((yes, no), (then, otherwise))

    def switch(self, index: ir.Value, sides: Sequence[Callable[[], Values]]) -> Values:
        """The values of `sides[index]`; the last side also serves every index that has none."""
        blocks = [self.ir.append_basic_block(f"case{i}") for i in range(len(sides))]
        table = self.ir.switch(index, blocks[-1])
        for i, block in enumerate(blocks[:-1]):
            table.add_case(ir.Constant(index.type, i), block)
        return self._sides(blocks, sides)

    def _sides(self, blocks: Sequence[ir.Block], sides: Sequence[Callable[[], Values]]) -> Values:
        """Fill each block with its side; the values of the one that runs, in a block where all meet."""
        after = self.ir.append_basic_block("join")
        incoming, is_bool = [], []
        for block, side in zip(blocks, sides, strict=True):
            self.ir.position_at_end(block)
            values, is_bool = self._pack(side())
            incoming.append((self.ir.block, values))
            self.ir.branch(after)
        self.ir.position_at_end(after)
        return self._unpack(self.phis(incoming), is_bool)

    def loop(self, guard: ir.Value, initial: Values, body: Callable[[Values], tuple[Values, ir.Value]]) -> Values:
        """A rotated loop: where `guard` holds, run `body`, and again while the scalar that it returns holds.

        Gives the values of the last run, or `initial` where it never ran.
        """
        inside, after = self.ir.append_basic_block("loop"), self.ir.append_basic_block("done")
        packed, is_bool = self._pack(initial)
        before = self.ir.block
        self.ir.cbranch(guard, inside, after)
        self.ir.position_at_end(inside)
        phis = [self.ir.phi(v.type) for v in packed]
        values, again = body(self._unpack(phis, is_bool))
        values, _ = self._pack(values)
        latch = self.ir.block
        jump = self.ir.cbranch(again, inside, after)
        if self.keeps_loops:
            jump.set_metadata("llvm.loop", _loop_that_stays(self.ir.module))
        for phi, first, last in zip(phis, packed, values, strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(last, latch)
        self.ir.position_at_end(after)
        return self._unpack(self.phis([(before, packed), (latch, values)]), is_bool)

    def count(self, trips: int | ir.Value, initial: Values, body: Callable[[ir.Value, Values], Values]) -> Values:
        """`body(i, values)` for i = 0, 1, ..., trips - 1 (i64)."""
        if isinstance(trips, int):
            if trips == 0:
                return initial
            trips = ir.Constant(t.I64, trips)
            guard: ir.Value = ir.Constant(t.I1, 1)
        else:
            guard = self.ir.icmp_signed(">", trips, ir.Constant(t.I64, 0))

        def step(values: Values) -> tuple[Values, ir.Value]:
            i, *rest = values
            new = body(i, rest)
            following = self.ir.add(i, ir.Constant(t.I64, 1))
            return [following, *new], self.ir.icmp_signed("<", following, trips)

        return self.loop(guard, [ir.Constant(t.I64, 0), *initial], step)[1:]


def _loop_that_stays(module: ir.Module) -> ir.MDValue:
    """What a loop's jump back is marked with: a node that names itself, since each loop has its own."""
    stay = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")])
    node = ir.MDValue(module, [stay], name=str(len(module.metadata)))
    node.operands = (node, stay)
    return node
