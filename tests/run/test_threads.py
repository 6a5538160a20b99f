"""Mapped functions called from several Python threads at once, their first compilation included."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanax
from lanax._once import once
from lanax._runtime import jit

THREADS = 8
BATCH = 5000


def at_once(work: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    """Results of `work(0)`, `work(1)`, ..., each in a thread of its own, started together."""
    gate = threading.Barrier(count)

    def start(i: int) -> Any:
        gate.wait(timeout=60)
        return work(i)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(start, range(count)))


def program(a: float) -> Callable[..., Any]:
    """A per-example function that no other test has compiled, of `a`."""

    def fun(x: Any) -> Any:
        return lax.while_loop(lambda v: v < 50, lambda v: v * 1.25 + a, x), jnp.sin(x) * a

    return fun


def batch(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0, 40, BATCH).astype(np.float32)


def assert_right(got: Any, fun: Callable[..., Any], x: Any) -> None:
    for mine, theirs in zip(got, jax.jit(jax.vmap(fun))(x), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_one_function_in_all_threads(wrap: Any) -> None:
    fun = program(0.37 if wrap is jax.jit else 0.38)
    mapped = wrap(lanax.vmap(fun))
    for i, got in enumerate(at_once(lambda i: mapped(batch(i)))):
        assert_right(got, fun, batch(i))


def test_equal_functions_compile_to_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread makes a function of its own, and they are equal; a thread may find that another was first."""
    registered: list[str] = []
    real = jit.compile_module
    monkeypatch.setattr("lanax._pipeline.compile_module", lambda text, *rest: (registered.append(text),
                                                                                real(text, *rest))[1])
    results = at_once(lambda i: lanax.vmap(program(0.41))(batch(i)))
    for i, got in enumerate(results):
        assert_right(got, program(0.41), batch(i))
    assert len(set(registered)) == 1


def test_what_several_threads_ask_for_first_is_computed_once() -> None:
    class Slow:
        @once
        def value(self) -> object:
            time.sleep(0.05)
            return object()

    slow = Slow()
    assert len({id(value) for value in at_once(lambda i: slow.value)}) == 1
    assert Slow().value is not slow.value


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_different_functions(wrap: Any) -> None:
    functions = [program(0.5 + i / 100 + (wrap is jax.jit) / 1000) for i in range(THREADS)]
    for i, got in enumerate(at_once(lambda i: wrap(lanax.vmap(functions[i]))(batch(i)))):
        assert_right(got, functions[i], batch(i))


def test_many_calls_of_compiled_functions() -> None:
    functions = [program(0.7), program(0.8)]
    compiled = [jax.jit(lanax.vmap(fun)) for fun in functions]
    want = [[np.asarray(y) for y in jax.block_until_ready(run(batch(0)))] for run in compiled]

    def work(i: int) -> bool:
        rounds = [compiled[i % 2](batch(0)) for _ in range(30)]
        return all((np.asarray(x) == y).all() for got in rounds for x, y in zip(got, want[i % 2], strict=True))

    assert all(at_once(work))


def test_different_shapes_and_axes_of_one_function() -> None:
    mapped = lanax.vmap(lambda v: lax.while_loop(lambda u: u.sum() < 9, lambda u: u * 1.5 + 0.61, v), 1, -1)
    for i, got in enumerate(at_once(lambda i: mapped(np.ones((i + 1, 30), np.float32)))):
        assert got.shape == (i + 1, 30)
        assert (np.asarray(got).sum(0) >= 9).all()


def test_mixed_plans_and_explanations() -> None:
    fun = program(0.91)

    def work(i: int) -> Any:
        mapped = lanax.vmap(fun, plan=lanax.Plan(lanes=2 ** (i % 4), threads=1 + i % 2))
        report = lanax.explain(mapped, batch(0))
        return report.kernels[0].lanes, mapped(batch(0)), mapped.lower(batch(0)).as_text("asm")

    results = at_once(work)
    assert [lanes for lanes, _, _ in results] == [1, 2, 4, 8] * 2
    for _, got, _ in results:
        assert_right(got, fun, batch(0))
        assert (np.asarray(got[0]) == np.asarray(results[0][1][0])).all()


def test_explanations_do_not_hear_of_calls_in_other_threads() -> None:
    def work(i: int) -> Any:
        fun = program(1 + i / 16)
        fun.__name__ = f"program_{i}"
        if i % 2:
            return fun.__name__, lanax.vmap(fun)(batch(i)) and fun.__name__
        return fun.__name__, lanax.explain(lanax.vmap(fun), batch(i)).name

    assert all(name == found for name, found in at_once(work))


