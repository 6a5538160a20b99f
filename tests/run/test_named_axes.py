"""Collectives over named axes inside a mapped function: what `jax.vmap` gives, and what stays in lanes around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import lanax

N = 6
S = jnp.linspace(0.2, 2.0, N)
M = jnp.linspace(0.1, 3.0, N * N).reshape(N, N)
CUBE = jnp.linspace(-1.0, 2.0, N * 4 * 3).reshape(N, 4, 3)
I = jnp.arange(N) * 7 % 4  # noqa: E741

Mapper = Callable[..., Any]


def loop(v: Any) -> Any:
    """Something that gains in lanes."""
    return lax.while_loop(lambda u: (u * u).sum() < 90, lambda u: u * 1.5 + 0.1, v)


def smooth(v: Any) -> Any:
    return lax.fori_loop(0, 3, lambda _, u: jnp.sin(u) + v, v)


def close(got: Any, want: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (jnp.shape(x), jnp.result_type(x)) == (jnp.shape(y), jnp.result_type(y))
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=5e-5, atol=1e-5)


def same(with_mapper: Callable[[Mapper], Any]) -> None:
    """`with_mapper(lanax.vmap)` gives what `with_mapper(jax.vmap)` does, jitted too."""
    want = with_mapper(jax.vmap)
    close(with_mapper(lanax.vmap), want)
    close(jax.jit(lambda: with_mapper(lanax.vmap))(), want)


AROUND = ("lanes", "xla", "lanes")
RING = [(k, (k + 1) % N) for k in range(N)]

#: Name, function of one example over the axis "i", arguments, routes.
ROWS: list[tuple[str, Any, tuple[Any, ...], tuple[str, ...]]] = [
    ("psum", lambda x: loop(x / lax.psum(loop(x), "i")), (S,), AROUND),
    ("psum of a uniform value", lambda x: loop(x) + lax.psum(jnp.sin(2.0), "i"), (S,), ("lanes", "xla")),
    ("psum of a number", lambda x: loop(x) + lax.psum(1, "i"), (S,), ("lanes",)),
    ("size", lambda x: loop(x) + lax.axis_size("i"), (S,), ("lanes",)),
    ("psum of a tree", lambda x, k: lax.psum({"x": loop(x), "k": k}, "i"), (S, I), ("xla", "lanes", "xla")),
    ("pmean twice", lambda v: ((u := loop(v)) - lax.pmean(u, "i")) * lax.rsqrt(
        lax.pmean(lax.square(u - lax.pmean(u, "i")), "i") + 1), (M,), ("lanes", "xla")),
    ("nothing but sweeps between", lambda v: jax.nn.relu(v - lax.pmean(v, "i")) / lax.psum(v * v, "i"), (M,), ("xla",)),
    ("pmax and pmin", lambda x, k: loop(x + 0.1 * lax.pmax(loop(x), "i")) + lax.pmin(k, "i"), (S, I), ("xla", *AROUND)),
    ("all_gather", lambda x: loop(lax.all_gather(loop(x), "i")[2] * x), (S,), AROUND),
    ("all_gather, tiled", lambda v: loop(lax.all_gather(loop(v), "i", axis=0, tiled=True).sum() * v[:2] * 0.001), (M,),
     AROUND),
    ("ppermute", lambda x: loop(lax.ppermute(loop(x), "i", RING) * 0.1), (S,), AROUND),
    ("pshuffle", lambda x: loop(lax.pshuffle(loop(x), "i", [3, 1, 0, 2, 5, 4]) * 0.1), (S,), AROUND),
    ("all_to_all", lambda v: loop(lax.all_to_all(loop(v), "i", 0, 0) * 0.1), (M,), AROUND),
    ("psum_scatter", lambda v: loop(lax.psum_scatter(loop(v), "i") * 0.01), (M,), AROUND),
    ("an index", lambda x: loop(x + lax.axis_index("i")), (S,), ("lanes",)),
    ("an index at several places", lambda x: loop(x) * lax.axis_index("i") + jnp.float32(lax.axis_index("i") % 2), (S,),
     ("lanes",)),
    ("an index in a loop", lambda x: lax.fori_loop(0, lax.axis_index("i"), lambda k, c: c + k * lax.axis_index("i"), x),
     (S,), ("lanes",)),
    ("an index in a scan", lambda v: lax.scan(lambda c, x: (c * 0.5 + x, c + lax.axis_index("i")), 0.0, v), (M,),
     ("lanes",)),
    ("an index in a branch", lambda x: loop(lax.cond(x > 1, lambda: x * lax.axis_index("i"), lambda: -x) + 3), (S,),
     ("lanes",)),
    ("an index in a jitted function in a loop", lambda x: lax.while_loop(
        lambda c: c < 20, jax.jit(lambda c: c * 2 + lax.axis_index("i")), x), (S,), ("lanes",)),
    ("an index under remat", lambda x: loop(jax.checkpoint(lambda u: jnp.sin(u) + lax.axis_index("i"))(x)), (S,),
     ("xla", "lanes")),
    ("an element for each example", lambda x: loop(x + jnp.arange(10.0)[lax.axis_index("i")]), (S,), ("lanes",)),
    ("in a loop", lambda x: loop(0.1 * lax.fori_loop(0, 3, lambda _, c: c / lax.psum(c, "i"), loop(x))), (S,), AROUND),
    ("in a branch", lambda x: loop(lax.cond(x > 1, lambda: lax.psum(x, "i"), lambda: x) * 0.1), (S,), ("xla", "lanes")),
    ("in a jitted function", lambda x: jax.jit(lambda u: loop(u / lax.psum(loop(u), "i")))(x * 2), (S,), AROUND),
    ("a name of which nothing is asked", lambda x: loop(x), (S,), ("lanes",)),
    ("a result that is not used", lambda x: (lax.psum(x, "i"), loop(x))[1], (S,), ("lanes",)),
]


@pytest.mark.parametrize(("fun", "args", "routes"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_collectives(fun: Any, args: tuple[Any, ...], routes: tuple[str, ...]) -> None:
    same(lambda mapper: mapper(fun, axis_name="i")(*args))
    report = lanax.explain(lanax.vmap(fun, axis_name="i"), *args)
    assert report.routes == routes
    assert len(report.kernels) == routes.count("lanes")
    assert all("test_named_axes.py" in str(miss) for miss in report.misses)
    assert not report.misses or any("along the axis 'i'" in miss.reason for miss in report.misses)


def test_routes_that_the_plan_sets() -> None:
    for route in ("lanes", "xla", "serial"):
        mapped = lanax.vmap(ROWS[0][1], axis_name="i", plan=lanax.Plan(route=route))
        close(mapped(S), jax.vmap(ROWS[0][1], axis_name="i")(S))


def test_axes_tails_and_unmapped_arguments() -> None:
    def fun(v: Any, w: Any, k: Any) -> Any:
        u = loop(v) * w
        total = lax.psum(u, "i")
        return u / total, total, lax.axis_index("i"), loop(v * lax.pmax(w, "i")), w, lax.psum(k, "i")

    for size in (1, 33, 100):
        batch = jnp.linspace(0.1, 2.0, 3 * size).reshape(3, size)
        same(lambda mapper, batch=batch: mapper(fun, (1, None, None), (1, None, 0, -1, None, None), axis_name="i")(
            batch, jnp.float32(2), jnp.int32(3)))
        same(lambda mapper, batch=batch, size=size: mapper(fun, (1, None, 0), (-1, None, 0, 0, None, None),
                                                           axis_name="i")(batch, 2.0, jnp.arange(size)))


def test_a_name_that_is_no_string() -> None:
    same(lambda mapper: mapper(lambda x: loop(x / lax.psum(x, 7.5)), axis_name=7.5)(S))


# ---- several axes ----------------------------------------------------------------------------------------------------
#: Each takes a function of one example over the axes "o" (outer) and "i" (inner), and two mappers.
NESTINGS: dict[str, Callable[[Any, Mapper, Mapper], Any]] = {
    "both mapped": lambda f, outer, inner: outer(inner(f, axis_name="i"), axis_name="o")(CUBE),
    "other axes": lambda f, outer, inner: outer(inner(f, 1, 1, axis_name="i"), 2, 2, axis_name="o")(
        CUBE.transpose(2, 1, 0)),
    "each with each": lambda f, outer, inner: outer(
        inner(lambda v, w: f(v * w), (0, None), axis_name="i"), (None, 0), axis_name="o")(CUBE[0], jnp.arange(1.0, 3)),
}

TWO_AXES: dict[str, Callable[[Any], Any]] = {
    "inner": lambda v: loop(v) / lax.psum(v, "i"),
    "outer": lambda v: loop(v) / (lax.psum(loop(v), "o") + 1),
    "both": lambda v: loop(v) / (lax.psum(loop(v), ("o", "i")) + 1),
    "one after the other": lambda v: loop(lax.pmax(loop(v), "i")) + lax.pmin(v, "o"),
    "indices": lambda v: loop(v + lax.axis_index("o") * 10 + lax.axis_index("i")),
    "an index over both": lambda v: loop(v + lax.axis_index(("o", "i"))),
    "all_gather": lambda v: loop(v) + lax.all_gather(v, "o").sum(0) + lax.all_gather(v, "i").sum(0),
    "ppermute": lambda v: lax.ppermute(loop(v), "i", [(k, (k + 1) % 4) for k in range(4)]) + v,
}


@pytest.mark.parametrize("nesting", NESTINGS.values(), ids=NESTINGS)
@pytest.mark.parametrize("fun", TWO_AXES.values(), ids=TWO_AXES)
def test_nested(fun: Any, nesting: Any) -> None:
    want = nesting(fun, jax.vmap, jax.vmap)
    for outer, inner in ((lanax.vmap, lanax.vmap), (jax.vmap, lanax.vmap)):
        close(jax.jit(lambda outer=outer, inner=inner: nesting(fun, outer, inner))(), want)


def test_a_collective_over_an_outer_axis_is_cut_out() -> None:
    def fun(x: Any) -> Any:
        return loop(x / lax.psum(loop(x), "o"))

    reports = []
    jax.vmap(lambda row: reports.append(lanax.explain(lanax.vmap(fun), row)) or row, axis_name="o")(M)
    assert reports[0].routes == AROUND
    assert "along the axis 'o'" in str(reports[0])


def over_the_mesh(v: Any) -> Any:
    return smooth(v) / lax.psum(smooth(v), "d") + lax.axis_index("d") + lax.axis_index("i")


def over_both(v: Any) -> Any:
    return smooth(v) / lax.psum(smooth(v), ("d", "i")) + lax.pmax(v, "i") + lax.axis_index("i")


# JAX's own collectives over an axis of vmap fail where the types of a mesh are checked.
@pytest.mark.parametrize(("fun", "check"), [(over_the_mesh, True), (over_the_mesh, False), (over_both, False)])
def test_inside_shard_map(fun: Any, check: bool) -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",))

    def mapped(mapper: Mapper) -> Any:
        return jax.shard_map(mapper(fun, axis_name="i"), mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=check)

    same(lambda mapper: mapped(mapper)(M))
    if fun is over_the_mesh:
        same(lambda mapper: jax.grad(lambda x: mapped(mapper)(x).sum())(M))


def test_a_name_for_spmd_is_left_to_jax_vmap() -> None:
    mapped = lanax.vmap(lambda x: loop(x), spmd_axis_name="d")
    close(mapped(S), jax.vmap(loop)(S))
    assert "SPMD" in str(lanax.explain(mapped, S))


def test_a_name_that_is_not_bound() -> None:
    for mapper in (lanax.vmap, jax.vmap):
        with pytest.raises(NameError, match="unbound axis name: nowhere"):
            mapper(lambda x: loop(lax.psum(x, "nowhere")), axis_name="i")(S)


# ---- derivatives -----------------------------------------------------------------------------------------------------
def normalised(v: Any) -> Any:
    u = smooth(v)
    centred = u - lax.pmean(u, "i")
    return smooth(centred * lax.rsqrt(lax.pmean(centred * centred, "i") + 0.1)) * (1 + lax.axis_index("i"))


@jax.custom_vjp
def summed_gradient(x: Any) -> Any:
    return jnp.sin(x)


summed_gradient.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (lax.psum(smooth(ct), "i") * jnp.cos(x),))


@jax.custom_jvp
def indexed_tangent(x: Any) -> Any:
    return jnp.cos(x)


@indexed_tangent.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return indexed_tangent(x), lax.psum(t, "i") * 0.1 + t * lax.axis_index("i")


FUNCTIONS = {
    "a norm over the batch": normalised,
    "a rule that sums": lambda v: summed_gradient(smooth(v)) * v,
    "a rule that asks for the index": lambda v: indexed_tangent(smooth(v)) * v,
}

DERIVATIVES: dict[str, Callable[[Any, Mapper], Any]] = {
    "grad": lambda f, m: jax.grad(lambda x: m(f, axis_name="i")(x).sum())(M),
    "grad of a shared argument": lambda f, m: jax.grad(lambda w: m(lambda v, w: f(v * w), (0, None), axis_name="i")(
        M, w).sum())(jnp.float32(0.7)),
    "grad under jit": lambda f, m: jax.jit(jax.grad(lambda x: m(f, axis_name="i")(x).sum()))(M),
    "grad inside": lambda f, m: m(jax.grad(lambda v: f(v).sum()), axis_name="i")(M),
    "vjp": lambda f, m: jax.vjp(m(f, axis_name="i"), M)[1](M - 1)[0],
    "grad under another vmap": lambda f, m: jax.vmap(jax.grad(lambda x: m(f, axis_name="i")(x).sum()))(CUBE),
    "grad of another vmap": lambda f, m: jax.grad(lambda x: jax.vmap(m(f, axis_name="i"))(x).sum())(CUBE),
    "grad of an outer axis": lambda f, m: jax.grad(lambda x: jax.vmap(m(f), axis_name="i")(x).sum())(CUBE),
    "grad of an outer axis of lanax": lambda f, m: jax.grad(lambda x: m(m(f), axis_name="i")(x).sum())(CUBE),
    "remat": lambda f, m: jax.grad(lambda x: jax.checkpoint(m(f, axis_name="i"))(x).sum())(M),
}


@pytest.mark.parametrize("derivative", DERIVATIVES.values(), ids=DERIVATIVES)
@pytest.mark.parametrize("fun", FUNCTIONS.values(), ids=FUNCTIONS)
def test_derivatives(fun: Any, derivative: Any) -> None:
    close(derivative(fun, lanax.vmap), derivative(fun, jax.vmap))


@pytest.mark.parametrize("fun", [normalised, FUNCTIONS["a rule that asks for the index"]])
def test_forward_derivatives(fun: Any) -> None:
    same(lambda m: jax.jvp(m(fun, axis_name="i"), (M,), (M + 1,)))
    same(lambda m: jax.vmap(lambda t: jax.jvp(m(fun, axis_name="i"), (M,), (t,))[1])(jnp.stack([M, M + 1])))


def test_second_derivatives() -> None:
    close(jax.hessian(lambda x: lanax.vmap(normalised, axis_name="i")(x).sum())(M[:3]),
          jax.hessian(lambda x: jax.vmap(normalised, axis_name="i")(x).sum())(M[:3]))
