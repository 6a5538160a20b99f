"""The body of a kernel whose lanes take the next example when they have left the loop."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
from llvmlite import ir

from lanax._jax import Literal
from lanax._llvm import types as t
from lanax._lowering.arrays import Array
from lanax._lowering.carry import Carry, borrow
from lanax._lowering.context import Context
from lanax._lowering.emitter import Emitter
from lanax._lowering.jaxpr import lower_jaxpr
from lanax._lowering.meter import Counts, counts, inside
from lanax._lowering.operands import Operand, Slots, input_array, store_output, strided
from lanax._planning.refill import Loop
from lanax._planning.uniformity import Uniformity

Values = list[ir.Value]

#: In the place of the first example's number where the lanes' examples do not follow each other.
_APART = -1


#: Registers for each value in a part of the lanes, of a loop that is run in parts. (Measured for an adaptive solver of
#: four registers: in halves 9 % faster with AVX-512, 7 % with AVX2, in quarters as slow as whole; for one of two
#: registers: in halves 10 % slower.)
_VECTORS_OF_PART = 2
#: Equations of a body that is worth a second copy, for the last of few examples. (Of 256, one of which takes 200 times
#: as long: 1.2 times as fast so. In a short loop over many examples, looking for that moment costs up to a fifth.)
_SHORT = 128


class RefilledLoop:
    """Emits the examples [first, last) of one program around its loop.

    A trip is emitted for so many `parts` of the lanes, one after another: while one waits for its divisions and roots,
    the processor is at work on the next.

    Lanes hold examples by number, and their inputs in slots. The inner loop runs until the lanes that have left it have
    waited `wait` trips each, on average, which is what taking other examples costs: so at most twice the cost of the
    best moment is paid. Then they store their results and take the next examples. All lanes run the prologue again
    after that, which gives the others what they had. Where all lanes are free at once, they take a whole step, whose
    examples lie side by side, and store it as one where they leave together: even work costs what it does without.
    """

    def __init__(self, b: Emitter, loop: Loop, inputs: Sequence[Operand], outputs: Sequence[Operand],
                 buffers: Sequence[ir.Value], size: ir.Value, last: ir.Value, wait: int, vectors: int, few: bool):
        self.b, self.loop, self.size, self.last, self.wait = b, loop, size, last, wait
        self.parts = max(1, vectors // _VECTORS_OF_PART)
        self.narrow = vectors if few and len(loop.body.jaxpr.eqns) <= _SHORT else 1
        self.scalar = b.one_lane()
        self.inputs = list(zip(inputs, buffers, strict=False))
        self.outputs = [(op, pointer, Slots(b, op)) for op, pointer in zip(outputs, buffers[len(inputs):], strict=True)]
        self.slots = {i: Slots(b, op) for i, op in enumerate(inputs) if op.axis is not None}
        self.shared = {i: input_array(b, op, pointer, size, 0) for i, (op, pointer) in enumerate(self.inputs)
                       if op.axis is None}
        self.numbers = Slots(b, Operand((), np.dtype(np.int64), 0))
        self.counts = counts(b, loop.eqn)
        self.every_lane = ir.Constant(t.I64, (1 << b.lanes) - 1 if b.lanes < 64 else -1)

    def emit(self, first: ir.Value) -> None:
        """Run the examples from `first` on."""
        b = self.b
        kinds = [v.type for v in _InLanes(b, self.loop, self._operands()).carry.initial]
        blank = [b.const(kind, 0) for kind in kinds]
        off = b.to_mask(b.const(ir.VectorType(t.I1, b.lanes) if b.lanes > 1 else t.I1, 0))
        b.loop(b.lt(first, self.last), [*blank, off, self.every_lane, first, b.i64(_APART)], self._turn)

    def _turn(self, values: Values) -> tuple[Values, ir.Value]:
        """Fill the free lanes, run until others have waited long enough, store what has finished.

        The last of the values is the number of the lanes' first example, where theirs follow each other.
        """
        b = self.b
        *state, active, free, following, first = values
        fresh, following, first = self._fill(free, following, first)
        operands = self._operands()
        whole = _InLanes(b, self.loop, operands)
        state = [b.select(b.of_mask(fresh), new, old) for new, old in zip(whole.carry.initial, state, strict=True)]
        taken = b.or_(active, fresh)
        # What a lane that has left must have waited; where no example is left, the others are to finish.
        others_wait = b.lt(following, self.last)
        due = b.select(others_wait, b.i64(self.wait), b.i64(1 << 40))
        # Lanes are counted after several trips, since that costs as much as a short one.
        several = max(1, self.wait // 3)
        parts = whole.cut(self.parts)

        def trip(inner: Values) -> tuple[Values, ir.Value]:
            *inner, trips = inner
            self.counts.trip(b.joined(self._masks(inner)))
            inner = [x for part, values in zip(parts, self._by_part(inner), strict=True) for x in part.trip(values)]
            trips = b.add(trips, 1)
            active = parts[0].b.any(functools.reduce(b.or_, self._masks(inner)))
            return [*inner, trips], b.and_(active, b.lt(trips, several))

        def step(inner: Values) -> tuple[Values, ir.Value]:
            *inner, waited, left_before = inner
            first_trip = [*(x for values in self._cut(inner) for x in values), b.i64(0)]
            # Parts are in a block of their own, since LLVM orders the instructions of a block: 10 % faster so.
            *inner, trips = (trip(first_trip)[0] if several == self.parts == 1 else
                             b.loop(ir.Constant(t.I1, 1), first_trip, trip))
            inner = self._joined(inner)
            on = b.active(inner[-1])
            left = b.sub(b.i64(b.lanes), on)
            waited = b.add(waited, b.lshr(b.mul(trips, b.add(left, left_before)), 1) if several > 1 else left)
            goes_on = b.and_(b.ne(on, 0), b.le(waited, b.mul(left, due)))
            if self.narrow > 1:
                goes_on = b.and_(goes_on, b.or_(others_wait, self._are_apart(inner[-1])))
            return [*inner, waited, left], goes_on

        self.counts.enter(fresh)
        start = whole.begun([*state, taken])
        *inner, _, _ = b.loop(b.any(start[-1]), [*start, b.i64(0), b.i64(0)], step)
        *state, active = self._finish(whole, inner, b.eq(others_wait, 0)) if self.narrow > 1 else inner
        free = b.word(b.select(b.of_mask(active), b.like(taken, 0), taken))
        self._store(whole.carry.arrays(state), free, first)
        busy = b.ne(b.word(active), 0)
        return [*state, active, free, following, first], b.or_(busy, b.lt(following, self.last))

    # -- parts of the lanes --------------------------------------------------------------------------------------
    def _cut(self, values: Values) -> list[Values]:
        """The values of each part."""
        return [list(column) for column in zip(*(self.b.cut(v, self.parts) for v in values), strict=True)]

    def _by_part(self, values: Values) -> list[Values]:
        """The values of all parts, which lie part after part, as those of each part."""
        count = len(values) // self.parts
        return [values[i: i + count] for i in range(0, len(values), count)]

    def _masks(self, values: Values) -> Values:
        """The mask of each part, by the values of all parts."""
        return [mask for *_, mask in self._by_part(values)]

    def _joined(self, values: Values) -> Values:
        """The values of all parts as those of all lanes."""
        return [self.b.joined(column) for column in zip(*self._by_part(values), strict=True)]

    # -- the last examples ---------------------------------------------------------------------------------------
    def _are_apart(self, mask: ir.Value) -> ir.Value:
        """Whether the active lanes lie in more than one register."""
        b = self.b
        word, no = b.word(mask), ir.Constant(t.I1, 0)
        first, behind = b.intrinsic("cttz", t.I64, word, no), b.intrinsic("ctlz", t.I64, word, no)
        each = b.lanes // self.narrow
        return b.ne(b.ir.udiv(first, b.i64(each)), b.ir.udiv(b.sub(63, behind), b.i64(each)))

    def _finish(self, whole: _InLanes, values: Values, where: ir.Value) -> Values:
        """Carries and mask when all lanes have left, if so told: register by register, since one alone is faster."""
        b = self.b
        found = []
        for part, *column in zip(whole.cut(self.narrow), *(b.cut(v, self.narrow) for v in values), strict=True):
            trips = counts(part.b, self.loop.eqn)

            def trip(inner: Values, part: _InLanes = part, trips: Counts = trips) -> tuple[Values, ir.Value]:
                trips.trip(inner[-1])
                inner = part.trip(inner)
                return inner, part.b.any(inner[-1])

            found.append(b.loop(b.and_(where, part.b.any(column[-1])), column, trip))
        return [b.joined(column) for column in zip(*found, strict=True)]

    # -- examples in and out -------------------------------------------------------------------------------------
    def _each_lane(self, word: ir.Value, initial: Values, body: Callable[[ir.Value, Values], Values]) -> Values:
        """`body(lane, values)` for each bit of `word`, lowest first."""
        b = self.b

        def step(values: Values) -> tuple[Values, ir.Value]:
            rest, *values = values
            lane = b.intrinsic("cttz", t.I64, rest, ir.Constant(t.I1, 0))
            rest = b.and_(rest, b.sub(rest, 1))
            return [rest, *body(lane, values)], b.ne(rest, 0)

        return b.loop(b.ne(word, 0), [word, *initial], step)[1:]

    def _fill(self, free: ir.Value, following: ir.Value, first: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        """The next examples, in order, into the free lanes. Gives the mask of the lanes that got one, the number of the
        next example, and of the first one where a whole step was taken."""
        b = self.b
        end = b.add(following, b.lanes)
        whole = b.and_(b.eq(free, self.every_lane), b.le(end, self.last))

        def step() -> Values:
            self.numbers.all().put((), b.add(b.lane_ids(), following))
            for i, slots in self.slots.items():
                op, pointer = self.inputs[i]
                b.copy(input_array(b, op, pointer, self.size, following), slots.all())
            return [self.every_lane, end, following]

        def some() -> Values:
            got, after = self._fill_some(free, following)
            return [got, after, b.select(b.eq(got, 0), first, b.i64(_APART))]

        got, following, first = b.branch(whole, step, some)
        return self._mask(got), following, first

    def _fill_some(self, free: ir.Value, following: ir.Value) -> Values:
        """The next examples, one by one. Gives the bits of the lanes that got one, and the number of the next."""
        b = self.b

        def take(lane: ir.Value, values: Values) -> Values:
            got, number = values
            left = b.lt(number, self.last)
            with b.ir.if_then(left):
                self.numbers.one(self.scalar, lane).put((), number)
                for i, slots in self.slots.items():
                    op, pointer = self.inputs[i]
                    source, place = strided(self.scalar, op, pointer, self.size, number), slots.one(self.scalar, lane)
                    b.for_each(op.shape, lambda *k, source=source, place=place: place.put(k, source.at(*k)))
            bit = b.ir.zext(left, t.I64)
            return [b.or_(got, b.shl(bit, lane)), b.add(number, bit)]

        return self._each_lane(free, [ir.Constant(t.I64, 0), following], take)

    def _store(self, results: list[Array], finished: ir.Value, first: ir.Value) -> None:
        """The epilogue, and its results where the lanes' examples have theirs."""
        b = self.b
        outs = lower_jaxpr(b, self.loop.after.jaxpr, [*self._inputs(), *results], self.loop.after, None)
        outs = [b.settled(out) for out in outs]

        def step() -> Values:
            for (op, pointer, _), out in zip(self.outputs, outs, strict=True):
                store_output(b, op, pointer, self.size, first, out)
            return []

        def some() -> Values:
            for (_, _, slots), out in zip(self.outputs, outs, strict=True):
                b.copy(out, slots.all())
            self._store_some(finished)
            return []

        b.branch(b.and_(b.eq(finished, self.every_lane), b.ge(first, 0)), step, some)

    def _store_some(self, finished: ir.Value) -> None:
        """The results of some lanes from their slots, one by one."""
        b = self.b

        def store(lane: ir.Value, _: Values) -> Values:
            number = self.numbers.one(self.scalar, lane).at()
            for op, pointer, slots in self.outputs:
                source, place = slots.one(self.scalar, lane), strided(self.scalar, op, pointer, self.size, number)
                b.for_each(op.shape, lambda *k, source=source, place=place: place.put(k, source.at(*k)))
            return []

        self._each_lane(finished, [], store)

    # -- masks and bits ------------------------------------------------------------------------------------------
    def _mask(self, word: ir.Value) -> ir.Value:
        """The bits of an i64 as a mask."""
        b = self.b
        narrow = b.ir.trunc(word, ir.IntType(b.lanes)) if b.lanes < 64 else word
        return b.to_mask(b.ir.bitcast(narrow, ir.VectorType(t.I1, b.lanes)) if b.lanes > 1 else narrow)

    # -- the program ---------------------------------------------------------------------------------------------
    def _inputs(self) -> list[Array]:
        """The inputs of the lanes' examples."""
        return [self.shared[i] if i in self.shared else self.b.unrolled(self.slots[i].all())
                for i in range(len(self.inputs))]

    def _operands(self) -> list[Array]:
        """The loop's operands: constants, then initial carries."""
        b, before = self.b, self.loop.before
        found = dict(zip(self.loop.variables, lower_jaxpr(b, before.jaxpr, self._inputs(), before, None), strict=True))
        return [borrow(b.settled(b.full((), v.val, v.aval.dtype) if isinstance(v, Literal) else found[v]))
                for v in self.loop.eqn.invars]


