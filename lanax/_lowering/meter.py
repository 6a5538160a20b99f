"""Counters of what a kernel's loops and branches do, for a profile. A kernel without a meter has none of this code."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from llvmlite import ir

from lanax._jax import JaxprEqn, source_line
from lanax._llvm import types as t

if TYPE_CHECKING:
    from lanax._lowering.emitter import Emitter

#: Of each run of the kernel: the example behind its last one, its start and end in ns, and which thread ran it.
HEADER = ("end", "start", "stop", "thread")
#: Of a loop: how often it was entered, by how many lanes; its trips, of how many lanes; the most trips of one entry,
#: and those of the present one.
LOOP = ("entries", "entered", "trips", "active", "longest", "present")
#: Of a branch: how often it was met, by how many lanes; for each side, how often it ran, for how many lanes.
BRANCH = ("entries", "entered")


@dataclasses.dataclass(frozen=True)
class Site:
    """A loop or a branch of a kernel.

    Attributes:
      kind: `while`, `scan` or `cond`.
      source: the user's line.
      depth: how many loops and branches are around it.
      sides: of a branch, how many; 0 for a loop.
      first: its first counter.
    """

    kind: str
    source: str
    depth: int
    sides: int
    first: int

    @property
    def columns(self) -> int:
        """How many counters it has."""
        return len(BRANCH) + 2 * self.sides if self.sides else len(LOOP)


@dataclasses.dataclass(frozen=True)
class Block:
    """What one run of a basic block computes, and the counter of its runs.

    Attributes:
      flops: floating-point operations in all lanes, idle ones too; a fused multiply-add is two.
      bits: width of the operands of its floating-point instructions, all together; divisions aside.
      divided_bits: the same of its divisions and square roots.
      column: its counter.
    """

    flops: int
    bits: int
    divided_bits: int
    column: int


class Meter:
    """Lays out the counters of a kernel while it is built, and emits what counts."""

    def __init__(self) -> None:
        self.sites: list[Site] = []
        self.blocks: list[Block] = []
        #: The site of each equation, by the identity of the equation.
        self.by_equation: dict[int, Site] = {}
        #: How many loops and branches are around what is being lowered.
        self.depth = 0
        #: Where the counters of this run of the kernel are: set while a function is being built.
        self.row: ir.Value | None = None

    @property
    def columns(self) -> int:
        """Counters of one run of the kernel, the header included."""
        return len(HEADER) + sum(site.columns for site in self.sites) + len(self.blocks)

    def site(self, eqn: JaxprEqn) -> Site:
        """The site of a loop or a branch, which may be lowered more than once."""
        if id(eqn) not in self.by_equation:
            sides = len(eqn.params.get("branches", ()))
            site = Site(eqn.primitive.name, source_line(eqn), self.depth, sides, self.columns)
            self.sites.append(site)
            self.by_equation[id(eqn)] = site
        return self.by_equation[id(eqn)]

    def count_blocks(self, b: Emitter, function: ir.Function) -> None:
        """Count the runs of each block of a finished function that computes something."""
        live = _live(function)
        for block in list(function.blocks):
            found = [cost for i in block.instructions if id(i) in live and (cost := _cost(i))]
            if found:
                flops, bits, divided = (sum(column) for column in zip(*found, strict=True))
                self.blocks.append(Block(flops, bits, divided, self.columns))
                b.ir.position_before(block.terminator)
                slot = self.slot(b, self.blocks[-1].column)
                b.ir.store(b.add(b.ir.load(slot, typ=t.I64), 1), slot)

    def open(self, b: Emitter, rows: ir.Value, number: ir.Value, end: ir.Value, thread: ir.Value) -> ir.Value:
        """At the entry of a kernel whose body has been built: the row of this run, cleared, with its header."""
        self.row = row = b.ir.gep(rows, [b.mul(number, self.columns)], source_etype=t.I64)
        for column in range(self.columns):
            b.ir.store(b.i64(0), self.slot(b, column))
        b.ir.store(end, self.slot(b, HEADER.index("end")))
        b.ir.store(b.ir.ptrtoint(thread, t.I64), self.slot(b, HEADER.index("thread")))
        b.ir.store(_now(b), self.slot(b, HEADER.index("start")))
        return row

    def close(self, b: Emitter) -> None:
        """At the end of a kernel."""
        b.ir.store(_now(b), self.slot(b, HEADER.index("stop")))

    def slot(self, b: Emitter, column: int) -> ir.Value:
        """The address of a counter."""
        assert self.row is not None
        return b.ir.gep(self.row, [b.i64(column)], source_etype=t.I64)


#: `CLOCK_MONOTONIC` of this system's `clock_gettime`.
_MONOTONIC = 6 if sys.platform == "darwin" else 1


def _now(b: Emitter) -> ir.Value:
    """Nanoseconds of the system's monotonic clock, which `time.monotonic_ns` reads too."""
    function = b.ir.module.globals.get("clock_gettime")
    if function is None:
        function = ir.Function(b.ir.module, ir.FunctionType(t.I32, [t.I32, t.PTR]), "clock_gettime")
    time = b.ir.alloca(ir.ArrayType(t.I64, 2))
    b.ir.call(function, [ir.Constant(t.I32, _MONOTONIC), time])
    seconds, rest = (b.ir.load(b.ir.gep(time, [b.i64(i)], source_etype=t.I64), typ=t.I64) for i in range(2))
    return b.add(b.mul(seconds, 1_000_000_000), rest)


