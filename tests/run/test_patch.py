"""`lanax.patch`: other people's `jax.vmap`, `jax.lax.map` and `jnp.vectorize` run on lanax while it is in effect."""

from __future__ import annotations

import functools
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import in_threads
from jax import lax

import lanax
from lanax import Plan

X = jnp.linspace(0.3, 4.0, 11)
VMAP, MAP, VECTORIZE = jax.vmap, lax.map, jnp.vectorize


def grown(x: Any) -> Any:
    return lax.while_loop(lambda v: v < 50, lambda v: v * 1.5 + 1, x)


WANT = np.asarray(VMAP(grown)(X))


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    lanax.unpatch()
    assert (jax.vmap, lax.map, jnp.vectorize) == (VMAP, MAP, VECTORIZE)


def by_lanax(call: Callable[..., Any], *args: Any) -> bool:
    """Whether a call that is traced now is a mapped call of lanax."""
    return "lanax_batched_call" in str(jax.make_jaxpr(lambda *a: call(*a))(*args))


def plan_of(call: Callable[..., Any], *args: Any) -> Plan:
    (eqn,) = (e for e in jax.make_jaxpr(lambda *a: call(*a))(*args).eqns if e.primitive.name == "lanax_batched_call")
    return eqn.params["plan"]


def inline(x: Any) -> Any:
    """As library code has it."""
    return jax.vmap(grown)(x)


def other_module(source: str, name: str = "a_library") -> types.ModuleType:
    module = types.ModuleType(name)
    exec(source, module.__dict__)
    return module


# ---- where it is in effect -------------------------------------------------------------------------------------------
def test_inside_a_block() -> None:
    assert not by_lanax(inline, X)
    with lanax.patch():
        assert by_lanax(inline, X)
        np.testing.assert_array_equal(inline(X), WANT)
    assert not by_lanax(inline, X)


def test_for_the_process() -> None:
    lanax.patch()
    assert by_lanax(inline, X)
    np.testing.assert_array_equal(inline(X), WANT)
    lanax.patch()
    lanax.unpatch()
    assert not by_lanax(inline, X)
    assert jax.vmap is VMAP
    lanax.unpatch()


def test_blocks_in_blocks_and_plans() -> None:
    with lanax.patch(plan=Plan(lanes=4)):
        assert plan_of(inline, X).lanes == 4
        with lanax.patch(plan=Plan(lanes=8)):
            assert plan_of(inline, X).lanes == 8
            lanax.unpatch()
            assert plan_of(inline, X).lanes == 8, "unpatch does not end a block"
        assert plan_of(inline, X).lanes == 4
    lanax.patch(plan=Plan(threads=1))
    with lanax.patch(plan=Plan(lanes=2)):
        assert plan_of(inline, X).lanes == 2
    assert plan_of(inline, X).threads == 1


def test_a_block_left_by_an_error_is_undone() -> None:
    with pytest.raises(ZeroDivisionError), lanax.patch():
        jax.vmap(lambda x: x / (1 // 0))(X)
    assert jax.vmap is VMAP
    assert not by_lanax(inline, X)


def test_a_wrong_plan_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"`plan` of lanax\.patch must be a lanax\.Plan or None; got int: 3"):
        lanax.patch(plan=3)  # type: ignore[arg-type]
    assert jax.vmap is VMAP


def test_a_block_is_of_its_thread() -> None:
    found: dict[str, bool] = {}
    inside, done = threading.Event(), threading.Event()

    def patched() -> None:
        with lanax.patch():
            inside.set()
            done.wait(60)
            found["patched"] = by_lanax(inline, X)

    def other() -> None:
        inside.wait(60)
        found["other"] = by_lanax(inline, X)
        done.set()

    run = [threading.Thread(target=t) for t in (patched, other)]
    for t in run:
        t.start()
    for t in run:
        t.join()
    assert found == {"patched": True, "other": False}


def test_many_threads_patch_at_once() -> None:
    wrong: list[Any] = []
    start = threading.Barrier(6)

    def work(k: int) -> None:
        start.wait()
        for i in range(20):
            plan = Plan(lanes=1 << ((i + k) % 4))
            with lanax.patch(plan=plan):
                if plan_of(inline, X) != plan:
                    wrong.append((k, i, plan))

    in_threads(work, 6)
    assert wrong == []


def test_a_patch_for_the_process_is_in_every_thread() -> None:
    lanax.patch()
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(by_lanax(inline, X)))
    thread.start()
    thread.join()
    assert found == [True]


