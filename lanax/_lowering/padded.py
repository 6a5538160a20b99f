"""Arrays with holes between their elements and a border around, as pooling and convolution read them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from lanax._llvm.memory import Index
from lanax._lowering.arrays import Array
from lanax._lowering.emitter import Emitter
from lanax._lowering.fold import each
from lanax._lowering.windows import repeatable


@dataclasses.dataclass(frozen=True)
class Padded:
    """Where the elements of an array lie in the padded one.

    Attributes:
      shape: of the array.
      padding: by axis, positions added below and above; negative ones are cut off.
      dilation: by axis, the distance between neighbours.
    """

    shape: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Shape of the padded array."""
        return tuple(low + (0 if n == 0 else 1 + step * (n - 1)) + high
                     for n, (low, high), step in zip(self.shape, self.padding, self.dilation, strict=True))

    @property
    def trivial(self) -> bool:
        """Whether the padded array is the array itself."""
        return self.sizes == self.shape and all(low == 0 for low, _ in self.padding)

    def source(self, index: Sequence[int]) -> tuple[int, ...] | None:
        """Which element lies at a position of the padded array; None: the filling does."""
        out = []
        for i, n, (low, _), step in zip(index, self.shape, self.padding, self.dilation, strict=True):
            element, hole = divmod(i - low, step)
            if hole or not 0 <= element < n:
                return None
            out.append(element)
        return tuple(out)

    def read(self, x: Array, index: Sequence[Any], filling: ir.Value) -> ir.Value:
        """The element at a position that is known now."""
        where = self.source(index)
        return filling if where is None else x.at(*where)

    def laid_out(self, b: Emitter, x: Array, filling: ir.Value) -> Array:
        """The padded array in a form that loops can read over and over."""
        if self.trivial:
            return repeatable(b, x, math.inf)
        out = b.allocate(self.sizes, x.dtype, x.varying)
        if math.prod(self.sizes) > x.size:
            each(b, self.sizes, lambda *i: out.put(i, filling))
        first, counts = self._inside()

        def put(*index: Index) -> None:
            element = [b.iadd(i, start) for i, start in zip(index, first, strict=True)]
            place = [b.iadd(b.imul(i, step), low)
                     for i, step, (low, _) in zip(element, self.dilation, self.padding, strict=True)]
            out.put(tuple(place), x.at(*element))

        if b.is_small(x):
            for index in np.ndindex(*counts):
                put(*index)
        else:
            b.for_each(counts, put)
        return out

    def _inside(self) -> tuple[list[int], list[int]]:
        """By axis, the first element that is not cut off, and how many are not."""
        first = [max(0, -(low // step)) for (low, _), step in zip(self.padding, self.dilation, strict=True)]
        ends = [min(n, -((low - size) // step))
                for n, size, (low, _), step in zip(self.shape, self.sizes, self.padding, self.dilation, strict=True)]
        return first, [max(0, end - start) for start, end in zip(first, ends, strict=True)]
