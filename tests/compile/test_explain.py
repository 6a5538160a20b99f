"""What `lanax.explain` says beside the plan: work, bounds, loops, branches, hints; and the warning of costly misses."""

from __future__ import annotations

import functools
import gc
import json
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanax
from lanax._pipeline import equation_cost
from lanax._planning.partition import Miss
from lanax._planning.work import lines_of, work_of
from lanax._reports.hints import hint

X = np.linspace(0.1, 3, 1003, dtype=np.float32)
HERE = "test_explain.py"


def nested(x: Any, n: Any) -> Any:
    """A varying loop around a varying branch and a scan; then a uniform loop and a uniform branch."""

    def step(v: Any) -> Any:
        return lax.cond(v > 2, lambda v: lax.fori_loop(0, 7, lambda _, u: jnp.sin(u), v), lambda v: v, v) + 1

    y = lax.while_loop(lambda v: v < 9, step, x)
    y = lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * 0.5), (0, y))[1]
    return lax.cond(n > 3, jnp.cos, jnp.exp, y)


def kernel_of(fun: Any, *args: Any, in_axes: Any = 0, **plan: Any) -> Any:
    (kernel,) = lanax.explain(lanax.vmap(fun, in_axes, plan=lanax.Plan(**plan)), *args).kernels
    return kernel


# ---- loops and branches ----------------------------------------------------------------------------------------------
def test_loops_and_branches_are_listed() -> None:
    sites = kernel_of(nested, X, jnp.int32(4), in_axes=(0, None)).control_flow
    found = [(s.kind, s.depth, s.varying, s.trips) for s in sites]
    assert found[:3] == [("while", 0, True, None), ("cond", 1, True, None), ("scan", 2, False, 7)]
    assert ("while", 0, False, None) in found[3:]
    line = nested.__code__.co_firstlineno + 6
    assert f"{HERE}:{line} (nested)" in sites[0].source
    text = str(lanax.explain(lanax.vmap(nested, (0, None)), X, jnp.int32(4)))
    assert f"    while at {sites[0].source}: varying: runs while any lane is active" in text
    assert f"      cond at {sites[1].source}: varying: a side runs where any lane takes it" in text
    assert "uniform: 7 trips for all" in text
    assert "uniform: all lanes leave it together" in text


def test_what_jit_has_traced_before_is_explained() -> None:
    x = jnp.arange(1.0, 9.0)
    run = jax.jit(lanax.vmap(lambda v: jax.lax.while_loop(lambda s: s < 99, lambda s: s * 2, v)))
    want = run(x)

    def outer(v: jax.Array) -> jax.Array:
        return run(v) + 1

    for fun in (run, outer, run):
        report = lanax.explain(fun, x)
        assert (report.axis_size, report.routes) == (8, ("lanes",))
        assert lanax.explain(fun, x, plan=lanax.Plan(threads=1)).kernels[0].threads == 1
    np.testing.assert_array_equal(run(x), want)


def test_a_varying_count_makes_the_second_loop_vary() -> None:
    sites = kernel_of(nested, X, np.arange(1003, dtype=np.int32)).control_flow
    assert all(s.varying for s in sites if s.kind == "while")


# ---- work and bounds -------------------------------------------------------------------------------------------------
def test_bytes_and_operations_of_an_example() -> None:
    kernel = kernel_of(lambda x: lax.fori_loop(0, 10, lambda _, y: y * y + 0.5, x), X, route="lanes")
    assert (kernel.bytes_in, kernel.bytes_out) == (4, 4)
    assert kernel.work.flops == 20
    assert not kernel.assumes_trips
    assert "each example: 4 bytes in, 4 out" in str(kernel.lines())
    assert kernel.in_flight == kernel.lanes * kernel.threads
    assert kernel_of(jnp.sin, X[:3], route="lanes").in_flight == 3


