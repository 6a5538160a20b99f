"""What the rows of `cases_shape.py` cannot say: where JAX itself is wrong, and what is left to XLA."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import run_kernel

import lanax
from lanax._lowering.coverage import why_not


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("axis", [0, 1])
def test_extremes_of_large_arrays_keep_nan(name: str, axis: int, lanes: int) -> None:
    """As NumPy and JAX define them; XLA's own reduction of a whole batch drops NaNs in jax 0.12.0.1."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(11, 23, 9)).astype(np.float32)
    x[rng.random(x.shape) < 0.03] = np.nan
    (got,) = run_kernel(lambda x: getattr(jnp, name)(x, axis), [x], lanes=lanes)
    np.testing.assert_array_equal(got, getattr(np, name)(x, axis + 1))


def test_large_products_are_left_to_xla() -> None:
    def reason(n: int) -> str | None:
        (eqn,) = jax.make_jaxpr(lambda x: x @ x)(np.zeros((n, n), np.float32)).jaxpr.eqns
        return why_not(eqn)

    assert reason(64) is None
    assert "274625 multiply-adds" in str(reason(65))


def test_a_loop_reads_small_arrays_from_memory() -> None:
    """Not by a choice among all of their elements."""
    def outer(x: Any, y: Any) -> Any:
        return x[:, None] * y

    x, y = np.ones((9, 3), np.float32), np.arange(9 * 32, dtype=np.float32).reshape(9, 32)
    mapped = lanax.vmap(outer, plan=lanax.Plan(route="lanes"))
    assert mapped.lower(x, y).as_text("llvm").count(" select ") < 5
    np.testing.assert_array_equal(mapped(x, y), x[:, :, None] * y[:, None, :])


@pytest.mark.parametrize("count", [3, 4, 7, 8, 9, 15, 16, 17, 33, 65, 71, 136])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.float64])
def test_rows_of_any_length_are_turned_into_lanes(count: int, dtype: Any) -> None:
    """Element by element, by blocks that overlap where they do not fit, and through memory."""
    x = np.arange(37 * count).reshape(37, count).astype(dtype)
    with jax.enable_x64(True):
        for lanes in (4, 16):
            mapped = lanax.vmap(lambda v: v[::-1] * 2, plan=lanax.Plan(route="lanes", lanes=lanes))
            np.testing.assert_array_equal(mapped(x), x[:, ::-1] * 2)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize(("shape", "dtype"), [((9, 9), np.float32), ((3, 30), np.int8), ((24, 4), np.float64)])
def test_a_loop_reads_rows_that_lie_apart(shape: tuple[int, ...], dtype: Any, axis: int) -> None:
    """Wherever the batch axis stands, of what is read again and again and of what is written at once."""
    def fun(x: Any, y: Any) -> Any:
        total = jax.lax.fori_loop(0, y, lambda i, t: t // 2 + jnp.sum(x * x[::-1], dtype=x.dtype) + x[i % 3, 1],
                                  jnp.zeros((), x.dtype))
        return x * total, jnp.flip(x)

    with jax.enable_x64(True):
        rng = np.random.default_rng(5)
        args = np.moveaxis(rng.integers(-9, 9, (21, *shape)).astype(dtype), 0, axis), np.arange(21, dtype=np.int32) % 7
        mapped = [mapper(fun, (axis, 0), axis, **more) for mapper, more in
                  ((lanax.vmap, {"plan": lanax.Plan(route="lanes", lanes=16)}), (jax.vmap, {}))]
        got, want = (jax.jit(f)(*args) for f in mapped)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_array_equal(x, y)
