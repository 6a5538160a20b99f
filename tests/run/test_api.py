"""`lanax.vmap` means what the installed `jax.vmap` means: values, structure, types and errors, eager and under jit."""

from __future__ import annotations

import functools
import math
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanax
from lanax._runtime import jit

Pair = namedtuple("Pair", ["left", "right"])

X = jnp.arange(5.0)
MATRIX = jnp.arange(12.0).reshape(3, 4)
CUBE = jnp.arange(24.0).reshape(2, 3, 4)
KEYS = jax.random.split(jax.random.key(0), 5)
RAW_KEYS = jax.random.split(jax.random.PRNGKey(0), 5)
WEAK = lax.full((5,), 1.5)


def plain(x: Any) -> np.ndarray:
    """The values of an array; those of keys are their words."""
    is_key = jnp.issubdtype(jnp.asarray(x).dtype if not hasattr(x, "dtype") else x.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(x) if is_key else x)


def _type(x: jax.Array) -> tuple[str, bool]:
    return x.aval.str_short(), getattr(x, "weak_type", False)


def assert_same(got: Any, want: Any) -> None:
    """Equal structure, Python types, array types (weak ones too); equal values, floats within a few ULP."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert type(x) is type(y)
        if isinstance(y, jax.Array):
            assert _type(x) == _type(y)
        np.testing.assert_allclose(plain(x), plain(y), rtol=2e-6, atol=1e-6)


def check(fun: Callable[..., Any], args: tuple[Any, ...], *, jitted: bool = True,
          call: Callable[..., Any] = lambda mapped, *args: mapped(*args), **options: Any) -> None:
    """`lanax.vmap(fun, **options)` gives what `jax.vmap(fun, **options)` gives, called by `call`."""
    assert_same(call(lanax.vmap(fun, **options), *args), call(jax.vmap(fun, **options), *args))
    if jitted:
        assert_same(jax.jit(lambda *a: call(lanax.vmap(fun, **options), *a))(*args),
                    jax.jit(lambda *a: call(jax.vmap(fun, **options), *a))(*args))


def row(name: str, fun: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return pytest.param(fun, args, options, id=name)


# ---- pytrees and axes ------------------------------------------------------------------------------------------------
TREES = [
    row("one array", lambda x: jnp.sin(x) + 1, X),
    row("a dict", lambda d: {"p": d["a"] * 2, "q": (d["b"], None)}, {"a": X, "b": X + 1}),
    row("a named tuple", lambda p: Pair(p.right, p.left + 1), Pair(X, X * 2)),
    row("a list in a list", lambda v: [v[0], [v[1][0] + 1]], [X, [X]]),
    row("None among the arguments", lambda x, none: (x, none), X, None),
    row("nothing given back", lambda x: None, X),
    row("an argument that is not used", lambda x, y: x + 1, X, X),
    row("the argument itself", lambda x: (x, x), X),
    row("a bool", lambda x, b: jnp.where(b, x, -x), X, X > 2),
    row("axis -1", lambda v: v.sum(), MATRIX, in_axes=-1),
    row("an inner axis in, the last out", lambda v: v * 2, CUBE, in_axes=-2, out_axes=-1),
    row("a first axis in, axis -2 out", lambda v: v * 2, CUBE, out_axes=-2),
    row("axes as a list", lambda x, y: x @ y, MATRIX, MATRIX, in_axes=[0, 0]),
    row("axes as a tree", lambda d, y: d["a"] + d["b"] * y, {"a": X, "b": jnp.float32(2)}, X,
        in_axes=({"a": 0, "b": None}, 0)),
    row("a prefix of the tree", lambda d, y: d["a"][0] + d["a"][1] * y, {"a": (MATRIX, MATRIX)}, MATRIX,
        in_axes=({"a": 1}, -1)),
    row("out axes as a tree", lambda v: {"a": v, "b": (v + 1, v.sum())}, CUBE,
        out_axes={"a": 2, "b": (-1, 0)}),
    row("None out for what is not mapped", lambda x, y: (x + y, y), X, jnp.float32(3), in_axes=(0, None),
        out_axes=(0, None)),
    row("uniform results get the axis", lambda x, y: (x, jnp.ones(3) * y, 3.0), X, jnp.float32(2),
        in_axes=(0, None), out_axes=(0, -1, 0)),
    row("constants as results", lambda x: (1, 2.0, True, 1j, jnp.float32(3), np.int8(1), np.arange(3)), X),
    row("nothing mapped, a size given", lambda x: (x, jnp.sin(x)), X, in_axes=None, axis_size=3),
    row("no argument, a size given", lambda: jnp.ones(3), axis_size=3),
    row("a size that agrees", lambda x: x + 1, X, axis_size=5),
    row("a name for SPMD", lambda x: x + 1, X, spmd_axis_name="devices"),
]


@pytest.mark.parametrize(("fun", "args", "options"), TREES)
def test_trees_and_axes(fun: Any, args: Any, options: Any) -> None:
    check(fun, args, **options)


ROWS = [*TREES[:3], TREES[9], TREES[10], TREES[13], TREES[15]]


@pytest.mark.parametrize(("fun", "args", "options"), ROWS)
def test_all_of_these_run_in_lanes(fun: Any, args: Any, options: Any) -> None:
    """Else the comparisons above would compare `jax.vmap` with itself."""
    report = lanax.explain(lanax.vmap(fun, plan=lanax.Plan(route="lanes"), **options), *args)
    assert (report.routes, report.misses) == (("lanes",), ())


# ---- kinds of arguments ----------------------------------------------------------------------------------------------
ARGUMENTS = [
    row("NumPy arrays", lambda x, y: x * y, np.arange(5), np.arange(5.0)),
    row("a NumPy scalar", lambda x, y: (x * y, x + 1), np.arange(5, dtype=np.int8), np.int8(2), in_axes=(0, None)),
    row("a Python float", lambda x, y: x * y, X.astype(jnp.float16), 2.0, in_axes=(0, None)),
    row("a Python int", lambda x, y: x * y, X, 2, in_axes=(0, None)),
    row("a Python bool", lambda x, y: (x * y, y), X, True, in_axes=(0, None)),
    row("numbers that go through", lambda d: (d["a"], d["b"]), {"a": X, "b": 2.5}, in_axes=({"a": 0, "b": None},),
        out_axes=(0, None)),
]


@pytest.mark.parametrize(("fun", "args", "options"), ARGUMENTS)
def test_kinds_of_arguments(fun: Any, args: Any, options: Any) -> None:
    check(fun, args, **options)


STATIC = [
    row("an int for range", lambda x, n: sum(x * i for i in range(n)), X, 3, in_axes=(0, None)),
    row("a float for math", lambda x, y: x * math.sqrt(y), X, 2.0, in_axes=(0, None)),
    row("a float for if", lambda x, y: x + 1 if y > 0 else x - 1, X, 2.0, in_axes=(0, None)),
    row("a NumPy array for NumPy", lambda x, y: x * np.sqrt(y), X, np.arange(3.0, dtype=np.float32), in_axes=(0, None)),
    row("a JAX array for if", lambda x, y: x + 1 if y > 0 else x - 1, X, jnp.float32(2), in_axes=(0, None)),
]


@pytest.mark.parametrize(("fun", "args", "options"), STATIC)
def test_unmapped_values_may_be_looked_at(fun: Any, args: Any, options: Any) -> None:
    check(fun, args, jitted=False, **options)


@pytest.mark.parametrize(("fun", "args", "options"), STATIC[:4])
def test_looking_at_a_number_keeps_the_lanes(fun: Any, args: Any, options: Any) -> None:
    assert lanax.explain(lanax.vmap(fun, plan=lanax.Plan(route="lanes"), **options), *args).routes == ("lanes",)


def test_looking_at_an_array_of_jax_keeps_the_mapped_call() -> None:
    count = jnp.int32(3)

    def fun(x: Any, n: Any) -> Any:
        return sum(x * i for i in range(int(n)))

    assert "lanax_batched_call" in str(jax.make_jaxpr(lambda x: lanax.vmap(fun, (0, None))(x, count))(X))
    check(fun, (X, count), jitted=False, in_axes=(0, None))


def test_strings_and_functions_are_static() -> None:
    def fun(x: Any, how: Any) -> Any:
        return getattr(jnp, how["name"])(how["then"](x))

    check(fun, (X, {"name": "sin", "then": jnp.square}), jitted=False, in_axes=(0, None))


def test_keyword_arguments_are_mapped_over_axis_0() -> None:
    check(lambda x, *, scale: (x * scale, scale), (X,), call=lambda mapped, x: mapped(x, scale=x + 1))
    check(lambda x, scale=3.0: x * scale, (X,))
    check(lambda x, **more: more["a"]["b"] + x, (X,), call=lambda mapped, x: mapped(x, a={"b": x}))


@pytest.mark.parametrize("keys", [KEYS, RAW_KEYS], ids=["typed", "raw"])
def test_random_keys_in_and_out(keys: Any) -> None:
    check(lambda k: (jax.random.normal(k, (3,)), jax.random.split(k), jax.random.fold_in(k, 3), k), (keys,),
          out_axes=(-1, 1, 0, -1))
    check(lambda x, k: (jax.random.uniform(k) + x, jax.random.split(k), k), (X, keys[0]), in_axes=(0, None))
    check(lambda k: (jax.random.bits(k), k), (keys[:0],))


def test_arrays_of_keys() -> None:
    check(lambda k: (jax.random.normal(k[0]), k, k[1:]), (jax.random.split(KEYS[0], (4, 3)),), in_axes=1, out_axes=-1)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 13, 17, 31])
def test_batches_of_every_size(size: int) -> None:
    def fun(x: Any) -> Any:
        return lax.while_loop(lambda v: v < 30, lambda v: v * 1.5 + 1, x), x > 1, jnp.stack([x, x + 1])

    check(fun, (jnp.arange(size, dtype=jnp.float32),), out_axes=(0, 0, -1))


# ---- weak types ------------------------------------------------------------------------------------------------------
WEAK_ROWS = [
    row("weak in, weak out", lambda x: (x * 2, x, x + jnp.float16(1)), WEAK),
    row("a choice of Python numbers", lambda x: (jnp.where(x > 2, 1, 2), jnp.where(x > 2, 1.0, 2.0)), X),
    row("a weak unmapped argument", lambda x, y: (x * y, jnp.sin(y)), X.astype(jnp.float16), lax.full((), 2.0),
        in_axes=(0, None)),
    row("a weak carry", lambda x: lax.fori_loop(0, 3, lambda _, c: c + 1, lax.select(x > 2, 1.0, 2.0)), X),
    row("a weak part beside a strong one", lambda x: (jnp.where(x > 2, 1, 2), x.astype(int) + 1), X),
]


@pytest.mark.parametrize(("fun", "args", "options"), WEAK_ROWS)
def test_weak_types(fun: Any, args: Any, options: Any) -> None:
    check(fun, args, **options)


def test_weak_types_under_another_vmap() -> None:
    def fun(mapper: Any) -> Any:
        return jax.vmap(mapper(lambda x, y: (jnp.where(x > y, 1, 2), jnp.where(x > y, 1.0, 2.0)), (0, None)))

    assert_same(fun(lanax.vmap)(MATRIX, X[:3]), fun(jax.vmap)(MATRIX, X[:3]))


def test_types_with_64_bits() -> None:
    with jax.enable_x64(True):
        check(lambda x, y: (x * y, x.astype(int) + 1, jnp.where(x > 2, 1, 2), jnp.float32(1) * x),
              (np.arange(5.0), 2.5), in_axes=(0, None))


# ---- closures and names ----------------------------------------------------------------------------------------------
def test_closures_over_arrays() -> None:
    table = np.arange(6.0, dtype=np.float32)
    check(lambda i: table[1:3].sum() + jnp.asarray(table)[i] + MATRIX[0].sum(), (jnp.arange(5),))
    check(lambda x: (x + MATRIX, MATRIX), (X,), out_axes=1)


def test_closures_over_outer_tracers() -> None:
    def outer(mapper: Any, c: Any) -> Any:
        return mapper(lambda x: lax.while_loop(lambda v: v < c, lambda v: v * 2 + 1, x) + c)(X)

    for transform in (jax.jit, jax.vmap, jax.jacfwd):
        arg = X if transform is jax.vmap else jnp.float32(9)
        assert_same(transform(functools.partial(outer, lanax.vmap))(arg),
                    transform(functools.partial(outer, jax.vmap))(arg))


def test_closures_over_an_outer_example() -> None:
    def outer(mapper: Any) -> Any:
        return mapper(lambda row, c: mapper(lambda x: jnp.sin(x) * c + row.sum())(row))

    assert_same(outer(lanax.vmap)(MATRIX, X[:3]), outer(jax.vmap)(MATRIX, X[:3]))


COLLECTIVES = [
    row("psum", lambda x: x / lax.psum(x, "i") + lax.axis_index("i"), X, axis_name="i"),
    row("all_gather", lambda x: (lax.pmax(x, "i"), lax.all_gather(x, "i")), X, axis_name="i"),
    row("ppermute", lambda x: lax.ppermute(x, "i", [(k, (k + 1) % 5) for k in range(5)]), X, axis_name="i"),
    row("an outer axis", lambda v: lanax.vmap(lambda x: x - lax.psum(x, "i"))(v), MATRIX, axis_name="i"),
    row("a name that is not used", lambda x: x + 1, X, axis_name="i"),
]


@pytest.mark.parametrize(("fun", "args", "options"), COLLECTIVES)
def test_names_of_axes(fun: Any, args: Any, options: Any) -> None:
    check(fun, args, **options)


# ---- what is a function, and how it is used --------------------------------------------------------------------------
def test_as_a_decorator() -> None:
    @lanax.vmap
    def double(x: Any) -> Any:
        """Twice."""
        return 2 * x

    assert (double.__name__, double.__doc__.splitlines()[-1].strip()) == ("double", "Twice.")
    assert repr(double) == "<lanax.vmap of double>"
    np.testing.assert_array_equal(double(X), 2 * X)


def test_as_a_decorator_with_options() -> None:
    @functools.partial(lanax.vmap, in_axes=(0, None))
    def times(x: Any, y: Any) -> Any:
        return x * y

    np.testing.assert_array_equal(times(X, 3.0), 3 * X)


def test_as_a_method() -> None:
    class Model:
        def __init__(self, scale: float):
            self.scale = scale

        @functools.partial(lanax.vmap, in_axes=(None, 0))
        def scaled(self, x: Any) -> Any:
            return x * self.scale

        def __call__(self, x: Any) -> Any:
            return x + self.scale

    model = Model(3.0)
    np.testing.assert_array_equal(model.scaled(X), 3 * X)
    np.testing.assert_array_equal(lanax.vmap(model)(X), X + 3)
    np.testing.assert_array_equal(lanax.vmap(model.__call__)(X), X + 3)
    np.testing.assert_array_equal(lanax.vmap(functools.partial(lambda s, x: s * x, 2.0))(X), 2 * X)


def test_under_jit_with_static_arguments() -> None:
    def power(x: Any, n: int) -> Any:
        return x**n if n > 1 else x

    by_name = jax.jit(lanax.vmap(power, (0, None)), static_argnames="n")
    by_number = jax.jit(lanax.vmap(power, (0, None)), static_argnums=1)
    for n in (1, 3):
        np.testing.assert_array_equal(by_name(X, n), X**n)
        np.testing.assert_array_equal(by_number(X, n), X**n)


def test_lowered_and_compiled_ahead_of_time() -> None:
    lowered = jax.jit(lanax.vmap(lambda x: x * 2 + 1)).lower(jax.ShapeDtypeStruct((5,), np.float32))
    assert "lanax" in lowered.as_text()
    np.testing.assert_array_equal(lowered.compile()(X), X * 2 + 1)


def test_shapes_without_values() -> None:
    got = jax.eval_shape(lanax.vmap(lambda x: (x > 1, x * 2), out_axes=-1), MATRIX)
    assert [(a.shape, a.dtype.name) for a in got] == [((4, 3), "bool"), ((4, 3), "float32")]


def test_donated_arguments() -> None:
    donating = jax.jit(lanax.vmap(lambda x: x * 2), donate_argnums=0)
    np.testing.assert_array_equal(donating(jnp.arange(100.0)), 2 * np.arange(100.0))


_scale = 2.0


def test_a_changed_global_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = lanax.vmap(lambda x: x * _scale)
    np.testing.assert_array_equal(mapped(X), 2 * X)
    monkeypatch.setitem(globals(), "_scale", 5.0)
    np.testing.assert_array_equal(mapped(X), 5 * X)


def test_a_second_call_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    real = jit.compile_module
    monkeypatch.setattr("lanax._pipeline.compile_module", lambda text, *rest: (compiled.append(text),
                                                                               real(text, *rest))[1])
    offset = 17.25  # of this test alone, so that no other has compiled it

    def call(x: Any) -> Any:
        return lanax.vmap(lambda v: lax.while_loop(lambda c: c < offset, lambda c: 2 * c + 1, v))(x)

    call(X)
    assert len(compiled) == 1
    call(X + 1)
    jax.jit(call)(X)
    call(jnp.arange(9.0))
    assert len(compiled) == 1, "neither a new trace, nor jit, nor another batch size compiles again"
    call(jnp.arange(5))
    assert len(compiled) == 2, "another dtype does"