def test_a_loop_of_unknown_end_is_taken_as_16_trips() -> None:
    kernel = kernel_of(lambda x: lax.while_loop(lambda v: v < 9, lambda v: v * 1.5, x), X)
    assert kernel.work.flops == 16 * 2  # a comparison and a product
    assert "taking loops of unknown end as 16 trips" in str(kernel.lines())
    assert kernel.to_dict()["assumed_trips"] == 16


def test_bounds_are_ordered_and_follow_the_work() -> None:
    divides = kernel_of(lambda x: lax.fori_loop(0, 200, lambda _, y: 1 / y, x), X).bounds
    assert set(divides) == {"arithmetic", "division and square root", "memory", "latency"}
    assert list(divides.values()) == sorted(divides.values(), reverse=True)
    assert divides["division and square root"] > divides["memory"]
    few, many = (kernel_of(lambda x: lax.fori_loop(0, 20, lambda _, y: y * y + x, x), np.ones(n, np.float32)).bounds
                 for n in (10_000, 100_000))
    assert many["memory"] == pytest.approx(10 * few["memory"])
    assert many["arithmetic"] >= few["arithmetic"]


M = jax.ShapeDtypeStruct((6, 6), np.float32)
V = jax.ShapeDtypeStruct((6, 2), np.float32)
#: Function, arguments, operations by the textbook.
MATRICES: dict[str, tuple[Any, tuple[Any, ...], float]] = {
    "lu": (lambda a: lax.linalg.lu(a)[0], (M,), 2 / 3 * 6**3),
    "cholesky": (lambda a: lax.linalg.cholesky(a, symmetrize_input=False), (M,), 6**3 / 3),
    "qr": (lambda a: lax.linalg.qr(a, full_matrices=False), (M,), 8 / 3 * 6**3),
    "eigh": (lambda a: lax.linalg.eigh(a, symmetrize_input=False), (M,), 9 * 6**3),
    "svd": (lambda a: lax.linalg.svd(a, full_matrices=False), (M,), 22 * 6**3),
    "singular values": (lambda a: lax.linalg.svd(a, compute_uv=False), (M,), 8 / 3 * 6**3),
    "triangular solve": (lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True), (M, V), 6**2 * 2),
    "lu, tall": (lambda a: lax.linalg.lu(a)[0], (jax.ShapeDtypeStruct((9, 4), np.float32),), 9 * 16 - 64 / 3),
}


@pytest.mark.parametrize("name", MATRICES)
def test_operations_of_matrices(name: str) -> None:
    fun, args, flops = MATRICES[name]
    assert work_of(jax.make_jaxpr(fun)(*args).jaxpr, equation_cost).flops == pytest.approx(flops)


def test_the_cost_of_an_array_is_counted_once() -> None:
    one, many = (work_of(jax.make_jaxpr(jnp.sin)(np.ones(n, np.float32)).jaxpr, equation_cost) for n in (1, 10))
    assert many.flops == pytest.approx(10 * one.flops)


def test_instructions_by_line() -> None:
    def fun(x: Any) -> Any:
        y = lax.fori_loop(0, 50, lambda _, v: jnp.sin(v), x)
        return y + 1

    found = lines_of(jax.make_jaxpr(fun)(np.float32(1)).jaxpr, equation_cost)
    total = sum(found.values())
    first = fun.__code__.co_firstlineno
    loop = sum(part for line, part in found.items() if f"{HERE}:{first + 1}" in line)
    assert 0.9 < loop / total < 1


# ---- misses and hints ------------------------------------------------------------------------------------------------
def sine(v: Any) -> Any:
    return jax.pure_callback(np.sin, v, v, vmap_method="expand_dims")


def looped(x: Any) -> Any:
    return lax.fori_loop(0, 3, lambda _, v: sine(v), x)


def printing(x: Any) -> Any:
    jax.debug.print("{}", x)
    return x


