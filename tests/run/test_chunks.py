"""A bounded number of examples alive at once, on the `xla` route too: `vmap` in chunks with the whole interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from only_xla import only_xla

import lanax
from lanax import Plan
from lanax._chunks import example_bytes, in_chunks, vmap_in_chunks

X = jnp.linspace(0.3, 4.0, 11)
MATRIX = jnp.linspace(-1.0, 2.0, 33).reshape(11, 3)
CUBE = jnp.linspace(-1.0, 1.5, 66).reshape(3, 11, 2)
W = jnp.array([0.3, -0.7, 1.1])
KEYS = jax.random.split(jax.random.key(0), 11)
CHUNKS = [1, 2, 3, 5, 10, 11, 12, 100]


def wave(v: Any, w: Any) -> Any:
    return jnp.sin(v) * w, (v * w).sum()


# ---- the loop itself -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("chunk", CHUNKS)
def test_every_chunk_gives_what_vmap_gives(chunk: int) -> None:
    got = vmap_in_chunks(wave, (MATRIX, W), (0, None), 11, chunk)
    for x, y in zip(got, jax.vmap(wave, (0, None))(MATRIX, W), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-7)
    got = vmap_in_chunks(lambda v: [v.sum(), v, 3.0], (CUBE,), (1,), 11, chunk)
    np.testing.assert_allclose(got[0], CUBE.sum((0, 2)), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(got[1], jnp.moveaxis(CUBE, 1, 0))
    assert got[2].shape == (11,)


@pytest.mark.parametrize("size", [0, 1, 2, 7])
def test_short_batches(size: int) -> None:
    for chunk in (1, 2, None):
        (got,) = vmap_in_chunks(lambda v: [v * 2], (MATRIX[:size],), (0,), size, chunk)
        np.testing.assert_array_equal(got, MATRIX[:size] * 2)


def test_keys_and_bools() -> None:
    for chunk in (1, 4):
        key, flag = vmap_in_chunks(lambda k: [jax.random.fold_in(k, 1), jax.random.bernoulli(k)], (KEYS,), (0,), 11,
                                   chunk)
        np.testing.assert_array_equal(jax.random.key_data(key),
                                      jax.random.key_data(jax.vmap(lambda k: jax.random.fold_in(k, 1))(KEYS)))
        np.testing.assert_array_equal(flag, jax.vmap(jax.random.bernoulli)(KEYS))


def test_one_at_a_time_runs_one_branch() -> None:
    """Under `jax.vmap` both are run, and one would never end."""
    def fun(x: Any) -> list[Any]:
        return [lax.cond(x > 2, lambda: x, lambda: lax.while_loop(lambda v: v < 2, lambda v: v + x, x))]

    (got,) = vmap_in_chunks(fun, (jnp.array([3.0, 1.0, 0.5]),), (0,), 3, 1)
    np.testing.assert_array_equal(got, [3.0, 2.0, 2.0])


def test_at_most_a_chunk_is_alive() -> None:
    def run(x: Any) -> Any:
        return in_chunks(lambda n, v: [only_xla(v)], (x,), (0,), 11, 4)

    text = jax.jit(run).lower(MATRIX).as_text()
    assert "tensor<4x3xbf16>" in text
    assert "tensor<3x3xbf16>" in text
    assert "tensor<11x3xbf16>" not in text


def test_bytes_of_an_example() -> None:
    jaxpr = jax.make_jaxpr(lambda x: lax.scan(lambda c, v: (c * v, c + v), x.sum(), x))(W).jaxpr
    assert example_bytes(jaxpr) >= 4 * (1 + 1 + 3 + 1 + 1)


# ---- plans -----------------------------------------------------------------------------------------------------------
def left_to_xla(v: Any, w: Any) -> Any:
    return only_xla(jnp.sort(v * w))


def cut(v: Any, w: Any) -> Any:
    grown = lax.while_loop(lambda u: u[0] < 9, lambda u: u * 1.5 + jnp.abs(w), jnp.abs(v))
    return only_xla(grown) + lax.while_loop(lambda u: u < 9, lambda u: u * 1.5 + 1, jnp.abs(v[0]))


PLANS = [Plan(chunk=1), Plan(chunk=3), Plan(chunk=11), Plan(chunk=64), Plan(memory=1), Plan(memory=400),
         Plan(memory="1MiB"), Plan(route="serial"), Plan(route="xla", chunk=4), Plan(route="xla")]


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("fun", [left_to_xla, cut, wave], ids=lambda f: f.__name__)
def test_plans_change_no_result(fun: Callable[..., Any], plan: Plan) -> None:
    want = jax.vmap(fun, (0, None))(MATRIX, W)
    got = lanax.vmap(fun, (0, None), plan=plan)(MATRIX, W)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5), got, want)


def test_the_whole_interface_in_chunks() -> None:
    plan = Plan(route="xla", chunk=4)

    def fun(tree: Any, w: Any) -> Any:
        return {"a": tree["v"] * w, "same": w, "key": jax.random.fold_in(tree["key"], 1), "n": 3}

    options: dict[str, Any] = {"in_axes": ({"v": 1, "key": 0}, None),
                               "out_axes": {"a": -1, "same": None, "key": 0, "n": 0}}
    args = {"v": CUBE, "key": KEYS}, 2.0
    got, want = lanax.vmap(fun, plan=plan, **options)(*args), jax.vmap(fun, **options)(*args)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    np.testing.assert_allclose(got["a"], want["a"], rtol=1e-6)
    assert got["same"] == want["same"]
    np.testing.assert_array_equal(got["n"], want["n"])
    np.testing.assert_array_equal(jax.random.key_data(got["key"]), jax.random.key_data(want["key"]))


def test_derivatives_in_chunks() -> None:
    def loss(mapper: Callable[..., Any]) -> Any:
        return jax.jit(jax.value_and_grad(lambda m, w: (mapper(cut_smoothly, (0, None))(m, w) ** 2).sum(), (0, 1)))

    def cut_smoothly(v: Any, w: Any) -> Any:
        return only_xla(jnp.sin(v * w))

    for plan in (Plan(chunk=4), Plan(route="serial"), Plan(memory=200)):
        got = loss(lambda f, axes, p=plan: lanax.vmap(f, axes, plan=p))(MATRIX, W)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5), got,
                     loss(jax.vmap)(MATRIX, W))


@pytest.mark.parametrize("plan", [Plan(route="xla", chunk=4), Plan(route="xla", memory=300), Plan(chunk=4)], ids=str)
def test_what_is_left_to_xla_holds_a_chunk(plan: Plan) -> None:
    text = jax.jit(lanax.vmap(left_to_xla, (0, None), plan=plan)).lower(MATRIX, W).as_text()
    assert "stablehlo.while" in text
    assert "tensor<11x3xbf16>" not in text


def test_what_is_uniform_runs_once() -> None:
    def fun(v: Any, w: Any) -> Any:
        return only_xla(v) * jnp.linalg.cholesky(jnp.outer(w, w) + 3 * jnp.eye(3))[2, 0]

    mapped = lanax.vmap(fun, (0, None), plan=Plan(route="xla", chunk=2))
    text = jax.jit(mapped).lower(MATRIX, W).as_text()
    assert text.count("@lapack_spotrf") == 1
    body = text[text.index("stablehlo.while"):]
    assert "@lapack_spotrf" not in body


def test_what_jax_vmap_must_run_whole_says_so() -> None:
    """Collectives over the mapped axis see all examples."""
    def fun(x: Any) -> Any:
        return x / lax.psum(x, "i")

    mapped = lanax.vmap(fun, axis_name="i", plan=Plan(chunk=2, route="xla"))
    np.testing.assert_allclose(mapped(X), X / X.sum(), rtol=1e-6)
    assert "psum" in str(lanax.explain(mapped, X)) or "named axis" in str(lanax.explain(mapped, X))


def test_a_function_that_is_left_whole_says_that_it_has_no_chunks() -> None:
    def fun(x: Any, flag: Any) -> Any:
        return x if flag > 1 else -x

    mapped = lanax.vmap(fun, (0, None), plan=Plan(chunk=2))
    flag = jnp.float32(2)
    np.testing.assert_array_equal(mapped(X, flag), X)
    assert "it cannot be traced: TracerBoolConversionError (so `chunk` and `memory` do not hold)" in str(
        lanax.explain(mapped, X, flag))
