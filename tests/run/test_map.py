"""`lanax.map` means what the installed `jax.lax.map` means, one example after another."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from only_xla import only_xla

import lanax
from lanax import Plan

X = jnp.linspace(0.3, 4.0, 11)
MATRIX = jnp.linspace(-1.0, 2.0, 33).reshape(11, 3)
KEYS = jax.random.split(jax.random.key(0), 11)
TABLE = np.arange(8, dtype=np.float32)
BATCH_SIZES = [None, 0, 1, 4, 40]


def grown(x: Any) -> Any:
    return lax.while_loop(lambda v: v < 50, lambda v: v * 1.5 + 1, x)


def branching(x: Any) -> Any:
    return lax.cond(x > 2, lambda: jnp.sin(x), lambda: grown(x))


def cut(v: Any) -> Any:
    """Half of it has no kernel."""
    return only_xla(v * grown(v[0])) * grown(v[1])


assert_same = functools.partial(helpers.assert_same, rtol=3e-6, atol=1e-6)


FUNCTIONS = {
    "a loop": (grown, X),
    "a branch": (branching, X),
    "a cut program": (cut, MATRIX),
    "a tree": (lambda t: {"a": t[0] + t[1]["b"].sum(), "none": None, "c": (t[0], t[1]["b"] * 2)}, (X, {"b": MATRIX})),
    "an int and a bool": (lambda t: (t[0] + 1, ~t[1], t[0] * 0.5), (jnp.arange(11), X > 1)),
    "constants": (lambda x: (1.0, jnp.ones(2), np.int8(3), x), X),
    "a closure": (lambda x: TABLE[2] * x + MATRIX.sum(), X),
    "keys": (lambda k: (jax.random.normal(k, (3,)), jax.random.split(k), k), KEYS),
    "NumPy": (lambda x: x * 2, np.arange(11.0)),
    "a weak type": (lambda x: (jnp.where(x > 2, 1, 2), x), lax.full((11,), 1.5)),
    "a result of nothing": (lambda x: (), X),
}


@pytest.mark.parametrize("batch_size", BATCH_SIZES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_same_as_lax_map(name: str, batch_size: int | None) -> None:
    fun, xs = FUNCTIONS[name]
    want = lax.map(fun, xs, batch_size=batch_size)
    assert_same(lanax.map(fun, xs, batch_size=batch_size), want)
    if batch_size in (None, 4):
        assert_same(jax.jit(lambda v: lanax.map(fun, v, batch_size=batch_size))(xs), want)


@pytest.mark.parametrize("size", [0, 1, 3, 8, 13])
def test_batches_of_every_size(size: int) -> None:
    xs = jnp.linspace(0.1, 3.0, size), jnp.ones((size, 2))
    for batch_size in (None, 4):
        fun = lambda t: (grown(t[0]), t[1], jnp.zeros(3))  # noqa: E731
        assert_same(lanax.map(fun, xs, batch_size=batch_size), lax.map(fun, xs, batch_size=batch_size))


def test_the_loop_is_the_truth() -> None:
    np.testing.assert_allclose(lanax.map(cut, MATRIX), [cut(v) for v in MATRIX], rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(lanax.map(grown, X), [grown(x) for x in X])


@pytest.mark.parametrize(("xs", "batch_size"), [
    (1.0, None), ((X, 2.0), None), ((X, X[:4]), None), ((), None), ({}, None), (np.float32(1), None), ("text", None),
    (X, -1), (X, 2.0), (X, "2"), ((X, X[:4]), 2), (1.0, 2),
], ids=str)
def test_errors_are_those_of_lax_map(xs: Any, batch_size: Any) -> None:
    raised = []
    for mapper in (lax.map, lanax.map):
        with pytest.raises(Exception) as info:  # noqa: PT011  (the one is compared with the other)
            mapper(lambda x: x, xs, batch_size=batch_size)
        raised.append((type(info.value), str(info.value)))
    assert raised[0] == raised[1]


def test_what_is_wrong_in_the_function_is_raised_as_by_lax_map() -> None:
    def compares(x: Any) -> Any:
        return x if x > 0 else -x

    for fun, error in [(compares, jax.errors.TracerBoolConversionError), (lambda x: x @ x, ValueError),
                       (lambda x: "text", TypeError), (3, TypeError)]:
        raised = []
        for mapper in (lax.map, lanax.map):
            with pytest.raises(error) as info:
                mapper(fun, X)
            raised.append(str(info.value).split(" at 0x")[0])
        assert raised[0] == raised[1]


def test_a_wrong_plan_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"`plan` of lanax\.map must be a lanax\.Plan or None; got str"):
        lanax.map(grown, X, plan="serial")  # type: ignore[arg-type]


def test_one_after_another_in_a_kernel() -> None:
    report = lanax.explain(lambda xs: lanax.map(branching, xs), X)
    (kernel,) = report.kernels
    assert (report.routes, report.misses, kernel.lanes, report.plan.route) == (("serial",), (), 1, "serial")


def test_examples_alive_are_at_most_the_batch_size() -> None:
    for batch_size in [1, 2, 3, 7, 20, 40, 63, 64, 100]:
        (kernel,) = lanax.explain(lambda xs, b=batch_size: lanax.map(grown, xs, batch_size=b), X).kernels
        assert batch_size / 4 < kernel.lanes <= batch_size
    assert "chunk=500" in str(lanax.explain(lambda xs: lanax.map(grown, xs, batch_size=500), jnp.ones(3000)))
    (kernel,) = lanax.explain(lambda xs: lanax.map(grown, xs, batch_size=0), jnp.ones(3000)).kernels
    assert kernel.lanes > 1


def test_what_has_no_kernel_is_left_to_lax_map_whole() -> None:
    """And never to `jax.vmap`, which would hold the whole batch."""
    call = lambda xs: lanax.map(cut, xs)  # noqa: E731
    report = lanax.explain(call, MATRIX)
    assert report.routes == ("xla",)
    assert "only_xla" in str(report)
    assert "jax.lax.map runs all of it" in str(report)
    text = jax.jit(call).lower(MATRIX).as_text()
    assert "lanax_" not in text
    assert "tensor<11x3xbf16>" not in text


def test_a_cut_program_holds_one_chunk() -> None:
    text = jax.jit(lambda xs: lanax.map(cut, xs, batch_size=4)).lower(MATRIX).as_text()
    assert "lanax_" in text
    assert "tensor<4x3xbf16>" in text
    assert "tensor<11x3xbf16>" not in text


def test_the_plan_is_heeded() -> None:
    def kernel(**fields: Any) -> Any:
        return lanax.explain(lambda xs: lanax.map(grown, xs, plan=Plan(**fields)), jnp.ones(3000)).kernels[0]

    assert kernel(lanes=4).lanes == 4
    assert kernel(route="lanes").lanes > 1
    assert (kernel(threads=1).lanes, kernel(threads=1).threads) == (1, 1)
    assert lanax.explain(lambda xs: lanax.map(grown, xs, plan=Plan(route="xla")), X).routes == ("xla",)
    for fields in ({"lanes": 4}, {"route": "lanes"}, {"route": "xla"}, {"chunk": 3}, {"threads": 1, "chunk": 2}):
        assert_same(lanax.map(grown, X, plan=Plan(**fields)), lax.map(grown, X))


def test_serial_vmap_is_one_example_at_a_time() -> None:
    mapped = lanax.vmap(lambda x, v: branching(x) * v, in_axes=(0, None), plan=Plan(route="serial"))
    report = lanax.explain(mapped, X, 2.0)
    assert (report.routes, report.kernels[0].lanes) == (("serial",), 1)
    np.testing.assert_allclose(mapped(X, 2.0), [branching(x) * 2 for x in X], rtol=1e-6)

    whole = lanax.vmap(cut, in_axes=1, out_axes=1, plan=Plan(route="serial"))
    assert "tensor<11x3xbf16>" not in jax.jit(whole).lower(MATRIX.T).as_text()
    np.testing.assert_allclose(whole(MATRIX.T), jax.vmap(cut, 1, 1)(MATRIX.T), rtol=1e-5, atol=1e-4)


# ---- effects ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("batch_size", [None, 1])
def test_side_effects_keep_the_order_of_lax_map(batch_size: int | None) -> None:
    seen: list[float] = []

    def fun(x: Any) -> Any:
        jax.experimental.io_callback(lambda v: seen.append(float(v)), None, x, ordered=batch_size is None)
        return x + 1

    if batch_size is None:
        assert_same(lanax.map(fun, X), X + 1)
        jax.effects_barrier()
        assert seen == [float(x) for x in X]
        report = lanax.explain(lambda xs: lanax.map(fun, xs), X)
        assert "side effects" in str(report)
    else:
        assert_same(lanax.map(fun, X, batch_size=1), X + 1)
        jax.effects_barrier()
        assert sorted(seen) == [float(x) for x in X]


def test_a_pure_callback_sees_one_example_at_a_time() -> None:
    shapes = []

    def host(x: Any) -> Any:
        shapes.append(np.shape(x))
        return np.asarray(x) * 2

    def fun(x: Any) -> Any:
        return jax.pure_callback(host, jax.ShapeDtypeStruct((), np.float32), x, vmap_method="expand_dims") + grown(x)

    np.testing.assert_allclose(lanax.map(fun, X), X * 2 + jax.vmap(grown)(X), rtol=1e-6)
    assert set(shapes) == {()}


def test_a_collective_inside_is_left_to_lax_map() -> None:
    def run(mapper: Callable[..., Any]) -> Any:
        return jax.vmap(lambda v: mapper(lambda x: x / lax.psum(x, "i"), v), axis_name="i")(MATRIX + 2)

    assert_same(run(lanax.map), run(lax.map))


def test_a_rule_of_custom_vmap_is_used_where_lax_map_uses_it() -> None:
    @jax.custom_batching.custom_vmap
    def fun(x: Any) -> Any:
        return jnp.sin(x)

    fun.def_vmap(lambda size, batched, x: (jnp.cos(x), True))
    for batch_size in (None, 1, 4, 0):
        assert_same(lanax.map(fun, X, batch_size=batch_size), lax.map(fun, X, batch_size=batch_size))
    assert_same(jax.vmap(lambda v: lanax.map(fun, v))(MATRIX), jax.vmap(lambda v: lax.map(fun, v))(MATRIX))


# ---- transformations -------------------------------------------------------------------------------------------------
def smooth(x: Any) -> Any:
    return lax.fori_loop(0, 3, lambda _, v: jnp.sin(v) * x + 0.1, x)


@pytest.mark.parametrize("batch_size", [None, 4])
@pytest.mark.parametrize("fun", [smooth, lambda x: smooth(x) * only_xla(x)],
                         ids=["a kernel", "cut"])
def test_derivatives(fun: Any, batch_size: int | None) -> None:
    def both(mapper: Callable[..., Any]) -> Any:
        call = lambda xs: mapper(fun, xs, batch_size=batch_size)  # noqa: E731
        return (jax.jvp(call, (X,), (X,)), jax.grad(lambda xs: call(xs).sum())(X), jax.jacfwd(call)(X),
                jax.jit(jax.grad(lambda xs: jax.grad(lambda v: call(v).sum())(xs).sum()))(X))

    assert_same(both(lanax.map), both(lax.map), rtol=2e-5)


def test_what_it_closes_over_is_differentiated() -> None:
    def loss(mapper: Callable[..., Any]) -> Any:
        return jax.jit(jax.grad(lambda w: mapper(lambda x: smooth(x * w), X).sum()))(0.5)

    assert_same(loss(lanax.map), loss(lax.map), rtol=1e-5)


@pytest.mark.parametrize("batch_size", [None, 3])
def test_under_vmap_and_scan(batch_size: int | None) -> None:
    def all_of_it(mapper: Callable[..., Any]) -> Any:
        call = lambda xs: mapper(grown, xs, batch_size=batch_size)  # noqa: E731
        scaled = lambda c, xs: mapper(lambda x: grown(x) * c, xs, batch_size=batch_size)  # noqa: E731
        return (jax.vmap(call)(MATRIX), jax.vmap(call, 1)(MATRIX), jax.vmap(scaled, (0, None))(X[:3], X),
                lax.scan(lambda c, w: (call(c * 0.1) * w, call(c)), X, X[:4]))

    assert_same(all_of_it(lanax.map), all_of_it(lax.map))


def test_in_itself_and_in_a_mapped_function() -> None:
    want = jax.vmap(jax.vmap(grown))(MATRIX)
    assert_same(lanax.map(lambda v: lanax.map(grown, v), MATRIX), want)
    assert_same(lanax.vmap(lambda v: lanax.map(grown, v))(MATRIX), want)
    assert_same(lanax.map(lanax.vmap(grown), MATRIX, batch_size=4), want)


def test_in_shard_map() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",))
    spec = jax.sharding.PartitionSpec("d")
    rounded = lambda x: only_xla(grown(x))  # noqa: E731
    for call, fun in ((lambda m: lanax.map(lanax.vmap(grown), m), grown),
                      (lambda m: lanax.map(jax.vmap(grown), m, batch_size=4), grown),
                      (lanax.vmap(lambda v: lanax.map(rounded, v)), rounded)):
        got = jax.jit(jax.shard_map(call, mesh=mesh, in_specs=spec, out_specs=spec))(MATRIX)
        assert_same(got, jax.vmap(jax.vmap(fun))(MATRIX))


def test_where_there_is_no_backend_lax_map_is_used() -> None:
    exported = jax.export.export(jax.jit(lambda xs: lanax.map(cut, xs)), platforms=("tpu",))(MATRIX)
    text = exported.mlir_module()
    assert "stablehlo.while" in text
    assert "tensor<11x3xbf16>" not in text


def test_the_bits_do_not_depend_on_the_batch_size() -> None:
    want = np.asarray(lanax.map(branching, X))
    for batch_size in (0, 2, 5, 64):
        np.testing.assert_array_equal(lanax.map(branching, X, batch_size=batch_size), want)
    np.testing.assert_array_equal(lanax.vmap(branching)(X), want)