#: Function of one example, and what its hint names.
HINTS: dict[str, tuple[Any, str]] = {
    "callback": (lambda x: sine(x) * 2, "calls Python on the host"),
    "callback in a loop": (looped, "calls Python on the host"),
    "Python if": (lambda x: x if x > 0 else -x, "jax.lax.cond"),
    "NumPy": (lambda x: np.sin(x) + np.asarray(x), "jax.numpy"),
    "a count": (lambda x: x * len(range(x.astype(int))), "jax.lax.fori_loop"),
    "a print": (printing, "return the value and print it"),
    "streaming": (lambda x: x + 1, "Plan(route='lanes')"),
    "a large array": (lambda x: lax.fori_loop(0, 2, lambda _, v: v * 2, jnp.full((600, 600), x)).sum(), "smaller"),
}


@pytest.mark.parametrize("name", HINTS)
def test_each_miss_has_a_hint(name: str) -> None:
    fun, expected = HINTS[name]
    report = lanax.explain(lanax.vmap(fun), X)
    assert any(expected in hint(miss) for miss in report.misses), report
    assert expected in str(report)
    assert any(expected in miss["hint"] for miss in report.to_dict()["misses"])


def test_a_primitive_without_a_rule_leads_to_the_page_that_tells_how() -> None:
    assert "docs/adding_a_primitive.md" in hint(Miss("mine", "", "no lowering rule"))
    assert hint(Miss("mine", "", "something that nobody has said yet")) == ""


def test_a_function_that_cannot_be_traced_names_its_line() -> None:
    def fun(x: Any) -> Any:
        return x if x > 0 else -x

    (miss,) = lanax.explain(lanax.vmap(fun), X).misses
    assert f"{HERE}:{fun.__code__.co_firstlineno}" in miss.source


# ---- forms -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fun", [looped, jnp.sin, lambda x: lax.while_loop(lambda v: v < 9, lambda v: v + sine(v), x)])
def test_a_report_as_json_and_html(fun: Any) -> None:
    report = lanax.explain(lanax.vmap(fun, plan=lanax.Plan(threads=1)), X)
    data = json.loads(json.dumps(report.to_dict()))
    assert (data["name"], data["axis_size"], data["routes"]) == (report.name, 1003, list(report.routes))
    assert data["plan"] == {"threads": 1}
    assert len(data["kernels"]) == len(report.kernels)
    assert len(data["misses"]) == len(report.misses)
    html = report._repr_html_()
    assert html.count("<table") == html.count("</table>") > 0
    assert "<lambda>" not in html  # it is escaped


def test_rich_shows_the_same_text() -> None:
    report = lanax.explain(lanax.vmap(looped), X)
    assert report.__rich__().plain == str(report)


# ---- warnings --------------------------------------------------------------------------------------------------------
@pytest.fixture
def caught() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield found


def test_a_loop_left_to_xla_warns_once_at_the_users_line(caught: list[warnings.WarningMessage]) -> None:
    run = jax.jit(lanax.vmap(looped))
    for _ in range(2):
        np.testing.assert_allclose(run(X), np.sin(np.sin(np.sin(X))), rtol=1e-5)
    (warning,) = caught
    assert warning.category is lanax.PerformanceWarning
    assert warning.filename == __file__
    text = str(warning.message)
    assert text.startswith("lanax: `looped`: its `scan` (")
    assert "`pure_callback`" in text
    assert "lanax.explain" in text


def test_a_function_that_looks_at_values_warns(caught: list[warnings.WarningMessage]) -> None:
    def fun(x: Any, n: Any) -> Any:
        return x * 2 if n > 1 else x

    np.testing.assert_array_equal(lanax.vmap(fun, (0, None))(X, jnp.float32(2)), 2 * X)
    (warning,) = caught
    assert (warning.category, warning.filename) == (lanax.PerformanceWarning, __file__)
    assert "`fun`: the whole function" in str(warning.message)


def loops_of(count: int) -> list[Any]:
    """Functions with a loop that is left to XLA, each by code of its own, all called alike."""
    return [eval(f"lambda x: lax.fori_loop(0, {i + 2}, lambda _, v: sine(v), x)", globals()) for i in range(count)]