# ---- what is jitted --------------------------------------------------------------------------------------------------
def test_what_was_jitted_before_is_traced_anew_inside_and_after() -> None:
    traced: list[str] = []

    @jax.jit
    def library(x: Any) -> Any:
        traced.append(type(jax.vmap(grown)).__name__)
        return jax.vmap(grown)(x)

    np.testing.assert_array_equal(library(X), WANT)
    with lanax.patch():
        np.testing.assert_array_equal(library(X), WANT)
        np.testing.assert_array_equal(library(X), WANT)
    np.testing.assert_array_equal(library(X), WANT)
    assert traced == ["function", "Mapped"], "once without, once with; after the block the first is used"
    lanax.patch()
    np.testing.assert_array_equal(library(X), WANT)
    assert traced == ["function", "Mapped", "Mapped"]


def test_what_is_mapped_inside_stays_so() -> None:
    before = jax.vmap(grown)
    with lanax.patch():
        inside = jax.vmap(grown)
        assert not by_lanax(before, X)
    assert by_lanax(inside, X)


# ---- what is served --------------------------------------------------------------------------------------------------
def test_lax_map() -> None:
    with lanax.patch():
        assert plan_of(lambda x: lax.map(grown, x), X).route == "serial"
        assert plan_of(lambda x: jax.lax.map(grown, x, batch_size=4), X).chunk == 4
        np.testing.assert_array_equal(lax.map(grown, xs=X), WANT)
        with pytest.raises(ValueError, match="scan got value with no leading axis to scan over"):
            lax.map(grown, 1.0)


def test_vectorize() -> None:
    def distance(a: Any, b: Any) -> Any:
        return grown(jnp.abs(a - b).sum())

    a, b = jnp.ones((2, 1, 3)), jnp.linspace(0, 1, 12).reshape(4, 3)
    want = VECTORIZE(distance, signature="(n),(n)->()")(a, b)
    with lanax.patch():
        by_signature = jnp.vectorize(distance, signature="(n),(n)->()")
        assert by_lanax(by_signature, a, b)
        np.testing.assert_array_equal(by_signature(a, b), want)
        assert by_lanax(jnp.vectorize(grown, excluded=()), X)
        np.testing.assert_array_equal(functools.partial(jnp.vectorize, excluded={1})(lambda x, n: grown(x) * n)(X, 2),
                                      WANT * 2)
    assert not by_lanax(jnp.vectorize(grown), X)


def test_options_of_vmap() -> None:
    def fun(x: Any, y: Any) -> Any:
        return grown(x) * y, lax.axis_size("i")

    with lanax.patch():
        got = jax.vmap(fun, (0, None), out_axes=(0, None), axis_name="i", axis_size=11)(X, 2.0)
        np.testing.assert_array_equal(got[0], WANT * 2)
        assert got[1] == 11
        with pytest.raises(TypeError, match="vmap in_axes must be an int, None, or"):
            jax.vmap(fun, in_axes="a")
        with pytest.raises(TypeError, match="unexpected keyword argument 'nothing'"):
            jax.vmap(fun, nothing=1)
    assert jax.vmap.__name__ == "vmap"


def test_a_module_that_holds_them_under_names_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    library = other_module("""
import functools
from jax import vmap
from jax import vmap as batched
from jax.lax import map as loop
from jax.numpy import vectorize
over_rows = functools.partial(vmap, in_axes=(0, None), out_axes=0)
""")
    held = dict(vars(library))
    monkeypatch.setitem(sys.modules, "a_library", library)
    with lanax.patch():
        for call in (library.vmap(grown), library.batched(grown), lambda x: library.loop(grown, x),
                     library.vectorize(grown)):
            assert by_lanax(call, X)
        rows = library.over_rows(lambda x, y: grown(x) * y)
        assert by_lanax(rows, X, 2.0)
        np.testing.assert_array_equal(rows(X, 2.0), WANT * 2)
    assert all(vars(library)[name] is value for name, value in held.items())


