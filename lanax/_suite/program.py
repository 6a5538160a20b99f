"""What a benchmark program is: a per-example function, its inputs, and how two answers compare. Knows no program."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable
from typing import Any

import jax
import numpy as np


@dataclasses.dataclass(frozen=True)
class Case:
    """One call to be timed: `vmap(fun, in_axes)(*args)`."""

    fun: Callable[..., Any]
    in_axes: Any
    args: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """How far two answers lie apart.

    Attributes:
      difference: the largest `|a - b| / max(1, |b|)` over all values.
      agreeing: the fraction of the values that lie within the tolerance.
      passed: True where enough of them do.
    """

    difference: float
    agreeing: float
    passed: bool


@dataclasses.dataclass(frozen=True)
class Check:
    """Two answers agree where at least `fraction` of the values differ by no more than `tolerance`.

    The difference of `a` from `b` is `|a - b| / max(1, |b|)`. A `fraction` under 1 is for programs in which one
    rounding decides about a branch: an escape count on the rim of a fractal, a pixel on an edge.
    """

    tolerance: float = 0.0
    fraction: float = 1.0

    def compare(self, result: Any, expected: Any) -> Comparison:
        """Compares two pytrees of arrays, the second being the reference."""
        leaves = zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True)
        differences = [_difference(np.asarray(a), np.asarray(b)).ravel() for a, b in leaves]
        every = np.concatenate(differences) if differences else np.zeros(0)
        agreeing = float(np.mean(every <= self.tolerance)) if every.size else 1.0
        largest = float(np.max(every)) if every.size else 0.0
        return Comparison(largest, agreeing, agreeing >= self.fraction)


def _difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """`|a - b| / max(1, |b|)`; 0 where both are the same infinity or NaN, infinite where only one is."""
    if a.shape != b.shape or a.dtype != b.dtype:
        raise ValueError(f"answers of different kind: {a.dtype}{a.shape} and {b.dtype}{b.shape}")
    a, b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.abs(a - b) / np.maximum(1.0, np.abs(b))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))


@dataclasses.dataclass(frozen=True)
class Program:
    """One benchmark program.

    Attributes:
      name: its name on the command line.
      title: what it computes, for tables.
      make: builds the call from a batch size. Inputs come from a seeded generator.
      batch: examples of a full run.
      quick: examples of a quick run.
      goal: how many times faster than `jit(jax.vmap(f))` it is to be on two cores with AVX2.
      check: how its answer is compared.
      needs: modules outside lanax's own requirements that it imports.
    """

    name: str
    title: str
    make: Callable[[int], Case]
    batch: int
    quick: int
    goal: float
    check: Check
    needs: tuple[str, ...] = ()

    def missing(self) -> tuple[str, ...]:
        """The modules that it needs and that are not installed."""
        return tuple(name for name in self.needs if importlib.util.find_spec(name) is None)