def in_a_helper(fun: Any, x: Any) -> Any:
    return lanax.vmap(fun)(x)


@pytest.fixture
def counted() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        yield found


def test_functions_on_one_line_warn_once_each(counted: list[warnings.WarningMessage]) -> None:
    for fun in loops_of(3) * 4:
        in_a_helper(fun, X)
    assert [w.filename for w in counted] == 3 * [__file__]


def test_a_function_warns_once_from_any_line_by_any_shape_and_made_anew(counted: list[warnings.WarningMessage]) -> None:
    def made_anew(factor: float) -> Any:
        return lambda x: lax.fori_loop(0, 3, lambda _, v: sine(v) * factor, x).sum()

    for i in range(4):
        lanax.vmap(made_anew(float(i)))(X[:i + 2])
        jax.jit(lanax.vmap(functools.partial(made_anew(float(i)))))(X)
    lanax.vmap(jax.jit(made_anew(9.0)))(X[:12].reshape(4, 3))
    assert len(counted) == 1


def test_a_function_left_whole_warns_once(counted: list[warnings.WarningMessage]) -> None:
    class Looks:
        def __call__(self, x: Any, n: Any) -> Any:
            return x * 2 if n > 1 else x

    for n in (2, 3):
        lanax.vmap(Looks(), (0, None))(X, jnp.float32(n))
        lanax.vmap(Looks().__call__, (0, None))(X, jnp.float32(n))
    assert len(counted) == 1


def test_filters_work_as_for_any_warning() -> None:
    fun, other, _ = loops_of(3)
    x = X[:7]
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("ignore", lanax.PerformanceWarning)
        jax.jit(lanax.vmap(fun))(x)
        assert not found
        warnings.simplefilter("error", lanax.PerformanceWarning)
        for _ in range(2):
            with pytest.raises(lanax.PerformanceWarning, match="its `scan`"):
                jax.jit(lanax.vmap(fun))(x)
        warnings.simplefilter("always", lanax.PerformanceWarning)
        for count in (1, 2):
            jax.jit(lanax.vmap(fun))(x)
            assert len(found) == count
        warnings.simplefilter("default")
        for _ in range(2):
            jax.jit(lanax.vmap(fun))(x)
            with warnings.catch_warnings():  # with the filters as they were: it makes Python forget what it has shown
                jax.jit(lanax.vmap(fun))(x)
        assert len(found) == 3
        warnings.filterwarnings("ignore", module="elsewhere")
        jax.jit(lanax.vmap(other))(x)
        assert len(found) == 4


def test_a_warning_keeps_no_function_alive(caught: list[warnings.WarningMessage]) -> None:
    (fun,) = loops_of(1)
    lanax.vmap(fun)(X[:5])
    (_,) = caught
    kept = weakref.ref(fun)
    del fun
    gc.collect()
    assert kept() is None


def test_a_loop_that_prints_warns(caught: list[warnings.WarningMessage], capfd: pytest.CaptureFixture[str]) -> None:
    lanax.vmap(lambda x: lax.fori_loop(0, 2, lambda _, v: printing(v) + 1, x))(X[:2])
    jax.effects_barrier()
    assert capfd.readouterr().out
    assert ["side effect" in str(w.message) for w in caught] == [True]


def test_what_costs_little_or_was_asked_for_does_not_warn(caught: list[warnings.WarningMessage]) -> None:
    lanax.vmap(lambda x: sine(x) + 1)(X)
    lanax.vmap(lambda x: jnp.sin(x) * 2)(X)
    lanax.vmap(looped, plan=lanax.Plan(route="xla"))(X)
    lanax.explain(lanax.vmap(looped), X)
    lanax.vmap(lambda x: lax.fori_loop(0, 3, lambda _, v: v * 2, x) + sine(x))(X)
    assert not caught
