"""Square blocks of a matrix transposed in registers: each row is a vector, and so is each column."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from lanax._llvm import types as t
from lanax._llvm.lanes import Lanes

#: x86 moves elements within this many bits by one instruction, and such segments by another.
_SEGMENT = 128


def block_size(count: int, bits: int) -> int:
    """The width of the largest blocks into which rows of `count` elements can be cut; 0 where they are too short."""
    widest = 256 // bits
    return next((size for size in (widest, widest // 2) if 4 <= size <= count), 0)


def transpose(b: Lanes, rows: Sequence[ir.Value]) -> list[ir.Value]:
    """The columns of a block of 4 or 8 rows: first within segments of 128 bits, then across them.

    8 rows of 8 take 24 instructions, as the usual sequence of unpack, shuffle and permute for AVX does.
    """
    segment = _SEGMENT // t.bit_width(rows[0].type)
    groups = [_within_segments(b, rows[k:k + segment], segment) for k in range(0, len(rows), segment)]
    if len(groups) == 1:
        return groups[0]
    low, high = groups
    halves = [_interleave(b, x, y, len(rows), segment) for x, y in zip(low, high, strict=True)]
    return [pair[0] for pair in halves] + [pair[1] for pair in halves]


def _within_segments(b: Lanes, rows: Sequence[ir.Value], segment: int) -> list[ir.Value]:
    """The columns of `segment` rows, those of the second segment behind those of the first one."""
    if segment == 2:
        return list(_interleave(b, rows[0], rows[1], segment, 1))
    (a, c), (d, e) = (_interleave(b, rows[k], rows[k + 1], segment, 1) for k in (0, 2))
    return [*_interleave(b, a, d, segment, 2), *_interleave(b, c, e, segment, 2)]


def _interleave(b: Lanes, x: ir.Value, y: ir.Value, segment: int, run: int) -> tuple[ir.Value, ir.Value]:
    """Runs of `run` elements of x and y in turns: from the first half of each segment, and from the second."""
    count = x.type.count

    def half(first: int) -> ir.Value:
        order = [source + start + first + k + i
                 for start in range(0, count, segment)
                 for k in range(0, segment // 2, run)
                 for source in (0, count)
                 for i in range(run)]
        return b.shuffled(x, y, order)

    return half(0), half(segment // 2)
