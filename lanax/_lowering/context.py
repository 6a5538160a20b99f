"""What a lowering rule is told about its equation, beside its operands."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from lanax._lowering.arrays import Array, Memory
from lanax._lowering.emitter import Emitter
from lanax._lowering.meter import SILENT, Counts

#: Lowers an inner jaxpr: (which inner jaxpr of the equation, operands, mask) -> results, settled.
LowerInner = Callable[[int, Sequence[Array], "ir.Value | None"], list[Array]]


@dataclasses.dataclass(frozen=True)
class Context:
    """One equation as its rule sees it.

    Attributes:
      b: emits code.
      avals_in, avals_out: the equation's types (of one example).
      mask: lanes for which the equation counts; None where all do. Needed only by what writes memory in place, has
        loops of its own, or skips.
      dying: positions of operands that nothing reads after this equation.
      live: what else is still needed, so that an update in place cannot change it.
      used: for each result, whether anything reads it.
      inner: what the uniformity analysis found for the equation's inner jaxprs.
      lower_inner: lowers one of them.
      counts: is told of trips and sides, where the kernel is profiled.
    """

    b: Emitter
    avals_in: tuple[Any, ...]
    avals_out: tuple[Any, ...]
    mask: ir.Value | None
    dying: frozenset[int]
    live: tuple[Array, ...]
    used: tuple[bool, ...]
    inner: tuple[Any, ...]
    lower_inner: LowerInner
    counts: Counts = SILENT

    def may_overwrite(self, position: int, value: Array) -> bool:
        """Whether operand `position` is memory that an update may change in place."""
        return (isinstance(value, Memory) and value.owned and position in self.dying
                and not any(value.buffer in other.reads for other in self.live))


Rule = Callable[..., "Array | Sequence[Array]"]
