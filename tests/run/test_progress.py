"""Progress bars: the same results and bits, one function for each size of chunk, and Ctrl-C between chunks."""

from __future__ import annotations

import _thread
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_same
from jax import lax

import lanax
from lanax import Plan
from lanax._reports import progress

N = 64 * 7 + 19
X = np.linspace(0.3, 4.0, N, dtype=np.float32)
MATRIX = np.arange(3.0 * N, dtype=np.float32).reshape(3, N)


def grown(x: Any) -> Any:
    return lax.while_loop(lambda v: v < 50, lambda v: v * 1.5 + 1, x)


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the chunks; the second is three times the first, as if that had taken no time."""
    seen: list[int] = []

    def following(size: int, seconds: float) -> int:
        seen.append(size)
        return 192

    monkeypatch.setattr(progress, "_next", following)
    return seen


ROWS: dict[str, tuple[Callable[..., Any], Any, Any, tuple[Any, ...], dict[str, Any]]] = {
    "a loop": (grown, 0, 0, (X,), {}),
    "axes": (lambda v, w: (v * w, (v.sum(), 3.0), w), (1, None), (-1, 0, None),
             (MATRIX, jnp.float32(2.0)), {}),
    "axes from the end": (lambda v: v + 1, -1, 1, (MATRIX,), {}),
    "trees": (lambda t, u: {"a": t["x"] * u[0], "b": None}, ({"x": 0}, [None]), 0, ({"x": X}, [jnp.float32(2)]), {}),
    "lists of axes": (lambda v, w: v * w, [0, None], 0, (X, X[3]), {}),
    "keywords": (lambda v, k: v * k, 0, 0, (X,), {"k": X[::-1]}),
    "keys": (lambda k: (jax.random.normal(k, (2,)), k), 0, 0, (jax.random.split(jax.random.key(0), N),), {}),
    "a weak type": (lambda x: (jnp.where(x > 2, 1, 2), x), 0, 0, (lax.full((N,), 1.5),), {}),
    "NumPy's doubles": (lambda x: x * 2, 0, 0, (np.arange(float(N)),), {}),
    "it looks at a number": (lambda x, n: x * 2 if n == 3 else x, (0, None), 0, (X, 3), {}),
    "no result": (lambda x: (), 0, 0, (X,), {}),
}


@pytest.mark.parametrize(("fun", "in_axes", "out_axes", "args", "kwargs"), ROWS.values(), ids=ROWS)
def test_the_same_bits(fun: Any, in_axes: Any, out_axes: Any, args: Any, kwargs: Any, sizes: list[int]) -> None:
    got = lanax.vmap(fun, in_axes, out_axes, progress=True)(*args, **kwargs)
    assert_same(got, lanax.vmap(fun, in_axes, out_axes)(*args, **kwargs))
    assert sizes == [64, 192, 192, 19]


@pytest.mark.parametrize("batch_size", [None, 0, 1, 5])
def test_map(batch_size: int | None, sizes: list[int]) -> None:
    xs = (X, {"m": MATRIX.T})
    fun = lambda t: (grown(t[0]), t[1]["m"] * 2)  # noqa: E731
    got = lanax.map(fun, xs, batch_size=batch_size, progress=True)
    assert_same(got, lanax.map(fun, xs, batch_size=batch_size))
    assert sizes == [64, 192, 192, 19]


def test_plans_hold(sizes: list[int]) -> None:
    mapped = lanax.vmap(grown, plan=Plan(threads=1, chunk=16), progress=True)
    assert_same(mapped(X), lanax.vmap(grown)(X))
    assert lanax.explain(mapped, X).kernels[0].chunk == 16
    assert len(sizes) == 4


def test_the_bar(capfd: pytest.CaptureFixture[str]) -> None:
    lanax.vmap(grown, progress=True)(X)
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "grown" in shown.err
    assert "100 %" in shown.err
    assert "examples/s" in shown.err


def test_one_function_for_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks that take as long as they should keep their size."""
    monkeypatch.setattr(progress, "_SHORTEST", 0.0)
    traced = []

    def fun(x: Any) -> Any:
        traced.append(1)
        return grown(x)

    lanax.vmap(fun, progress=True)(X[:64])
    once = len(traced)
    traced.clear()
    lanax.vmap(fun, progress=True)(X)  # 64 seven times, 19
    assert once < len(traced) <= 2 * once


def test_sizes_of_chunks() -> None:
    assert progress._next(64, 0.2) == 64
    assert progress._next(64, 0.01) == 1600
    assert progress._next(64, 10.0) == 64
    assert progress._next(6400, 1.0) == 1600
    assert [progress._rounded(n) for n in (0.5, 64, 100)] == [64, 64, 128]


