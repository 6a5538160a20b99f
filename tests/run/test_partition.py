"""Programs of which a part cannot be in lanes: the right answer, and the report's routes and misses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from only_xla import only_xla

import lanax

S = jnp.linspace(0.2, 2.0, 7)
X = jnp.linspace(0.1, 3.0, 56).reshape(7, 8)
WIDE = jnp.asarray(np.random.default_rng(0).normal(size=(8, 200)), jnp.float32)
SCALAR = jax.ShapeDtypeStruct((), np.float32)


def loop(v: Any) -> Any:
    """Something that gains in lanes."""
    return lax.while_loop(lambda u: (u * u).sum() < 90, lambda u: u * 1.5 + 0.1, v)


def called(x: Any, method: str, fun: Callable[..., Any] = np.sin) -> Any:
    return jax.pure_callback(fun, SCALAR, x, vmap_method=method)


def same(with_mapper: Callable[[Any], Any], rtol: float = 2e-5) -> None:
    """`with_mapper(lanax.vmap)` gives what `with_mapper(jax.vmap)` gives."""
    got, want = with_mapper(lanax.vmap), with_mapper(jax.vmap)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=rtol, atol=rtol)


KERNEL_XLA_KERNEL = ("lanes", "xla", "lanes")

#: Name, function of one example, batch, routes, the primitive of the first miss, part of its reason.
ROWS: list[tuple[str, Any, Any, tuple[str, ...], str, str]] = [
    ("a primitive without a rule", lambda v: loop(only_xla(loop(v))), X, KERNEL_XLA_KERNEL, "only_xla",
     "no lowering rule"),
    ("large matmul", lambda v: jnp.tanh(loop(v) @ WIDE), X, KERNEL_XLA_KERNEL, "dot_general", "unmapped operand"),
    ("complex numbers cross", lambda v: loop(jnp.abs(jnp.fft.fft(1j * loop(v), 67)).sum()), X, KERNEL_XLA_KERNEL, "fft",
     "Fourier transform"),
    ("a complex loop", lambda v: lax.fori_loop(0, 3, lambda _, z: z / 2 + jnp.fft.fft(z, 67)[:8] / 67, 1j * v), X,
     ("xla",), "scan", "it holds `fft`"),
    ("sequential callback", lambda x: loop(called(loop(x), "sequential")), S, KERNEL_XLA_KERNEL, "pure_callback",
     "no lowering rule"),
    ("expand_dims callback", lambda x: loop(called(loop(x), "expand_dims")), S, KERNEL_XLA_KERNEL, "pure_callback",
     "no lowering rule"),
    ("broadcast_all callback", lambda x: loop(called(loop(x), "broadcast_all")), S, KERNEL_XLA_KERNEL,
     "pure_callback", "no lowering rule"),
    ("callback in a loop", lambda x: lax.fori_loop(0, 3, lambda _, c: called(c, "sequential"), x), S, ("xla",), "scan",
     "it holds `pure_callback`"),
    ("too large an array", lambda x: loop(x) + jnp.sin(jnp.arange(400_000.0) * x).sum(), S[:3], KERNEL_XLA_KERNEL,
     "mul", "an array of 1600000 bytes for each example is too large"),
    ("small floats", lambda x: x.astype(jnp.float8_e5m2).astype(jnp.float32) + loop(x), S, KERNEL_XLA_KERNEL,
     "convert_element_type", "float8_e5m2"),
]


@pytest.mark.parametrize(("fun", "batch", "routes", "primitive", "reason"), [row[1:] for row in ROWS],
                         ids=[row[0] for row in ROWS])
def test_cut_programs(fun: Any, batch: Any, routes: Any, primitive: str, reason: str) -> None:
    same(lambda mapper: mapper(fun)(batch))
    same(lambda mapper: jax.jit(mapper(fun))(batch))
    report = lanax.explain(lanax.vmap(fun), batch)
    assert report.routes == routes
    assert report.misses[0].primitive == primitive
    assert reason in report.misses[0].reason
    assert len(report.kernels) == routes.count("lanes")
    if primitive != "program":
        assert ("only_xla.py" if primitive == "only_xla" else "test_partition.py") in report.misses[0].source


@pytest.mark.parametrize(("fun", "batch"), [row[1:3] for row in ROWS[:5]], ids=[row[0] for row in ROWS[:5]])
def test_the_xla_route_is_one_part(fun: Any, batch: Any) -> None:
    mapped = lanax.vmap(fun, plan=lanax.Plan(route="xla"))
    assert (lanax.explain(mapped, batch).routes, lanax.explain(mapped, batch).misses) == (("xla",), ())
    same(lambda mapper: (mapped if mapper is lanax.vmap else jax.vmap(fun))(batch), rtol=1e-6)


def test_a_large_product_is_in_lanes_where_the_plan_says_so() -> None:
    mapped = lanax.vmap(lambda v: jnp.tanh(v @ WIDE), plan=lanax.Plan(route="lanes"))
    assert lanax.explain(mapped, X).routes == ("lanes",)
    np.testing.assert_allclose(mapped(X), jnp.tanh(X @ WIDE), rtol=2e-5, atol=2e-5)


# ---- what passes from part to part -----------------------------------------------------------------------------------
def mixed(v: Any) -> Any:
    waves = lax.complex(only_xla(loop(v)), v)
    return waves, jnp.abs(waves), v, loop(waves.real), 3.0, v > 1, jnp.zeros((0,)) + v[0]


def test_axes_of_results_of_every_part() -> None:
    same(lambda mapper: mapper(mixed, 1, (1, -1, 0, 1, 0, 1, 1))(X))
    same(lambda mapper: jax.jit(mapper(mixed, 0, (0, 1, -1, 0, 0, -1, 0)))(X))


def test_a_batch_of_none() -> None:
    same(lambda mapper: mapper(mixed)(X[:0]))


def test_keys_pass_from_a_kernel_to_xla() -> None:
    def first_bit(key: Any) -> Any:
        return jax.random.uniform(key) < 0.5

    def fun(key: Any) -> Any:
        first, second = jax.random.split(key)
        drawn = lax.cond(first_bit(second), lambda k: only_xla(jax.random.normal(k)), jax.random.uniform, first)
        return drawn + loop(jax.random.uniform(second)), jax.random.key_data(first)

    keys = jax.random.split(jax.random.key(1), 6)
    same(lambda mapper: mapper(fun)(keys))
    assert "xla" in lanax.explain(lanax.vmap(fun), keys).routes


def test_short_floats_and_bools_pass_between_parts() -> None:
    def large(v: Any, where: Any) -> Any:
        return lax.cond(v[0] > 1, lambda: (only_xla(v) > 1) | where, lambda: where)

    half = X.astype(jnp.bfloat16)
    same(lambda mapper: mapper(lambda v: loop(only_xla(v * 2)).astype(jnp.float32))(half), 1e-2)
    same(lambda mapper: mapper(lambda v: (loop(v), large(v, v > 2) & (v < 2.5)))(X))


def test_64_bits_pass_between_parts() -> None:
    with jax.enable_x64(True):
        same(lambda mapper: mapper(lambda v: (only_xla(loop(v)), loop(v.astype(np.float32))))(
            np.asarray(X, np.float64)))


# ---- callbacks -------------------------------------------------------------------------------------------------------
def test_a_callback_runs_as_often_as_under_jax_vmap() -> None:
    calls: list[int] = []

    def count(x: Any) -> Any:
        calls.append(1)
        return np.sin(x)

    def times(fun: Any, *args: Any) -> int:
        calls.clear()
        jax.block_until_ready(fun(*args))
        return len(calls)

    def shared(x: Any, y: Any) -> Any:
        return loop(x) + called(y, "sequential", count)

    assert times(lanax.vmap(shared, (0, None)), S, S[0]) == times(jax.vmap(shared, (0, None)), S, S[0]) == 1
    assert times(lanax.vmap(shared), S, S) == times(jax.vmap(shared), S, S) == 7


def test_a_callback_without_a_vmap_method_is_refused_as_by_jax() -> None:
    fun = lambda x: loop(jax.pure_callback(np.sin, SCALAR, x))  # noqa: E731
    messages = []
    for mapper in (lanax.vmap, jax.vmap):
        with pytest.raises(NotImplementedError, match="vmap_method") as caught:
            jax.jit(mapper(fun))(S)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_what_is_printed_is_what_jax_vmap_prints(capfd: pytest.CaptureFixture[str]) -> None:
    def fun(x: Any, y: Any) -> Any:
        jax.debug.print("x={} y={}", x, y)
        return loop(x) + y

    printed = []
    for mapper in (lanax.vmap, jax.vmap):
        jax.block_until_ready(jax.jit(mapper(fun, (0, None)))(S[:3], 1.0))
        jax.effects_barrier()
        printed.append(sorted(capfd.readouterr().out.splitlines()))
    assert printed[0] == printed[1]
    assert len(printed[0]) == 3


def test_ordered_effects_keep_their_order() -> None:
    seen: list[float] = []

    def fun(x: Any) -> Any:
        io_callback(lambda a: seen.append(float(a)), None, x.sum(), ordered=True)
        return loop(x)

    def run(mapper: Any) -> Any:
        return lax.scan(lambda c, _: (mapper(lambda v: loop(v) * 0.1)(c), fun(c)), S, length=2)

    same(run)
    jax.effects_barrier()
    assert len(seen) == 4


def test_rules_of_custom_vmap_are_used() -> None:
    @jax.custom_batching.custom_vmap
    def odd(x: Any) -> Any:
        return x * 2

    odd.def_vmap(lambda size, mapped, x: (x * 2 + size, mapped[0]))
    same(lambda mapper: mapper(lambda x: loop(odd(x)))(S))
    same(lambda mapper: mapper(lambda x: lax.fori_loop(0, 3, lambda _, c: odd(c), x))(S))
    same(lambda mapper: mapper(lambda x: loop(jax.custom_batching.sequential_vmap(jnp.sin)(x)))(S))


# ---- transformations of cut programs ---------------------------------------------------------------------------------
def test_derivatives() -> None:
    same(lambda mapper: jax.grad(lambda x: mapper(lambda v: only_xla(jnp.sin(v))[1] * v[0])(x).sum())(X))
    same(lambda mapper: jax.jvp(mapper(lambda v: loop(only_xla(jnp.sin(v)))), (X,), (X,)))
    same(lambda mapper: jax.grad(lambda w: mapper(lambda v: jnp.tanh(v @ w).sum())(X).sum())(WIDE))


def test_nested() -> None:
    same(lambda mapper: mapper(mapper(lambda v: loop(only_xla(v))), 1)(jnp.stack([X, X + 1], 1)))
    same(lambda mapper: mapper(mapper(lambda v, u: loop(only_xla(v)) * u, (0, None)), (None, 0))(X, S))
    same(lambda mapper: jax.vmap(mapper(lambda v: loop(called(v.sum(), "sequential")) * v))(X.reshape(7, 2, 4)))


def test_a_cut_program_in_a_branch_and_in_a_loop() -> None:
    same(lambda mapper: mapper(lambda v: lax.cond(v[0] > 1, lambda: only_xla(v), lambda: loop(v)))(X))
    same(lambda mapper: lax.scan(lambda c, _: (mapper(lambda v: only_xla(v) / 8)(c), c.sum()), X, length=3))


def test_mutable_arrays() -> None:
    def inside(x: Any) -> Any:
        ref = jax.new_ref(x)
        ref[...] += 1
        return loop(ref[...])

    def outside(mapper: Any) -> Any:
        ref = jax.new_ref(jnp.zeros(7))

        def write(x: Any, r: Any) -> None:
            r[...] = x * 2

        mapper(write)(S, ref)
        return ref[...]

    same(lambda mapper: mapper(inside)(S))
    same(outside)


def test_large_results_are_in_lanes():
    """Their memory is new to the process, and kernels have it in large pages."""
    def routes(n: int) -> Any:
        return lanax.explain(lanax.vmap(lambda x: x + 1), jax.ShapeDtypeStruct((n,), np.float32)).routes

    assert routes(1 << 20) == ("xla",)
    assert routes(8 << 20) == ("lanes",)


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.float16, np.float32, np.float64, np.complex64])
def test_results_of_several_pages(dtype: Any) -> None:
    with jax.enable_x64(True):
        x = (np.arange((34 << 20) // np.dtype(dtype).itemsize) % 251).astype(dtype)
        got = lanax.vmap(lambda v: (v, v != 0), plan=lanax.Plan(route="lanes"))(x)
    assert got[0].dtype == x.dtype
    np.testing.assert_array_equal(got[0], x)
    np.testing.assert_array_equal(got[1], x != 0)
