"""Effects inside a mapped function: what they do, how often and in which order, as under `jax.vmap`; what stays in
lanes around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import checkify, io_callback

import lanax

S = jnp.linspace(0.2, 2.0, 7)
M = jnp.linspace(0.1, 3.0, 21).reshape(7, 3)
SCALAR = jax.ShapeDtypeStruct((), np.float32)

Mapper = Callable[..., Any]


def loop(v: Any) -> Any:
    """Something that gains in lanes."""
    return lax.while_loop(lambda u: (u * u).sum() < 90, lambda u: u * 1.5 + 0.1, v)


def smooth(v: Any) -> Any:
    return lax.fori_loop(0, 3, lambda _, u: jnp.sin(u) + v, v)


class Log:
    """What callbacks have been given, in order."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    def __call__(self, name: str, *values: Any) -> None:
        self.seen.append((name, *np.round(np.asarray(values, np.float64), 3).ravel().tolist()))

    def note(self, name: str) -> Callable[..., None]:
        return lambda *values: self(name, *values)

    def give(self, name: str) -> Callable[..., Any]:
        def callback(x: Any) -> Any:
            self(name, x)
            return np.float32(x) * 2

        return callback


@pytest.fixture
def log() -> Iterator[Log]:
    yield Log()
    jax.effects_barrier()


def close(got: Any, want: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=5e-5, atol=1e-5)


def same(log: Log, with_mapper: Callable[[Mapper], Any], in_order: bool = False) -> list[tuple[str, Any]]:
    """`with_mapper(lanax.vmap)` gives and logs what `with_mapper(jax.vmap)` does; what that is."""
    results, logs = [], []
    for mapper in (lanax.vmap, jax.vmap):
        results.append(jax.block_until_ready(with_mapper(mapper)))
        jax.effects_barrier()
        logs.append(log.seen if in_order else sorted(log.seen))
        log.seen = []
    close(*results)
    assert logs[0] == logs[1]
    return logs[0]


def explained(fun: Any, *args: Any, **options: Any) -> lanax.Report:
    return lanax.explain(lanax.vmap(fun, **options), *args)


# ---- callbacks -------------------------------------------------------------------------------------------------------
#: Name, function of a log that gives the function of one example, routes, the primitive of the first miss.
ROWS: list[tuple[str, Callable[[Log], Any], tuple[str, ...], str]] = [
    ("debug.callback between loops", lambda log: lambda x: (y := loop(x), jax.debug.callback(log.note("y"), y),
                                                            loop(y * 0.1))[2], ("lanes", "xla", "lanes"),
     "debug_callback"),
    ("debug.callback of an argument", lambda log: lambda x: (jax.debug.callback(log.note("x"), x), loop(x))[1],
     ("xla", "lanes"), "debug_callback"),
    ("debug.callback of the result", lambda log: lambda x: (y := loop(x), jax.debug.callback(log.note("y"), y, x))[0],
     ("lanes", "xla"), "debug_callback"),
    ("ordered", lambda log: lambda x: (jax.debug.callback(log.note("a"), x, ordered=True), y := loop(x),
                                       jax.debug.callback(log.note("b"), y, ordered=True), loop(y * 0.1))[3],
     ("xla", "lanes", "xla", "lanes"), "debug_callback"),
    ("under jit", lambda log: lambda x: jax.jit(lambda u: (jax.debug.callback(log.note("u"), u), loop(u))[1])(loop(x)),
     ("lanes", "xla", "lanes"), "debug_callback"),
    ("io_callback", lambda log: lambda x: loop(io_callback(log.give("x"), SCALAR, loop(x)) * 0.1),
     ("lanes", "xla", "lanes"), "io_callback"),
    ("io_callback whose result is not used", lambda log: lambda x: (io_callback(log.give("x"), SCALAR, x), loop(x))[1],
     ("xla", "lanes"), "io_callback"),
    ("in a scan", lambda log: lambda x: loop(0.1 * lax.fori_loop(
        0, 2, lambda i, c: (jax.debug.callback(log.note("c"), c, i), loop(c * 0.1))[1], loop(x))),
     ("lanes", "xla", "lanes"), "scan"),
    ("in a while", lambda log: lambda x: lax.while_loop(
        lambda c: c < 9, lambda c: (jax.debug.callback(log.note("c"), c), c * 2.0)[1], loop(x) * 0.1),
     ("lanes", "xla"), "while"),
    ("in a branch", lambda log: lambda x: loop(lax.cond(
        x > 1, lambda: (jax.debug.callback(log.note("above"), x), x)[1],
        lambda: (jax.debug.callback(log.note("below"), x), 2 * x)[1])), ("xla", "lanes"), "cond"),
    ("under remat", lambda log: lambda x: loop(jax.checkpoint(
        lambda u: (jax.debug.callback(log.note("u"), u), jnp.sin(u))[1])(x)), ("xla", "lanes"), "remat2"),
    ("a value that is the same for all", lambda log: lambda x: (jax.debug.callback(log.note("three"), 3.0), loop(x))[1],
     ("xla", "lanes"), "debug_callback"),
]