# ---- no bar, the same result -----------------------------------------------------------------------------------------
def whole(sizes: list[int], got: Any, want: Any) -> None:
    assert sizes == []
    assert_same(got, want)


def test_in_a_trace(sizes: list[int], capfd: pytest.CaptureFixture[str]) -> None:
    mapped = lanax.vmap(grown, progress=True)
    want = lanax.vmap(grown)(X)
    whole(sizes, jax.jit(mapped)(X), want)
    whole(sizes, jax.jit(lambda: mapped(X))(), want)
    whole(sizes, jax.vmap(mapped)(X[None])[0], want)
    square = lanax.vmap(lambda x: x * x, progress=True)
    whole(sizes, jax.grad(lambda x: square(x).sum())(X), jnp.asarray(2 * X))
    whole(sizes, jax.jit(lambda x: lanax.map(grown, x, progress=True))(X), want)
    assert "examples/s" not in capfd.readouterr().err


def test_what_needs_the_whole_batch(sizes: list[int]) -> None:
    over_all = lambda x: x / lax.psum(x, "i")  # noqa: E731
    whole(sizes, lanax.vmap(over_all, axis_name="i", progress=True)(X), lanax.vmap(over_all, axis_name="i")(X))

    @jax.custom_batching.custom_vmap
    def counting(x: Any) -> Any:
        return x

    counting.def_vmap(lambda size, mapped, x: (x + size, mapped[0]))
    whole(sizes, lanax.vmap(counting, progress=True)(X), lanax.vmap(counting)(X))
    looking = lambda x, n: x * 2 if n > 3 else x  # noqa: E731
    whole(sizes, lanax.vmap(looking, (0, None), progress=True)(X, jnp.int32(4)), jnp.asarray(X * 2))
    whole(sizes, lanax.vmap(lambda: jnp.ones(2), axis_size=3, progress=True)(), jnp.ones((3, 2)))
    whole(sizes, lanax.vmap(grown, progress=True)(X[:0]), lanax.vmap(grown)(X[:0]))


def test_errors_are_those_of_jax() -> None:
    for args in ((X, X[:3]), (X, 1.0), (X,)):
        messages = []
        for mapper in (jax.vmap, lambda f: lanax.vmap(f, progress=True)):
            with pytest.raises((ValueError, TypeError)) as caught:
                mapper(lambda v, w: v * w)(*args)
            messages.append(str(caught.value))
        assert messages[0] == messages[1]
    with pytest.raises(ZeroDivisionError):
        lanax.vmap(lambda x: x / (1 // 0), progress=True)(X)


# ---- interrupted -----------------------------------------------------------------------------------------------------
def test_an_interrupt_leaves_nothing_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A KeyboardInterrupt from another thread, between the second chunk and the third."""
    real, seen = progress._next, []

    def interrupting(size: int, seconds: float) -> int:
        seen.append(size)
        if len(seen) == 2:
            thread = threading.Thread(target=_thread.interrupt_main)
            thread.start()
            thread.join()
            time.sleep(0.01)  # where Python looks for signals
        return size

    mapped = lanax.vmap(grown, progress=True)
    monkeypatch.setattr(progress, "_next", interrupting)
    with pytest.raises(KeyboardInterrupt):
        mapped(X)
    assert len(seen) == 2
    monkeypatch.setattr(progress, "_next", real)
    assert_same(mapped(X), lanax.vmap(grown)(X))
    assert threading.active_count() < 10  # the bar's thread has ended


def test_a_chunk_that_takes_long_is_not_waited_for() -> None:
    """The call is left at once; what still runs ends by itself and hurts nobody."""
    begun, go_on = threading.Event(), threading.Event()

    def held(x: Any) -> Any:
        if not begun.is_set():
            begun.set()
            _thread.interrupt_main()
            assert go_on.wait(60)
        return x

    def fun(x: Any) -> Any:
        return grown(jax.pure_callback(held, x, x, vmap_method="expand_dims"))

    mapped = lanax.vmap(fun, progress=True)
    with pytest.raises(KeyboardInterrupt):
        mapped(X)
    go_on.set()
    assert_same(mapped(X), lanax.vmap(grown)(X))


PROGRAM = """
import time
import jax, numpy as np
from jax import lax
import lanax

def slow(x):
    return lax.fori_loop(0, 100_000, lambda i, v: v * 0.999 + x, x)

x = np.ones(10_000_000, np.float32)
mapped = lanax.vmap(slow, progress=True)
print("begun", flush=True)
try:
    mapped(x)
except KeyboardInterrupt:
    print("stopped", float(mapped(x[:10])[0]) > 0, flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
def test_ctrl_c() -> None:
    """A run of hours ends at once, and the next call works."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], env=os.environ | {"JAX_PLATFORMS": "cpu"}, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == "begun\n"
        time.sleep(2.0)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert out == "stopped True\n", err
