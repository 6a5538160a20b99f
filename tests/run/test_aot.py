"""Mapped calls ahead of time, on disk, in other processes, and under JAX's modes and tools."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import in_threads
from jax import export, lax
from jax.experimental import checkify, serialize_executable

import lanax

X = jnp.linspace(0.3, 4.0, 13)
MATRIX = jnp.linspace(-1.0, 2.0, 33).reshape(11, 3)
N = jnp.arange(5)


def grown(x: Any) -> Any:
    return lax.while_loop(lambda v: v < 50, lambda v: v * 1.5 + 1, x)


def both(x: Any) -> Any:
    return grown(x), jnp.sin(x)


def same(got: Any, want: Any, rtol: float = 2e-6) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-6), got, want)


WANT = jax.vmap(both)(X)
mapped = lanax.vmap(both)


# ---- lowered and compiled --------------------------------------------------------------------------------------------
def test_lowered_and_compiled() -> None:
    lowered = jax.jit(mapped).lower(jax.ShapeDtypeStruct((13,), np.float32))
    assert "lanax_kernel" in lowered.as_text()
    assert "lanax_kernel" in lowered.as_text("hlo")
    compiled = lowered.compile()
    assert "lanax_kernel" in compiled.as_text()
    assert isinstance(lowered.cost_analysis(), dict)
    assert isinstance(compiled.cost_analysis(), dict)
    assert compiled.memory_analysis().output_size_in_bytes > 0
    same(compiled(X), WANT)
    same(jax.jit(mapped).trace(X).lower().compile()(X), WANT)
    with pytest.raises(TypeError, match="types for which this computation was compiled"):
        compiled(X[:5])


def test_donated_arguments_are_taken() -> None:
    x = jnp.linspace(0.3, 4.0, 1000)
    want = np.asarray(jax.vmap(grown)(x))
    np.testing.assert_allclose(jax.jit(lanax.vmap(grown), donate_argnums=0)(x), want, rtol=1e-6)
    assert x.is_deleted()
    with pytest.raises((RuntimeError, ValueError), match=r"deleted|donated"):
        lanax.vmap(grown)(x)


def test_types_without_values() -> None:
    got = jax.eval_shape(lanax.vmap(lambda v: (v.sum() > 1, v * 2), out_axes=-1), MATRIX)
    assert [(a.shape, a.dtype.name) for a in got] == [((11,), "bool"), ((3, 11), "float32")]
    jaxpr = jax.make_jaxpr(mapped)(X)
    (eqn,) = jaxpr.eqns
    assert eqn.primitive.name == "lanax_batched_call"
    assert "both" in str(jaxpr)
    same(jax.extend.core.jaxpr_as_fun(jaxpr)(X), list(WANT))


def test_closure_convert() -> None:
    @jax.jit
    def outer(w: Any) -> Any:
        pure, consts = jax.closure_convert(lambda x: lanax.vmap(lambda v: jnp.sin(v * w))(x), X)
        return pure(X, *consts)

    same(outer(2.0), jnp.sin(X * 2))
    same(jax.grad(lambda w: outer(w).sum())(2.0), (X * jnp.cos(2 * X)).sum(), rtol=1e-5)


def test_compile_time_values() -> None:
    @jax.jit
    def outer(x: Any) -> Any:
        with jax.ensure_compile_time_eval():
            table = mapped(X)[0]
            count = int(table.size)
        return table[:count] + x

    def inner(x: Any) -> Any:
        with jax.ensure_compile_time_eval():
            n = int(jnp.sum(N))
        return grown(x) * n

    same(outer(1.0), WANT[0] + 1)
    same(lanax.vmap(inner)(X), WANT[0] * 10)


# ---- other processes -------------------------------------------------------------------------------------------------
def run_python(source: str, **environment: str) -> str:
    """What a new process prints."""
    root = Path(__file__).parent.parent.parent
    env = os.environ | {"PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"} | environment
    found = subprocess.run([sys.executable, "-W", "error", "-c", source], env=env, capture_output=True, text=True,
                           timeout=300, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout


CACHED = """
import jax, jax.numpy as jnp
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))
import lanax
lanax.config.cache = {cache}
def grown(x):
    return jax.lax.while_loop(lambda v: v < 50, lambda v: v * 1.5 + 1, x), jnp.fft.fft(jnp.ones(4) * x).real
