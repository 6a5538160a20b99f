"""Long scans under reverse mode: beyond a bound they keep the carries between chunks of steps, and compute the steps
again; arrays that loops hold and tables that they look up."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import expand
from jax import lax

import lanax
from lanax import _jax
from lanax._rewrite.residuals import computing_again, kept_by_scans
from lanax._rewrite.surgery import inner_jaxprs

P = jnp.asarray([0.7, 0.4], jnp.float32)


def walk(p: Any, x: Any, reverse: bool = False) -> Any:
    """103 steps leave a rest, of whatever length chunks are."""
    def step(h: Any, t: Any) -> Any:
        h = jnp.sin(h * p[0] + t) + p[1]
        return h, jnp.exp(-h * t)

    h, ys = lax.scan(step, x[0], x, reverse=reverse)
    return h * ys[7] + ys @ jnp.cos(x)


def jitted(p: Any, x: Any) -> Any:
    return jax.jit(walk)(p, x) ** 2


def in_a_scan(p: Any, x: Any) -> Any:
    """Steps that keep more than the carries between them."""
    def outer(c: Any, t: Any) -> Any:
        return jnp.tanh(lax.scan(lambda h, s: (jnp.sin(h * p[0] + s * t), None), c, x)[0]), None

    return lax.scan(outer, p[1], x[:20])[0]


def descent(p: Any, x: Any) -> Any:
    """A derivative inside the steps."""
    def steps(p: Any) -> Any:
        return lax.fori_loop(0, 96, lambda i, c: jnp.sin(c * p[0]) + x[i] * p[1], p[1])

    return lax.scan(lambda q, _: (q - 0.1 * jax.grad(steps)(q), None), p, None, 3)[0].sum()


def one_reads_another(p: Any, x: Any) -> Any:
    def first(c: Any, t: Any) -> Any:
        c = jnp.sin(c * p[0] + t)
        return c, jnp.cos(c)

    def second(c: Any, t: Any) -> Any:
        c = jnp.tanh(c * t + p[1])
        return c, c * t

    last, ys = lax.scan(first, p[1], x)
    last, zs = lax.scan(second, last, ys, reverse=True)
    return last + zs.sum()


def of_several_kinds(p: Any, x: Any) -> Any:
    """Keys, integers and complex numbers beside floats."""
    def step(state: Any, given: Any) -> Any:
        c, n, z = state
        key, t = given
        z = z * (0.5 + 0.3j) + 0.1 * c
        return (0.5 * jnp.sin(c * p[0]) + jax.random.normal(key) * t + 0.1 * z.real, n + (c > 0), z), n

    state = (p[1], jnp.int32(0), jnp.complex64(0))
    (c, n, z), ns = lax.scan(step, state, (jax.random.split(jax.random.key(3), 50), x[:50]))
    return c * n + jnp.abs(z) + ns.sum()


@pytest.mark.parametrize("fun", [walk, in_a_scan], ids=lambda f: f.__name__)
def test_they_are_computed_again(fun: Any) -> None:
    """Inside a mapped function and around it."""
    xs = jnp.linspace(-1.0, 1.0, 5 * 103, dtype=jnp.float32).reshape(5, 103)
    want = jax.jit(jax.vmap(jax.grad(fun, (0, 1)), (None, 0)))(P, xs)
    found = []
    for memory in ("16KiB", "1GiB"):
        plan = lanax.Plan(memory=memory, route="lanes")
        inside = lanax.vmap(jax.grad(fun, (0, 1)), (None, 0), plan=plan)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-5), inside(P, xs), want)
        report = lanax.explain(inside, P, xs)
        assert report.routes == ("lanes",)
        found.append(report.kernels[0].scratch_bytes)

        def loss(p: Any, x: Any, plan: Any = plan) -> Any:
            return lanax.vmap(fun, (None, 0), plan=plan)(p, x).sum()

        p, x = jax.jit(jax.grad(loss, (0, 1)))(P, xs)
        np.testing.assert_allclose(p, want[0].sum(0), rtol=2e-4, atol=2e-5)
        np.testing.assert_allclose(x, want[1], rtol=2e-4, atol=2e-5)
    assert 2 * found[0] < found[1]


PROGRAMS: dict[str, Any] = {
    "backwards": jax.grad(functools.partial(walk, reverse=True), (0, 1)),
    "hessian": jax.hessian(walk),
    "grad of grad": jax.grad(lambda p, x: jax.grad(walk)(p, x).sum()),
    "calls": jax.grad(jitted),
    "one reads another": jax.grad(one_reads_another, (0, 1)),
    "several kinds": jax.grad(of_several_kinds, (0, 1)),
}


@pytest.mark.parametrize("fun", PROGRAMS.values(), ids=PROGRAMS)
def test_programs_keep_less_and_compute_the_same(fun: Any) -> None:
    x = jnp.linspace(-1.0, 1.0, 103)
    (call,) = lanax.vmap(fun, (None, 0)).lower(P, x[None])._calls
    jaxpr, args = call.stages.expanded, [*call.stages.consts, P, x]
    lean = computing_again(jaxpr, 360, lambda _: True, expand)
    assert 2 * kept_by_scans(lean) < kept_by_scans(jaxpr)
    both = (jax.jit(_jax.jaxpr_as_fun(program))(*args) for program in (lean, jaxpr))
    for got, want in zip(*both, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)
    assert computing_again(jaxpr, 1 << 20, lambda _: True, expand) is jaxpr
    assert computing_again(jaxpr, 360, lambda _: False, expand) is jaxpr


def test_what_others_read_is_kept() -> None:
    """A trajectory that is a result, too."""
    def both(p: Any, x: Any) -> Any:
        def trajectory(p: Any) -> Any:
            def step(h: Any, t: Any) -> Any:
                h = jnp.sin(h * p[0] + t) + p[1]
                return h, h

            return lax.scan(step, x[0], x)[1]

        ys, back = jax.vjp(trajectory, p)
        return ys, back(jnp.cos(ys))

    xs = jnp.linspace(-1.0, 1.0, 3 * 103, dtype=jnp.float32).reshape(3, 103)
    got = lanax.vmap(both, (None, 0), plan=lanax.Plan(memory="16KiB"))(P, xs)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), got,
                 jax.vmap(both, (None, 0))(P, xs))


def test_a_very_long_one_stays_in_lanes() -> None:
    """It would keep 8 MB for each example."""
    def fun(x: Any) -> Any:
        return lax.fori_loop(0, 2_000_000, lambda _, c: c * c * 0.25 + x, x)

    mapped = lanax.vmap(jax.grad(fun))
    report = lanax.explain(mapped, jnp.zeros(64))
    assert report.routes == ("lanes",)
    assert report.kernels[0].scratch_bytes < 1 << 22


def test_large_tables_are_looked_up_in_lanes() -> None:
    """They lie where they are, and no lane has a copy."""
    table = jnp.sin(jnp.arange(500_000.0))

    def fun(x: Any, table: Any) -> Any:
        def step(k: Any, v: Any) -> Any:
            i = (jnp.abs(v) * 4e4).astype(int) % table.size
            return v * 0.5 + table[i] + lax.dynamic_slice(table, (i + k,), (2,)).sum()

        return lax.fori_loop(0, 20, step, x)

    x = jnp.linspace(0.0, 9.0, 37)
    mapped = lanax.vmap(fun, (0, None))
    report = lanax.explain(mapped, x, table)
    assert report.routes == ("lanes",)
    assert report.kernels[0].scratch_bytes < 1 << 16
    np.testing.assert_allclose(mapped(x, table), jax.vmap(fun, (0, None))(x, table), rtol=1e-5)


def test_large_arrays_that_examples_have_go_to_xla() -> None:
    def fun(v: Any) -> Any:
        return lax.fori_loop(0, 9, lambda i, c: c.at[i * 3].add(c[i]), v).sum()

    for size, route in ((400_000, "lanes"), (2_000_000, "xla")):
        assert route in lanax.explain(lanax.vmap(fun), jax.ShapeDtypeStruct((8, size), np.float32)).routes


def test_depth() -> None:
    """Cut scans are found at any depth."""
    def fun(p: Any) -> Any:
        return lax.while_loop(lambda q: q[0] < 2, lambda q: q + jax.grad(descent)(q, jnp.linspace(-1, 1, 103)) ** 2, p)

    mapped = lanax.vmap(fun, plan=lanax.Plan(memory="16KiB"))
    x = jnp.asarray([[0.1, 0.2], [1.9, 0.3], [0.4, 0.4]])
    (call,) = mapped.lower(x)._calls
    (loop,) = [e for e in call.stages.expanded.eqns if e.primitive.name == "while"]
    assert max(kept_by_scans(inner) for inner in inner_jaxprs(loop)) < 256
    np.testing.assert_allclose(mapped(x), jax.vmap(fun)(x), rtol=1e-4)
