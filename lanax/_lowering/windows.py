"""Where the windows of slices, gathers and scatters lie: start indices clamped or checked, so that every access of
every lane, active or not, is in bounds. Knows no primitive."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from llvmlite import ir

from lanax._llvm import types as t
from lanax._llvm.memory import Index
from lanax._lowering.arrays import Array, Buffer, Elements, Lazy, Memory, is_cheap
from lanax._lowering.emitter import Emitter

#: An unrolled array of up to this many elements is read at varying indices by selects; a larger one, where it is read
#: more than a few times, from memory. (Measured: storing 32 elements costs as much as reading one of them five times.)
_SELECTS = 16
#: And one of any size where each of its elements can only come from so many places, as where rows are exchanged.
_CHOICES = 8
_INT32_MAX = 2**31 - 1

#: For one dimension: the positions at which a window may start, and what tests for each (None: it is known).
Positions = Mapping[int, Callable[[], ir.Value] | None]


@dataclasses.dataclass(frozen=True)
class Start:
    """The start of one window: an index that keeps the window in bounds, and whether the given one did (None: yes)."""

    index: tuple[Index, ...]
    inside: ir.Value | None = None


@dataclasses.dataclass(frozen=True)
class Windows:
    """Windows of one shape in an array; one for each group of coordinates.

    Attributes:
      shape: of the array.
      sizes: of a window, one for each dimension of the array.
      groups: shape of the array of windows.
      coordinates: by dimension of the array, the start coordinates there, an array of the shape `groups`.
      batching: by dimension of the array, which index of the group is the start there.
      checked: whether a window that is out of bounds is told apart; else it is moved inside.
    """

    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    groups: tuple[int, ...]
    coordinates: Mapping[int, Array]
    batching: Mapping[int, int] = dataclasses.field(default_factory=dict)
    checked: bool = False

    @classmethod
    def slice(cls, shape: Sequence[int], sizes: Sequence[int], starts: Sequence[Array]) -> Windows:
        """The one window of a slice, given its start coordinates as rank-0 arrays."""
        return cls(tuple(shape), tuple(sizes), (), dict(enumerate(starts)))

    @property
    def varying(self) -> bool:
        """Whether the coordinates differ from lane to lane."""
        return any(c.varying for c in self.coordinates.values())

    @property
    def count(self) -> int:
        """Number of windows."""
        return math.prod(self.groups)

    @property
    def size(self) -> int:
        """Number of elements of one window."""
        return math.prod(self.sizes)

    @property
    def choices(self) -> int:
        """Number of places at which a window may be."""
        return math.prod(self.limit(dim) + 1 for dim in self.coordinates)

    def with_coordinates(self, change: Callable[[Array], Array]) -> Windows:
        """The windows with coordinates in another form."""
        return dataclasses.replace(self, coordinates={d: change(c) for d, c in self.coordinates.items()})

    def start(self, b: Emitter, group: tuple[Index, ...]) -> Start:
        """Where the window of a group begins."""
        index: list[Index] = [0] * len(self.shape)
        inside: ir.Value | None = None
        for dim, position in self.batching.items():
            index[dim] = group[position]
        for dim, coordinate in self.coordinates.items():
            value, limit = coordinate.at(*group), self.limit(dim)
            index[dim] = _clamped(b, value, coordinate.dtype, limit)
            if self.checked:
                ok = _in_range(b, value, coordinate.dtype, limit)
                inside = ok if inside is None else b.and_(inside, ok)
        return Start(tuple(index), inside)

    def limit(self, dim: int) -> int:
        """The largest start at which a window is in bounds."""
        return self.shape[dim] - self.sizes[dim]

    def positions(self, b: Emitter, group: tuple[int, ...]) -> list[Positions]:
        """For each dimension, where the window of a group may begin; nowhere, where it is out of bounds."""
        out: list[Positions] = [{0: None}] * len(self.shape)
        for dim, position in self.batching.items():
            out[dim] = {group[position]: None}
        for dim, coordinate in self.coordinates.items():
            out[dim] = _positions(b, coordinate.at(*group), coordinate.dtype, self.limit(dim), self.checked)
        return out


def read_windows(b: Emitter, x: Array, windows: Windows, shape: Sequence[int],
                 split: Callable[..., tuple[tuple[Index, ...], tuple[Index, ...]]],
                 fill: ir.Value | None = None) -> Array:
    """The array of `shape` whose element at an index lies in `x` in the window of a group, at an offset there.

    `split` gives the group and the offset of an index. Windows out of bounds read `fill`, where it is given.
    """
    size = math.prod(shape)
    few = size <= b.unroll or windows.count == 1
    if not few:
        windows = windows.with_coordinates(lambda c: readable(b, c, windows.size))
    starts = {group: windows.start(b, group) for group in np.ndindex(*windows.groups)} if few else {}
    known = few and all(isinstance(i, int) for start in starts.values() for i in start.index)
    by_selects = size == 1 or (windows.varying and (
        x.size <= _SELECTS or x.size * size <= 8 * _SELECTS or (few and windows.choices <= _CHOICES)))
    source = x if isinstance(x, Elements) and (known or by_selects) else readable(b, x, -(-size // max(x.size, 1)))
    only = next(iter(starts.values())) if windows.count == 1 else None

    def element(*index: Index) -> ir.Value:
        group, offset = split(*index)
        start = only or (starts[group] if few else windows.start(b, group))  # type: ignore[index]
        value = source.at(*(b.iadd(s, o) for s, o in zip(start.index, offset, strict=True)))
        return value if fill is None or start.inside is None else b.select(start.inside, value, fill)

    return b.lazy(shape, x.dtype, element, (source,), view=not windows.varying, varying=x.varying or windows.varying)


# -- forms of an array -----------------------------------------------------------------------------------------------
def readable(b: Emitter, x: Array, times: int) -> Array:
    """The array in a form whose elements can be read `times` times each, at indices known only at run time."""
    if isinstance(x, Lazy):
        return x if times <= 1 or is_cheap(x) else b.stored(x)
    return b.indexable(x)


def repeatable(b: Emitter, x: Array, times: float) -> Array:
    """The array in a form that a loop can read `times` times over.

    An input whose lanes lie apart is gathered once, not again and again.
    """
    if isinstance(x, Elements):
        return b.indexable(x)
    if isinstance(x, Lazy):
        return x if times == 1 or is_cheap(x) else b.stored(x)
    return b.copied(x) if times > 2 and x.varying and isinstance(x, Memory) and x.base is None else x


def aside(b: Emitter, x: Array, buffer: Buffer) -> Array:
    """The array where it does not read memory that is about to be overwritten, else a copy."""
    return b.copied(x) if buffer in x.reads else x


# -- coordinates -----------------------------------------------------------------------------------------------------
def _known(value: ir.Value, dtype: np.dtype) -> int | None:
    """The value of a coordinate that is a constant, the same in all lanes; None where it is not one."""
    if not isinstance(value, ir.Constant):
        return None
    number = value.constant
    if isinstance(number, list):
        parts = {_known(part, dtype) for part in number}
        return parts.pop() if len(parts) == 1 else None
    if not isinstance(number, int):
        return None
    number &= (1 << t.bit_width(value.type)) - 1  # LLVM's integers have no sign
    return int(np.array(number, dtype=f"u{dtype.itemsize}").view(dtype)[()])


def _wide(b: Emitter, value: ir.Value, dtype: np.dtype, limit: int) -> ir.Value:
    """A coordinate in a width that holds `limit`, no narrower than its own."""
    bits = max(t.bit_width(value.type), 32 if limit <= _INT32_MAX else 64)
    return b.resize_int(value, ir.IntType(bits), signed=dtype.kind == "i")


def _clamped(b: Emitter, value: ir.Value, dtype: np.dtype, limit: int) -> Index:
    """A coordinate moved into [0, limit]."""
    number = _known(value, dtype)
    if number is not None or limit == 0:
        return min(max(number or 0, 0), limit)
    value = _wide(b, value, dtype, limit)
    signed = dtype.kind == "i"
    if signed:
        value = b.select(b.gt(value, 0), value, 0)
    value = b.select(b.compare("<", value, limit, signed), value, limit)
    return b.resize_int(value, t.I64)


def _in_range(b: Emitter, value: ir.Value, dtype: np.dtype, limit: int) -> ir.Value:
    """Whether a coordinate is in [0, limit], as i1 lanes."""
    number = _known(value, dtype)
    if number is not None:
        return ir.Constant(t.I1, int(0 <= number <= limit))
    return b.compare("<=", _wide(b, value, dtype, limit), limit, signed=False)  # as unsigned, negative ones are large


def _positions(b: Emitter, value: ir.Value, dtype: np.dtype, limit: int, checked: bool) -> Positions:
    number = _known(value, dtype)
    if number is not None:
        inside = 0 <= number <= limit
        return {} if checked and not inside else {min(max(number, 0), limit): None}
    if limit == 0 and not checked:
        return {0: None}
    value = _wide(b, value, dtype, limit)

    def test(position: int) -> ir.Value:
        op = "=="
        if not checked:
            op = "<=" if position == 0 else ">=" if position == limit else "=="
        return b.compare(op, value, position, signed=dtype.kind == "i")

    return {p: functools.cache(functools.partial(test, p)) for p in range(limit + 1)}