def test_a_name_that_was_taken_by_something_else_meanwhile_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    library = other_module("from jax import vmap")
    monkeypatch.setitem(sys.modules, "a_library", library)
    with lanax.patch():
        library.vmap = "something else"
    assert library.vmap == "something else"


def test_a_module_imported_inside_gets_jax_back_after_it() -> None:
    with lanax.patch():
        library = other_module("from jax import vmap")
        assert by_lanax(library.vmap(grown), X)
    assert not by_lanax(library.vmap(grown), X)
    np.testing.assert_array_equal(library.vmap(grown)(X), WANT)


def test_equinox() -> None:
    class Model(eqx.Module):
        w: jax.Array

        def __call__(self, x: Any) -> Any:
            return grown(x * self.w)

    model = Model(jnp.float32(0.5))
    want = eqx.filter_vmap(model)(X)
    with lanax.patch():
        assert by_lanax(lambda x: eqx.filter_vmap(model)(x), X)
        np.testing.assert_array_equal(eqx.filter_jit(eqx.filter_vmap(model))(X), want)
        ensemble = eqx.filter_vmap(Model)(X)
        by_axes = eqx.filter_vmap(lambda m, x: m(x), in_axes=(eqx.if_array(0), None))
        np.testing.assert_array_equal(by_axes(ensemble, 2.0), eqx.filter_vmap(lambda m: m(2.0))(ensemble))


# ---- what goes on as it was ------------------------------------------------------------------------------------------
def test_jax_goes_on_with_its_own() -> None:
    matrix = jnp.linspace(0, 1, 9).reshape(3, 3) + 2 * jnp.eye(3)

    def calls() -> Any:
        return (jax.jacfwd(lambda x: x**2)(X), jax.jacrev(lambda x: x**2)(X), jax.hessian(lambda x: (x**3).sum())(X),
                jnp.linalg.solve(jnp.stack([matrix] * 4), jnp.ones((4, 3, 1))),
                jnp.apply_along_axis(jnp.sum, 0, matrix), jax.scipy.linalg.expm(matrix),
                jnp.vectorize(jnp.dot, signature="(n),(n)->()")(matrix, matrix))

    want = calls()
    with lanax.patch():
        got = calls()
        assert not by_lanax(jax.jacfwd(lambda x: x**2), X)
        assert not by_lanax(lambda m: jnp.linalg.solve(m, jnp.ones((4, 3, 1))), jnp.stack([matrix] * 4))
        assert not by_lanax(lambda m: jax.scipy.linalg.expm(m), jnp.stack([matrix] * 4))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_lanax_inside() -> None:
    """It maps by JAX's own function, and so do programs that are left to `jax.vmap`."""
    with lanax.patch():
        np.testing.assert_array_equal(lanax.vmap(grown)(X), WANT)
        np.testing.assert_array_equal(jax.vmap(lambda x: lax.psum(grown(x), "i"), axis_name="i")(X),
                                      VMAP(lambda x: lax.psum(grown(x), "i"), axis_name="i")(X))
        np.testing.assert_array_equal(lanax.map(lambda x: jax.vmap(grown)(jnp.stack([x, x])), X)[:, 0], WANT)
        np.testing.assert_array_equal(jax.vmap(lambda x: jax.vmap(grown)(x))(X[:, None])[:, 0], WANT)
        np.testing.assert_allclose(jax.vmap(jax.grad(lambda x: jax.vmap(jnp.sin)(x).sum()))(X[:, None]),
                                   jnp.cos(X[:, None]), rtol=1e-6)


def test_an_error_is_at_the_users_line() -> None:
    def wrong(x: Any) -> Any:
        return jnp.ones(3) + jnp.ones(4) * x

    with lanax.patch(), pytest.raises(TypeError, match="incompatible shapes"):
        jax.vmap(wrong)(X)
