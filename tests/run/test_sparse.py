"""Matrices of `jax.experimental.sparse` in an example, also those that `jax.vmap` does not take."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import sparse

import lanax


def example(kind: Any, m: Any, v: Any) -> Any:
    made = kind.fromdense(m, nse=12)
    return made @ v, made @ m.T, made.todense()


@pytest.mark.parametrize("kind", [sparse.BCOO, sparse.BCSR, sparse.COO, sparse.CSR], ids=lambda kind: kind.__name__)
def test_same_as_the_loop(kind: Any) -> None:
    rng = np.random.default_rng(0)
    m = (rng.normal(size=(9, 4, 3)) * (rng.random((9, 4, 3)) < 0.4)).astype(np.float32)
    v = rng.normal(size=(9, 3)).astype(np.float32)

    def fun(m: Any, v: Any) -> Any:
        return example(kind, m, v)

    one = jax.jit(fun)
    want = [np.stack(rows) for rows in zip(*(one(*row) for row in zip(m, v, strict=True)), strict=True)]
    mapped = lanax.vmap(fun)
    for x, y in zip(mapped(m, v), want, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
    assert not [miss for miss in lanax.explain(mapped, m, v).misses if miss.primitive != "program"]
