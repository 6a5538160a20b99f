"""Every row of the table: the kernel against the per-example loop and `jax.vmap`, over lanes, tails and mixes."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from case import Case
from cases import CASES
from helpers import loop, run_kernel

#: Examples of a run: whole steps and a tail, for 8 and for 16 lanes.
BATCH = 27


def check(case: Case, got: list[np.ndarray], want: list[np.ndarray]) -> None:
    """Equal types; equal integers and bools; floats within the row's bounds, those of 16 bits within one ULP."""
    for x, y in zip(got, want, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        if case.exact or y.dtype.kind in "iub":
            np.testing.assert_array_equal(comparable(x), comparable(y))
            continue
        eps = float(jax.numpy.finfo(y.dtype).eps) if y.dtype.itemsize == 2 else 0.0
        wide = np.complex128 if y.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(x.astype(wide), y.astype(wide), max(case.rtol, 2 * eps),
                                   max(case.atol, eps / 4))


def comparable(x: np.ndarray) -> np.ndarray:
    """The array in a dtype whose NaN NumPy knows."""
    return x if x.dtype.kind in "biufc" else x.astype(np.float32)


def vmapped(case: Case, args: list[np.ndarray], axes: tuple[int | None, ...] | int = 0) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.tree.leaves(jax.jit(jax.vmap(case.fun, axes))(*args))]


def test_names_are_unique() -> None:
    names = [str(case) for case in CASES]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(("case", "lanes"), [(case, (1, 16)[i % 2]) for i, case in enumerate(CASES)],
                         ids=[str(case) for case in CASES])
def test_same_as_the_loop_and_as_vmap(case: Case, lanes: int) -> None:
    """Whole steps and a tail; and the bits do not depend on the lanes."""
    with jax.enable_x64(True):
        args = case.make(BATCH)
        got = run_kernel(case.fun, args, lanes=8)
        check(case, got, loop(case.fun, args))
        check(case, got, vmapped(case, args))
        for x, y in zip(run_kernel(case.fun, args, lanes=lanes), got, strict=True):
            np.testing.assert_array_equal(comparable(x), comparable(y))


_LOOPS = [case for case in CASES if case.primitive in ("while", "random_wrap")]


@pytest.mark.parametrize("case", _LOOPS, ids=str)
@pytest.mark.parametrize(("batch", "enough"), [(1, 4), (7, 7), (8, 4), (45, 6)])
def test_refilled_lanes_give_the_same_bits(case: Case, batch: int, enough: int) -> None:
    with jax.enable_x64(True):
        args = case.make(batch)
        for x, y in zip(run_kernel(case.fun, args, refill=enough), run_kernel(case.fun, args), strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("case", CASES[::23], ids=str)
@pytest.mark.parametrize("batch", [1, 7, 8, 9])
def test_batch_sizes(case: Case, batch: int) -> None:
    with jax.enable_x64(True):
        args = case.make(batch)
        check(case, run_kernel(case.fun, args, lanes=8), loop(case.fun, args))


_SEVERAL = [case for case in CASES if len(case.args) > 1]


@pytest.mark.parametrize(("case", "turn"), [(case, i) for i, case in enumerate(_SEVERAL[::3])],
                         ids=[str(case) for case in _SEVERAL[::3]])
def test_uniform_arguments(case: Case, turn: int) -> None:
    """Some arguments the same for all examples: each in turn, or all but it, which of the two in turns."""
    with jax.enable_x64(True):
        args = case.make(11)
        for chosen in range(len(args)):
            others = (0, None)[(turn + chosen) % 2]
            axes = tuple(others if i == chosen else (None if others == 0 else 0) for i in range(len(args)))
            if all(axis is None for axis in axes):
                continue
            mixed = [x if axis == 0 else x[0] for x, axis in zip(args, axes, strict=True)]
            try:
                want = vmapped(case, mixed, axes)
            except NotImplementedError:  # JAX has no rule for this mix
                want = loop(case.fun, [x if axis == 0 else np.repeat(x[:1], 11, 0)
                                       for x, axis in zip(args, axes, strict=True)])
            check(case, run_kernel(case.fun, mixed, axes), want)