@pytest.mark.parametrize(("make", "routes", "primitive"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_effects(log: Log, make: Any, routes: tuple[str, ...], primitive: str) -> None:
    fun = make(log)
    report = explained(fun, S)
    assert not log.seen
    assert report.routes == routes
    miss = next(m for m in report.misses if m.primitive == primitive)
    assert "it has a side effect" in miss.reason
    assert "test_effects.py" in str(miss)
    assert len(report.kernels) == routes.count("lanes")
    seen = same(log, lambda mapper: mapper(fun)(S))
    assert seen
    assert same(log, lambda mapper: jax.jit(mapper(fun))(S)) == seen
    close(lanax.vmap(fun)(S), jnp.stack([fun(x) for x in S]))


def test_order_of_effects(log: Log) -> None:
    def fun(x: Any, y: Any) -> Any:
        jax.debug.callback(log.note("first"), x, y, ordered=True)
        z = loop(x)
        jax.debug.callback(log.note("second"), y, ordered=True)
        jax.debug.callback(log.note("third"), z, ordered=True)
        return z

    for make in (lambda m: m, jax.jit):
        seen = same(log, lambda mapper, make=make: make(mapper(fun, (0, None)))(S[:3], 5.0), in_order=True)
        assert [name for name, *_ in seen] == ["first"] * 3 + ["second"] + ["third"] * 3


def test_what_is_printed_is_what_jax_vmap_prints(capfd: pytest.CaptureFixture[str]) -> None:
    def fun(x: Any, v: Any, y: Any) -> Any:
        jax.debug.print("x={} v={} y={} {name}", x, v, y, name="words", ordered=True)
        z = loop(x)
        jax.debug.print("{z:.3f} {}", y, z=z, ordered=True)
        return z + y

    printed = []
    for mapper in (lanax.vmap, jax.vmap):
        jax.block_until_ready(jax.jit(mapper(fun, (0, 0, None)))(S[:3], M[:3], 1.0))
        jax.effects_barrier()
        printed.append(capfd.readouterr().out)
    assert printed[0] == printed[1]
    assert len(printed[0].splitlines()) == 6


def test_ordered_io_callbacks_are_refused_as_by_jax(log: Log) -> None:
    def fun(x: Any) -> Any:
        return loop(io_callback(log.give("x"), SCALAR, x, ordered=True))

    messages = []
    for mapper in (lanax.vmap, jax.vmap):
        with pytest.raises(ValueError, match="ordered") as caught:
            mapper(fun)(S)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_ordered_io_callbacks_of_what_is_the_same_for_all(log: Log) -> None:
    def fun(x: Any, y: Any) -> Any:
        return loop(x) + io_callback(log.give("y"), SCALAR, y, ordered=True)

    assert len(same(log, lambda mapper: jax.jit(mapper(fun, (0, None)))(S, 3.0))) in (1, 7)


def test_axes_of_results_around_an_effect(log: Log) -> None:
    def fun(v: Any) -> Any:
        u = loop(v)
        jax.debug.callback(log.note("u"), u)
        return u, v, loop(u * 0.1), u.sum(), 3.0, jnp.ones(2), v > 1

    seen = same(log, lambda mapper: mapper(fun, 1, (1, -1, 0, 0, 0, 1, 1))(M.T))
    assert len(seen) == 7
    assert same(log, lambda mapper: jax.jit(mapper(fun, 0, (0, 1, -1, 0, 0, -1, 0)))(M)) == seen


def test_many_effects_make_few_kernels(log: Log) -> None:
    def fun(x: Any) -> Any:
        y = loop(x)
        for i in range(5):
            jax.debug.callback(log.note("y"), y + i, x * i)
        return loop(y * 0.1)

    assert explained(fun, S).routes == ("lanes", "xla", "lanes")
    assert len(same(log, lambda mapper: mapper(fun)(S))) == 35


def test_pytrees_and_keywords(log: Log) -> None:
    def fun(tree: Any, *, scale: Any) -> Any:
        jax.debug.callback(log.note("x"), tree["x"] * scale)
        return {"x": loop(tree["x"]) * scale, "y": tree["y"]}

    same(log, lambda mapper: mapper(fun)({"x": S, "y": None}, scale=S))


def test_a_batch_of_none(log: Log) -> None:
    def fun(v: Any) -> Any:
        jax.debug.callback(log.note("v"), v)
        return loop(v)

    assert same(log, lambda mapper: mapper(fun)(M[:0])) == []


def test_more_examples_than_lanes(log: Log) -> None:
    def fun(x: Any) -> Any:
        return loop(io_callback(log.give("x"), SCALAR, loop(x)) * 0.1)

    assert len(same(log, lambda mapper: jax.jit(mapper(fun))(jnp.linspace(0.1, 3.0, 101)))) == 101


def test_two_calls_of_one_program_keep_their_own_callbacks(log: Log) -> None:
    def fun(name: str) -> Callable[[Any], Any]:
        return lambda x: (y := loop(x), jax.debug.callback(log.note(name), y))[0]

    same(log, lambda mapper: (mapper(fun("a"))(S), mapper(fun("b"))(S)))


@pytest.mark.parametrize("method", ["sequential", "sequential_unrolled", "expand_dims", "broadcast_all",
                                    "legacy_vectorized"])
def test_pure_callbacks_by_every_method(log: Log, method: str) -> None:
    def callback(x: Any, y: Any) -> Any:
        log("shapes", *np.shape(x), -1, *np.shape(y))
        return (x * y).astype(np.float32)

    def fun(x: Any, y: Any) -> Any:
        return loop(jax.pure_callback(callback, SCALAR, loop(x), y, vmap_method=method) * 0.1)

    axes = (0, 0) if method == "legacy_vectorized" else (0, None)
    args = S, S if method == "legacy_vectorized" else jnp.float32(0.3)
    assert explained(fun, *args, in_axes=axes).routes == ("lanes", "xla", "lanes")
    assert same(log, lambda mapper: jax.jit(mapper(fun, axes))(*args))


# ---- transformations -------------------------------------------------------------------------------------------------
def watched(log: Log) -> Callable[[Any], Any]:
    def fun(v: Any) -> Any:
        u = smooth(v)
        jax.debug.callback(log.note("u"), u)
        return smooth(u).sum() * v

    return fun


#: Each takes a function of one example, and `lanax.vmap` or `jax.vmap`.
TRANSFORMED: dict[str, Callable[[Any, Mapper], Any]] = {
    "jvp": lambda f, m: jax.jvp(m(f), (M,), (M + 1,)),
    "jvp under jit": lambda f, m: jax.jit(lambda x: jax.jvp(m(f), (x,), (x + 1,)))(M),
    "grad": lambda f, m: jax.grad(lambda x: m(f)(x).sum())(M),
    "grad under jit": lambda f, m: jax.jit(jax.grad(lambda x: m(f)(x).sum()))(M),
    "grad inside": lambda f, m: m(jax.grad(lambda v: f(v).sum()))(M),
    "linearize": lambda f, m: jax.linearize(m(f), M)[1](M + 1),
    "remat": lambda f, m: jax.grad(lambda x: jax.checkpoint(m(f))(x).sum())(M),
    "another vmap around": lambda f, m: jax.vmap(m(f))(jnp.stack([M, M + 1])),
    "another vmap around, of one argument": lambda f, m: jax.vmap(m(lambda v, w: f(v) * w, (0, None)), (None, 0))(
        M, jnp.arange(2.0)),
    "nested": lambda f, m: m(m(f))(jnp.stack([M, M + 1])),
    "scan": lambda f, m: lax.scan(lambda c, _: (m(f)(c) * 0.1, None), M, length=2)[0],
    "a loop": lambda f, m: lax.fori_loop(0, 2, lambda _, c: m(f)(c) * 0.1, M),
}


@pytest.mark.parametrize("transformed", TRANSFORMED.values(), ids=TRANSFORMED)
def test_transformations(log: Log, transformed: Callable[[Any, Mapper], Any]) -> None:
    fun = watched(log)
    assert same(log, lambda mapper: transformed(fun, mapper))


def test_callbacks_in_rules_for_derivatives(log: Log) -> None:
    @jax.custom_vjp
    def double(x: Any) -> Any:
        return x * 2

    def bwd(x: Any, ct: Any) -> Any:
        jax.debug.callback(log.note("bwd"), ct)
        return (smooth(ct) * x,)

    double.defvjp(lambda x: (x * 2, x), bwd)

    @jax.custom_jvp
    def triple(x: Any) -> Any:
        return x * 3

    @triple.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        jax.debug.callback(log.note("jvp"), primals[0])
        return triple(*primals), smooth(tangents[0])

    for make in (lambda f: f, jax.jit):
        assert len(same(log, lambda m, make=make: make(jax.grad(lambda x: m(lambda v: double(smooth(v)))(x).sum()))(S))
                   ) == 7
        assert len(same(log, lambda m, make=make: make(lambda x: jax.jvp(m(lambda v: triple(smooth(v))), (x,), (x,)))(S)
                        )) == 7
    same(log, lambda m: jax.grad(lambda x: jax.vmap(m(double))(x).sum())(M))


def test_what_jax_does_not_differentiate(log: Log) -> None:
    fun = lambda x: smooth(io_callback(log.give("x"), SCALAR, smooth(x)))  # noqa: E731
    for mapper in (lanax.vmap, jax.vmap):
        with pytest.raises(ValueError, match="IO callbacks do not support JVP"):
            jax.grad(lambda x, mapper=mapper: mapper(fun)(x).sum())(S)


def test_checkify() -> None:
    def fun(x: Any) -> Any:
        y = smooth(x)
        checkify.check(y < 2, "too large: {y:.3f}", y=y)
        return smooth(y * 0.1)

    def run(mapper: Mapper) -> Any:
        error, out = checkify.checkify(mapper(fun))(S)
        return out, error.get().split(" (`check`)")[0]

    (got, message), (want, wanted) = run(lanax.vmap), run(jax.vmap)
    close(got, want)
    assert message == wanted
    assert "too large" in message
