"""Rules of shapes, reductions and products against `jax.vmap`, over lanes and batch sizes about them."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from case import Case
from cases_shape import CASES
from helpers import run_kernel


def expected(case: Case, args: list[np.ndarray]) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.tree.leaves(jax.jit(jax.vmap(case.fun))(*args))]


def check(case: Case, got: list[np.ndarray], want: list[np.ndarray]) -> None:
    for x, y in zip(got, want, strict=True):
        assert x.shape == y.shape
        assert x.dtype == y.dtype
        if case.exact or y.dtype.kind in "iub":
            np.testing.assert_array_equal(x, y)
            continue
        eps = float(jax.numpy.finfo(y.dtype).eps) if y.dtype.itemsize == 2 else 0.0
        np.testing.assert_allclose(x.astype(np.float64), y.astype(np.float64), max(case.rtol, 2 * eps),
                                   max(case.atol, eps / 4))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_same_as_vmap(case: Case) -> None:
    """Whole steps and a tail; and the bits do not depend on the lanes."""
    with jax.enable_x64(True):
        args = case.make(27)
        got = run_kernel(case.fun, args, lanes=8)
        check(case, got, expected(case, args))
        for x, y in zip(run_kernel(case.fun, args, lanes=1), got, strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("case", CASES[::29], ids=str)
@pytest.mark.parametrize("batch", [1, 7, 8, 9])
def test_batch_sizes(case: Case, batch: int) -> None:
    with jax.enable_x64(True):
        args = case.make(batch)
        check(case, run_kernel(case.fun, args, lanes=8), expected(case, args))


@pytest.mark.parametrize("case", [c for c in CASES if len(c.args) > 1], ids=str)
def test_uniform_arguments(case: Case) -> None:
    """Each argument in turn the same for all examples, or all but it."""
    with jax.enable_x64(True):
        args = case.make(11)
        for axes in ((0, None), (None, 0)):
            mixed = [x if axis == 0 else x[0] for x, axis in zip(args, axes, strict=True)]
            want = [np.asarray(x) for x in jax.tree.leaves(jax.jit(jax.vmap(case.fun, axes))(*mixed))]
            check(case, run_kernel(case.fun, mixed, axes), want)
