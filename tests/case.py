"""One row of the table of cases: a per-example function of one primitive, its arguments, and how exact it must be."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

#: A per-example argument: shape and dtype, filled at random, or `maker(rng, batch)` -> array with the batch axis first.
Arg = tuple[tuple[int, ...], Any] | Callable[[np.random.Generator, int], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Case:
    """A row.

    Attributes:
      primitive: what the row tests.
      name: tells the rows of one primitive apart.
      fun: a JAX function of one example.
      args: its arguments.
      rtol, atol: allowed error of floats; of the 16-bit floats it is never below one unit in the last place.
      exact: results must be equal, NaN to NaN; integers and bools always must.
    """

    primitive: str
    name: str
    fun: Callable[..., Any]
    args: tuple[Arg, ...]
    rtol: float = 1e-5
    atol: float = 1e-6
    exact: bool = False

    def __str__(self) -> str:
        return f"{self.primitive}-{self.name}" if self.name else self.primitive

    def make(self, batch: int) -> list[np.ndarray]:
        """Arguments for a batch; the same for each call."""
        rng = np.random.default_rng(zlib.crc32(str(self).encode()))
        return [arg(rng, batch) if callable(arg) else random_array(rng, (batch, *arg[0]), arg[1]) for arg in self.args]


def random_array(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Numbers about one, of either sign where the dtype has signs; bools half and half."""
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(max(info.min, -100), min(info.max, 100), shape, dtype=dtype, endpoint=True)
    return rng.normal(size=shape).astype(dtype)