mapped = jax.jit(lanax.vmap(grown))
x = jnp.linspace(0.3, 4.0, 13)
loss = jax.jit(jax.grad(lambda x: lanax.vmap(lambda v: jnp.sin(v) ** 2)(x).sum()))
scanned = jax.jit(lambda x: jax.lax.scan(lambda c, _: (lanax.vmap(lambda v: jnp.cos(v))(c), None), x, None, 3)[0])
print([float(v.sum()) for v in jax.tree.leaves((mapped(x), loss(x), scanned(x), lanax.vmap(grown)(x)))])
print(sum("cache_hits" in event for event in hits))
"""


@pytest.mark.parametrize("cache", [True, False])
def test_executables_from_the_compilation_cache(tmp_path: Path, cache: bool) -> None:
    """A second process finds the executables on disk, and the kernels that they call are there when they run."""
    environment = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "jax"), "LANAX_CACHE_DIR": str(tmp_path / "lanax"),
                   "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    source = CACHED.format(cache=cache)
    first, second = (run_python(source, **environment).splitlines() for _ in range(2))
    assert first[0] == second[0]
    assert int(first[1]) == 0
    assert int(second[1]) >= 4


def test_a_serialized_executable_is_refused() -> None:
    compiled = jax.jit(mapped).lower(X).compile()
    with pytest.raises(lanax.LanaxError, match="cannot be serialized: the kernels are in this process alone"):
        serialize_executable.serialize(compiled)


# ---- export ----------------------------------------------------------------------------------------------------------
def test_exported_programs_hold_no_kernels() -> None:
    exported = export.export(jax.jit(mapped))(X)
    assert "lanax" not in exported.mlir_module()
    same(exported.call(X), WANT)
    several = export.export(jax.jit(mapped), platforms=("cpu", "cuda", "tpu"))(X)
    assert several.platforms == ("cpu", "cuda", "tpu")
    same(several.call(X), WANT)
    same(jax.jit(mapped)(X), WANT)
    assert "lanax_kernel" in jax.jit(mapped).lower(X).as_text()


@pytest.mark.parametrize("batch_size", [None, 4])
def test_exported_with_symbolic_shapes(batch_size: int | None) -> None:
    n, m = export.symbolic_shape("n, m")
    many = jax.ShapeDtypeStruct((n,), np.float32)
    wide = jax.ShapeDtypeStruct((11, m), np.float32)

    def normed(v: Any) -> Any:
        return v * v.sum()

    want = MATRIX * MATRIX.sum(1, keepdims=True)
    if batch_size is None:
        same(export.export(jax.jit(mapped))(many).call(X), WANT)
        same(export.export(jax.jit(lanax.vmap(normed)))(wide).call(MATRIX), want)
        same(export.export(jax.jit(lambda x: lanax.map(both, x)))(many).call(X), WANT)
    same(export.export(jax.jit(lambda x: lanax.map(normed, x, batch_size=batch_size)))(wide).call(MATRIX), want)


# ---- modes -----------------------------------------------------------------------------------------------------------
def test_nan_and_inf_are_found() -> None:
    bad = lanax.vmap(lambda x: lax.fori_loop(0, 3, lambda _, v: v * (x - x) / (x - x), x))
    with jax.debug_nans(True):
        same(mapped(X), WANT)
        for call in (bad, jax.jit(bad)):
            with pytest.raises(FloatingPointError, match=r"invalid value \(nan\) encountered"):
                call(X)
    endless = lanax.vmap(lambda x: lax.fori_loop(0, 3, lambda _, v: v / (x - x), x))
    with jax.debug_infs(True):
        same(jax.jit(mapped)(X), WANT)
        for call in (endless, jax.jit(endless)):
            with pytest.raises(FloatingPointError, match=r"invalid value \(inf\) encountered"):
                call(X)
    assert np.isnan(bad(X)).all()


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_bad_numbers_are_found_in_the_operation_that_makes_them(wrap: Callable[..., Any]) -> None:
    """And outside of `jit` also where no result is bad."""
    def raised(mapper: Callable[..., Any], fun: Any) -> str:
        try:
            wrap(mapper(fun))(X)
        except FloatingPointError as error:
            return str(error)
        return "nothing"

    functions = [lambda x: jnp.where(x > 2, jnp.log(-x), x), lambda x: jnp.where(jnp.isnan(jnp.log(x - 2)), 0.0, x)]
    with jax.debug_nans(True):
        assert [raised(lanax.vmap, f) for f in functions] == [raised(jax.vmap, f) for f in functions]
        assert "encountered in log" in raised(lanax.vmap, functions[0])


def test_without_jit() -> None:
    with jax.disable_jit():
        same(mapped(X), WANT)
        same(jax.jit(mapped)(X), WANT)
        same(lanax.map(both, X), WANT)
        same(jax.grad(lambda x: lanax.vmap(jnp.sin)(x).sum())(X), jnp.cos(X))
        same(jax.vmap(mapped)(X[None])[0][0], WANT[0])


def test_wide_types_for_a_while() -> None:
    same(mapped(X), WANT)
    with jax.enable_x64(True):
        got = jax.jit(mapped)(np.linspace(0.3, 4.0, 13))
        assert got[0].dtype == np.float64
        same(got, WANT, rtol=1e-5)
        assert mapped(X)[0].dtype == np.float32
    assert mapped(np.linspace(0.3, 4.0, 13))[0].dtype == np.float32


def test_devices_transfers_and_leaks() -> None:
    with jax.default_device(jax.devices()[0]):
        same(mapped(X), WANT)
    with jax.transfer_guard("disallow"):
        got = mapped(X), jax.jit(mapped)(X), lanax.map(both, X)
    for out in got:
        same(out, WANT)
    with jax.checking_leaks():
        same(lanax.vmap(lambda x: (grown(x) + 1, jnp.sin(x)))(X)[1], WANT[1])
        same(jax.jit(lanax.vmap(lambda x: grown(x) + 2))(X), WANT[0] + 2)
        same(jax.grad(lambda x: lanax.vmap(lambda v: jnp.sin(v) * 3)(x).sum())(X), 3 * jnp.cos(X))
        same(lanax.map(lambda x: grown(x) + 3, X), WANT[0] + 3)
        same(jax.vmap(lanax.vmap(lambda x: grown(x) + 4))(X[None]), WANT[0][None] + 4)


def test_after_clearing_the_caches() -> None:
    compiled = jax.jit(mapped)
    same(compiled(X), WANT)
    jax.clear_caches()
    same(compiled(X), WANT)
    same(mapped(X), WANT)
    same(jax.grad(lambda x: lanax.vmap(jnp.sin)(x).sum())(X), jnp.cos(X))


# ---- checkify --------------------------------------------------------------------------------------------------------
def checked(x: Any) -> Any:
    checkify.check(x < 3, "too large: {x}", x=x)
    return jnp.sin(x)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_checks_of_the_function(wrap: Callable[..., Any]) -> None:
    for x in (X, X[:5]):
        got, want = (wrap(checkify.checkify(mapper(checked)))(x) for mapper in (lanax.vmap, jax.vmap))
        same(got[1], want[1])
        assert got[0].get() == want[0].get()
        got, want = (wrap(mapper(checkify.checkify(checked)))(x) for mapper in (lanax.vmap, jax.vmap))
        same(got[1], want[1])
        assert got[0].get() == want[0].get()


@pytest.mark.parametrize("errors", ["nan_checks", "div_checks", "index_checks", "all_checks"])
def test_checks_that_checkify_adds(errors: str) -> None:
    """They are found in a mapped call, which `checkify` cannot look into by itself."""
    def fun(x: Any) -> Any:
        n = (x * 4).astype(int)
        return jnp.log(x - 2), X[n], n // (n - 4)

    chosen = getattr(checkify, errors)
    for x in (X, jnp.full(5, 2.4)):
        got, want = (checkify.checkify(mapper(fun), errors=chosen)(x) for mapper in (lanax.vmap, jax.vmap))
        assert got[0].get() == want[0].get()
    assert checkify.checkify(lanax.vmap(fun), errors=chosen)(X)[0].get() is not None


# ---- tools -----------------------------------------------------------------------------------------------------------
def test_copies() -> None:
    same(copy.copy(mapped)(X), WANT)
    same(copy.deepcopy(mapped)(X), WANT)
    plan = lanax.Plan(lanes=4, chunk=16)
    assert pickle.loads(pickle.dumps(plan)) == plan
    report = lanax.explain(mapped, X)
    assert str(pickle.loads(pickle.dumps(report))) == str(report)


def test_names_of_scopes_and_profiles(tmp_path: Path) -> None:
    with jax.named_scope("a_scope"):
        lowered = jax.jit(lambda x: lanax.vmap(jnp.sin)(x)).lower(X)
    assert "lanax_kernel" in lowered.as_text()
    text = jax.jit(lambda x: jax.named_call(lanax.vmap(both), name="a_scope")(x)).lower(X).as_text(debug_info=True)
    assert "a_scope" in text
    with jax.profiler.trace(str(tmp_path)), jax.profiler.TraceAnnotation("a call"):
        same(jax.block_until_ready(mapped(X)), WANT)
    assert any(path.is_file() for path in tmp_path.rglob("*"))


def test_logged_compilations() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger = logging.getLogger("jax")
    logger.addHandler(handler)
    try:
        with jax.log_compiles():
            jax.jit(lanax.vmap(lambda x: grown(x) + 5.25))(X)
    finally:
        logger.removeHandler(handler)
    assert "Finished XLA compilation" in stream.getvalue()


def test_calls_and_compilations_in_many_threads() -> None:
    wrong: list[Any] = []
    compiled = jax.jit(mapped).lower(X).compile()
    start = threading.Barrier(6)

    def work(k: int) -> None:
        start.wait()
        calls = [mapped, jax.jit(mapped), compiled, jax.jit(lanax.vmap(both)), lambda x: lanax.map(both, x)]
        for i in range(5):
            with contextlib.suppress(AssertionError):
                same(calls[(i + k) % 5](X), WANT)
                continue
            wrong.append((k, i))

    in_threads(work, 6)
    assert wrong == []