def test_derivatives_in_all_threads() -> None:
    def loss(mapper: Any) -> Any:
        return jax.grad(lambda x: mapper(lambda v: lax.scan(lambda c, _: (jnp.sin(c) * 1.17, None), v, length=4)[0])(
            x).sum())

    want = loss(jax.vmap)(batch(0))
    for got in at_once(lambda i: loss(lanax.vmap)(batch(0))):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_an_error_in_one_thread_is_its_own() -> None:
    """Whether the function raises, or a callback while kernels run."""

    def refused(_: Any) -> Any:
        raise ValueError("not this one")

    def failing(x: Any) -> Any:
        shape = jax.ShapeDtypeStruct((), np.float32)
        return jax.pure_callback(refused, shape, program(1.3)(x)[0], vmap_method="sequential")

    def work(i: int) -> Any:
        if i % 4 == 0:
            with pytest.raises(ValueError, match="not this one"):
                lanax.vmap(refused)(batch(i))
        elif i % 4 == 1:
            with pytest.raises(Exception, match="not this one"):
                jax.block_until_ready(lanax.vmap(failing)(batch(i)[:5]))
        else:
            return [lanax.vmap(program(1.4 + i / 100))(batch(i)) for _ in range(5)][-1]
        return None

    for i, got in enumerate(at_once(work)):
        if got is not None:
            assert_right(got, program(1.4 + i / 100), batch(i))
    assert_right(lanax.vmap(program(1.3))(batch(0)), program(1.3), batch(0))


def test_threads_within_a_large_batch_while_others_call() -> None:
    """A kernel on the pool's threads, while the pool runs others."""
    fun = program(1.7)
    large, small = jax.jit(lanax.vmap(fun)), jax.jit(lanax.vmap(fun, plan=lanax.Plan(threads=1)))
    x = np.tile(batch(0), 100)
    want = np.asarray(large(x)[0])

    def work(i: int) -> bool:
        run, given = (large, x) if i < 2 else (small, x[:1000])
        return all((np.asarray(run(given)[0]) == want[: len(given)]).all() for _ in range(10))

    assert all(at_once(work))


def test_a_call_inside_a_callback_of_another() -> None:
    """Not a deadlock: the callback runs in a thread of XLA's, and calls a kernel there."""
    inner = jax.jit(lanax.vmap(program(1.9)))

    def nested(x: Any) -> Any:
        return np.asarray(inner(np.full(64, x, np.float32))[0][0])

    def fun(x: Any) -> Any:
        shape = jax.ShapeDtypeStruct((), np.float32)
        return jax.pure_callback(nested, shape, program(2.1)(x)[0] - 50, vmap_method="sequential")

    got = jax.jit(lanax.vmap(fun))(batch(0)[:3])
    want = [nested(x - 50) for x in lanax.vmap(program(2.1))(batch(0)[:3])[0]]
    np.testing.assert_allclose(got, want, rtol=1e-5)


#: Prints how many threads have worked on calls with caps, by the processor time that each thread has used: first each
#: function by itself, then two of them side by side.
WORKERS = """if True:
    import os, threading
    import jax, numpy as np
    from jax import lax
    import lanax

    def program(x):
        return lax.fori_loop(0, 4000, lambda i, v: v * 0.999 + 0.5, x)

    def used():
        found = {}
        for task in os.listdir("/proc/self/task"):
            try:
                with open(f"/proc/self/task/{task}/schedstat") as file:
                    found[task] = int(file.read().split()[0])
            except OSError:
                pass  # it has ended
        return found

    def workers(work):
        before = used()
        work()
        spent = [ns - before.get(task, 0) for task, ns in used().items()]
        return sum(ns > 0.05 * sum(spent) for ns in spent)

    x = jax.device_put(np.ones(400_000, np.float32))
    calls = {}
    for cap in (1, 2, 3, None):
        run = jax.jit(lanax.vmap(program, plan=lanax.Plan(threads=cap, lanes=8)))
        calls[cap] = lambda run=run: jax.block_until_ready(run(x))
        calls[cap]()
    alone = [max(workers(calls[cap]) for _ in range(4)) for cap in calls]

    def together():
        threads = [threading.Thread(target=calls[cap]) for cap in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    print(*alone, max(workers(together) for _ in range(4)))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="the system does not tell what threads use")
def test_a_cap_holds_for_each_function() -> None:
    """In a process whose pool has five threads, whatever the machine has."""
    given = {k: v for k, v in os.environ.items() if not k.startswith("LANAX_") or k == "LANAX_CACHE_DIR"}
    done = subprocess.run([sys.executable, "-c", WORKERS], env=given | {"JAX_PLATFORMS": "cpu", "NPROC": "5"},
                          capture_output=True, text=True, check=True)
    one, two, three, free, both = map(int, done.stdout.split())
    assert one == 1
    assert 1 < two <= 2 < free <= 6
    assert 1 < three <= 3
    assert both <= 3