def _live(function: ir.Function) -> set[int]:
    """The instructions, by identity, that something depends on: rules leave products behind that are fused later."""
    waiting = [i for block in function.blocks for i in block.instructions
               if isinstance(i.type, ir.VoidType) or (i.opname in ("load", "call") and not _cost(i))]
    live: set[int] = set()
    while waiting:
        instruction = waiting.pop()
        if id(instruction) not in live:
            live.add(id(instruction))
            incoming = instruction.incomings if isinstance(instruction, ir.PhiInstr) else ()
            waiting += [v for v in (*instruction.operands, *(v for v, _ in incoming)) if isinstance(v, ir.Instruction)]
    return live


#: Floating-point operations of one element.
_FLOPS = {"fadd": 1, "fsub": 1, "fmul": 1, "fdiv": 1, "llvm.fma": 2, "llvm.sqrt": 1}


def _cost(instruction: ir.Instruction) -> tuple[int, int, int] | None:
    """Flops, bits and divided bits of an instruction; None for what is no floating-point arithmetic."""
    name = instruction.callee.name if isinstance(instruction, ir.CallInstr) else instruction.opname
    name = ".".join(name.split(".")[:2])
    if name not in _FLOPS:
        return None
    count = instruction.type.count if isinstance(instruction.type, ir.VectorType) else 1
    bits = count * t.bit_width(instruction.type)
    divides = name in ("fdiv", "llvm.sqrt")
    return _FLOPS[name] * count, bits * (not divides), bits * divides


class Counts:
    """Counts one equation's trips and sides; this one counts nothing."""

    def enter(self, mask: ir.Value | None) -> None:
        """The lanes of `mask` (None: all) meet the loop or branch."""

    def trip(self, mask: ir.Value | None) -> None:
        """A trip of the loop, of these lanes."""

    def side(self, which: int, mask: ir.Value | None) -> None:
        """One side of the branch runs for these lanes."""


#: For kernels without a meter.
SILENT = Counts()


class Metered(Counts):
    """Counts in memory, by the instructions that it emits at the emitter's position."""

    def __init__(self, b: Emitter, meter: Meter, site: Site):
        self.b, self.meter, self.site = b, meter, site

    def enter(self, mask: ir.Value | None) -> None:
        self._add("entries", 1)
        self._add("entered", self.b.active(mask))
        if not self.site.sides:
            self.b.ir.store(self.b.i64(0), self._slot("present"))

    def trip(self, mask: ir.Value | None) -> None:
        b = self.b
        self._add("trips", 1)
        self._add("active", b.active(mask))
        present = self._add("present", 1)
        longest = b.ir.load(self._slot("longest"), typ=t.I64)
        b.ir.store(b.select(b.gt(present, longest), present, longest), self._slot("longest"))

    def side(self, which: int, mask: ir.Value | None) -> None:
        at = len(BRANCH) + 2 * which
        self._add(at, 1)
        self._add(at + 1, self.b.active(mask))

    def _slot(self, name: str | int) -> ir.Value:
        names: tuple[str, ...] = BRANCH if self.site.sides else LOOP
        return self.meter.slot(self.b, self.site.first + (name if isinstance(name, int) else names.index(name)))

    def _add(self, name: str | int, amount: int | ir.Value) -> ir.Value:
        slot = self._slot(name)
        total = self.b.add(self.b.ir.load(slot, typ=t.I64), amount)
        self.b.ir.store(total, slot)
        return total


@contextmanager
def inside(b: Emitter) -> Iterator[None]:
    """While an equation's inner jaxprs are lowered: the sites that are met are one level deeper."""
    if b.meter is None:
        yield
        return
    b.meter.depth += 1
    yield
    b.meter.depth -= 1


def counts(b: Any, eqn: JaxprEqn) -> Counts:
    """What counts an equation that is being lowered."""
    if b.meter is None or b.meter.row is None or eqn.primitive.name not in ("while", "scan", "cond"):
        return SILENT
    return Metered(b, b.meter, b.meter.site(eqn))