class _InLanes:
    """The loop as an emitter's lanes run it: its operands there, and what it carries."""

    def __init__(self, b: Emitter, loop: Loop, operands: Sequence[Array]):
        self.b, self.loop = b, loop
        split = len(loop.eqn.invars) - len(loop.eqn.outvars)
        cond_consts = loop.eqn.params["cond_nconsts"]
        self.cond_operands, self.body_operands = operands[:cond_consts], operands[cond_consts:split]
        self.operands = operands
        ctx = Context(b, (), (), None, frozenset(), (), loop.used, (loop.cond, loop.body), lambda *_: [])
        varying = loop.body.of(loop.body.jaxpr.invars[loop.eqn.params["body_nconsts"]:])
        self.carry = Carry(ctx, operands[split:], varying, [False] * len(varying), operands[:split],
                           [False] * len(varying))

    def cut(self, parts: int) -> list[_InLanes]:
        """The same in equal parts of the lanes."""
        if parts == 1:
            return [self]
        cut = [[self.b.cut(v, parts) for v in self.b.unrolled(x).values.flat] for x in self.operands]
        found = []
        for i in range(parts):
            part = self.b.some_lanes(self.b.lanes // parts)
            part.meter = self.b.meter
            found.append(_Part(part, self.loop, [part.elements([v[i] for v in values], x.shape, x.dtype)
                                                 for x, values in zip(self.operands, cut, strict=True)], self.b))
        return found

    def begun(self, values: Values) -> Values:
        """Carries and mask before the first trip, given both before the loop."""
        *state, mask = values
        return [*state, self._goes_on(state, mask)]

    def trip(self, values: Values) -> Values:
        """Carries and mask after a trip, given both before it."""
        *state, mask = values
        old = self.carry.arrays(state)
        state = self.carry.advance(old, self._lower(self.loop.body, [*self.body_operands, *old], mask), mask,
                                   self.loop.used)
        return [*state, self._goes_on(state, mask)]

    def _goes_on(self, state: Values, mask: ir.Value) -> ir.Value:
        (on,) = self._lower(self.loop.cond, [*self.cond_operands, *self.carry.arrays(state)], mask)
        return self.b.mask_and(self.b.splat(on.at()), mask)

    def _lower(self, found: Uniformity, args: Sequence[Array], mask: ir.Value) -> list[Array]:
        with inside(self.b):
            return [self.b.settled(x) for x in lower_jaxpr(self.b, found.jaxpr, args, found, mask)]


class _Part(_InLanes):
    """A part of the lanes, which lays out scratch behind that of all of them."""

    def __init__(self, b: Emitter, loop: Loop, operands: Sequence[Array], whole: Emitter):
        super().__init__(b, loop, operands)
        self.whole = whole

    def _lower(self, found: Uniformity, args: Sequence[Array], mask: ir.Value) -> list[Array]:
        b, whole = self.b, self.whole
        b.scratch_bytes, b.unrolled_products = whole.scratch_bytes, whole.unrolled_products
        outs = super()._lower(found, args, mask)
        whole.scratch_bytes, whole.unrolled_products = b.scratch_bytes, b.unrolled_products
        return outs
