"""`Plan(devices=...)`: batches of any size on any number of devices, and what is refused."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_same
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import lanax
from lanax import Plan
from lanax._plan import kind_of

DEVICES = jax.devices()
W = jnp.float32(0.3)
WRAPS = {"eager": lambda f: f, "jit": jax.jit}


def numbers(n: int) -> np.ndarray:
    return np.linspace(0.1, 3.0, 3 * n, dtype=np.float32).reshape(n, 3)


def grow(v: Any, w: Any = W) -> Any:
    """A loop that does not end on zeros."""
    return lax.while_loop(lambda u: (u * u).sum() < 90, lambda u: u * (1.5 + w), v).sum()


def results(v: Any, w: Any) -> Any:
    """Of several kinds: varying, a bool, an array, one that is the same for all."""
    return grow(v, w), v[0] > 1, jnp.outer(v, v), w * 2


def smooth(v: Any, w: Any) -> Any:
    return lax.fori_loop(0, 3, lambda _, u: jnp.sin(u * w) + v, v)


@pytest.mark.parametrize("n", [0, 1, 3, 10, 16, 17])
def test_any_size_on_any_number_of_devices(n):
    x = numbers(n)
    want = lanax.vmap(results, (0, None))(x, W)
    for devices in (1, 3, 4, 8):
        mapped = lanax.vmap(results, (0, None), plan=Plan(devices=devices))
        for run in (mapped, jax.jit(mapped)) if devices == 4 or n == 3 else (mapped,):
            got = run(x, W)
            assert_same(got, want)
            if n and n % devices == 0 and devices > 1:
                assert got[0].sharding.spec == P("batch")
                assert got[0].devices() == {*DEVICES[:devices]}


def test_shares_are_even_and_the_last_ones_take_what_is_left():
    def shares(n: int, devices: int) -> list[int]:
        report = lanax.explain(lanax.vmap(grow, plan=Plan(devices=devices)), numbers(n))
        assert [name for name, _ in report.shares] == [f"cpu:{i}" for i in range(devices)]
        assert ", ".join(f"{name} {size}" for name, size in report.shares) + " examples" in str(report)
        assert [row["examples"] for row in report.to_dict()["shares"]] == [size for _, size in report.shares]
        assert report.kernels[0].steps * report.kernels[0].lanes + report.kernels[0].tail == report.shares[0][1]
        return [size for _, size in report.shares]

    assert shares(10, 4) == [3, 3, 3, 1]
    assert shares(3, 8) == [1, 1, 1, 0, 0, 0, 0, 0]
    assert shares(16, 8) == [2] * 8
    assert shares(17, 8) == [3, 3, 3, 3, 3, 2, 0, 0]


@pytest.mark.parametrize(("n", "wrap"), [(8, "jit"), (10, "eager"), (10, "jit")])
def test_derivatives(n, wrap):
    x = jnp.asarray(numbers(n))

    def derivatives(plan: Plan | None) -> Any:
        mapped = lanax.vmap(smooth, (0, None), plan=plan)
        back = WRAPS[wrap](jax.value_and_grad(lambda x, w: (mapped(x, w) ** 2).sum(), (0, 1)))(x, W)
        forward = WRAPS[wrap](lambda x, w: jax.jvp(mapped, (x, w), (x, w)))(x, W)
        return forward, back[1][0], back[0], back[1][1]

    got, want = derivatives(Plan(devices=4)), derivatives(None)
    assert_same(got[:2], want[:2])  # sums over the batch are in another order
    assert_same(got[2:], want[2:], 1e-6)


@pytest.mark.parametrize("wrap", WRAPS)
def test_axes_keys_and_dtypes(wrap):
    def fun(a: Any, b: Any, k: Any, s: Any) -> Any:
        z = grow(a, b["w"])
        return (smooth(a, b["w"]), jnp.outer(a, a) * z, jax.random.normal(k, (2,)), jax.random.split(k),
                z * (1 + 2j), a.astype(jnp.bfloat16), a.sum().astype(jnp.int8), s * 2, jnp.int32(3))

    out_axes = (1, 2, -1, 0, 0, 0, 0, 0, 0)
    args = numbers(10).T.copy(), {"w": W}, jax.random.split(jax.random.key(0), 10), 2.0
    want, got = (WRAPS[wrap](lanax.vmap(fun, (1, None, 0, None), out_axes, plan=plan))(*args)
                 for plan in (None, Plan(devices=4)))
    assert_same(got, want)


def test_transformations_around():
    x, y, w = numbers(10), np.stack([numbers(10)] * 5), np.linspace(0, 1, 5, dtype=np.float32)
    ours, jaxs = lanax.vmap(smooth, (0, None), plan=Plan(devices=4)), jax.vmap(smooth, (0, None))

    def programs(mapped: Callable[..., Any]) -> list[Any]:
        return jax.jit(lambda: [
            jax.vmap(mapped, (0, None))(y, W),  # one batch of both axes
            jax.vmap(mapped, (None, 0))(x, w),  # the new axis goes into each example
            lax.scan(lambda c, w: (mapped(c, w), c.sum()), jnp.asarray(x), w),
            lanax.vmap(mapped, (0, None))(y, W),
            jax.grad(jax.checkpoint(lambda x: mapped(x, W).sum()))(x)])()

    assert_same(programs(ours), programs(jaxs), 1e-5)
    # A collective is left to jax.vmap; what is around it is shared.
    named = [vmap(lambda v: smooth(v, W) / lax.psum(smooth(v, W), "i"), axis_name="i")(x)
             for vmap in (jax.vmap, lambda f, axis_name: lanax.vmap(f, axis_name=axis_name, plan=Plan(devices=4)))]
    assert_same(named[1], named[0], 1e-5)
    assert_same(lanax.map(grow, x, plan=Plan(devices=3), batch_size=2), lanax.map(grow, x))


COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")


def test_an_even_batch_needs_no_collective():
    x = jax.device_put(numbers(64), NamedSharding(Mesh(np.array(DEVICES), ("q",)), P("q")))
    run = jax.jit(lanax.vmap(grow, plan=Plan(devices=8)))
    text = run.lower(x).compile().as_text()
    assert 'custom_call_target="lanax_kernel"' in text
    assert not [name for name in (*COLLECTIVES, "conditional") if name in text]
    assert_same(run(x), lanax.vmap(grow)(numbers(64)))


def test_xla_does_not_hand_padding_to_a_kernel():
    """Inside a program XLA splits what does not divide, and pads it with zeros, on which the loop does not end."""
    across = NamedSharding(Mesh(np.array(DEVICES), ("q",)), P("q"))
    x = numbers(10)
    got = jax.jit(lambda x: lanax.vmap(grow)(lax.with_sharding_constraint(x, across)))(x)
    assert_same(got, lanax.vmap(grow)(x))


def test_a_check_that_fails_raises_on_every_device():
    """One that raised alone would leave the others waiting, and XLA ends the process then."""
    mapped = lanax.vmap(lambda v: eqx.error_if(smooth(v, W), v.sum() > 100, "too big"), plan=Plan(devices=4))
    x = numbers(10)
    bad = np.where(np.arange(10)[:, None] == 9, 1000, x)
    for run in (mapped, jax.jit(mapped)):
        assert_same(run(x), lanax.vmap(smooth, (0, None))(x, W))
        with pytest.raises(Exception, match="too big"):
            jax.block_until_ready(run(bad))


def test_some_of_the_devices_by_list_mesh_and_settings():
    x, want = numbers(8), lanax.vmap(grow)(numbers(8))
    some = DEVICES[2:4]
    one_axis = jax.make_mesh((4, 1), ("a", "b"), axis_types=(AxisType.Auto,) * 2, devices=DEVICES[4:])
    cases = [(some, {*some}), (tuple(some), {*some}), (np.array(some), {*some}), (Mesh(np.array(some), "z"), {*some}),
             (DEVICES[5:6], {DEVICES[5]}), (one_axis, {*DEVICES[4:]}), (1, {DEVICES[0]})]
    for given, devices in cases:
        out = lanax.vmap(grow, plan=Plan(devices=given))(x)
        assert_same(out, want)
        assert out.devices() == devices
    run = jax.jit(lanax.vmap(grow))  # the settings are in JAX's key
    for given in (some, 4, DEVICES[4:6], some):
        with lanax.use_plan(devices=given):
            assert run(x).devices() == {*(DEVICES[:4] if given == 4 else given)}
    assert run(x).devices() == {DEVICES[0]}
    lanax.config.update("devices", 2)
    assert run(x).devices() == {*DEVICES[:2]}
    lanax.config.update("devices", None)
    # Each device has its part of the threads, and there are no more devices than threads.
    report = lanax.explain(lanax.vmap(grow, plan=Plan(devices=8, parallelism=3)), numbers(1_000_000))
    assert (len(report.shares), report.kernels[0].threads) == (3, 1)
    assert "parallelism=3 (the call)" in str(report)
    assert lanax.vmap(grow, plan=Plan(devices=8, parallelism=2))(x).devices() == {*DEVICES[:2]}


def test_under_a_mesh():
    mesh = jax.make_mesh((4,), ("q",), axis_types=(AxisType.Auto,), devices=DEVICES[:4])
    mapped, want = lanax.vmap(grow, plan=Plan(devices=mesh)), lanax.vmap(grow)(numbers(8))
    with jax.set_mesh(mesh):
        for x in (numbers(8), jax.device_put(numbers(8), P("q"))):
            assert_same(jax.jit(mapped)(x), want)
            assert_same(mapped(x), want)
        assert_same(mapped(numbers(10)), lanax.vmap(grow)(numbers(10)))
        assert not lanax.explain(mapped, numbers(8)).unshared


def test_on_a_mesh_with_axes_of_explicit_type():
    """What is split stays where it lies; what is not split, or on other devices than the plan's, is refused."""
    mesh = jax.make_mesh((4,), ("q",), axis_types=(AxisType.Explicit,), devices=DEVICES[:4])
    split, whole = (jax.device_put(numbers(8), NamedSharding(mesh, spec)) for spec in (P("q"), P()))
    want = lanax.vmap(grow)(numbers(8))
    for devices in (mesh, 4, DEVICES[:4]):
        mapped = lanax.vmap(grow, plan=Plan(devices=devices))
        for run in (mapped, jax.jit(mapped)):
            assert_same(run(split), want)
            assert run(split).sharding == NamedSharding(mesh, P("q"))
        report = lanax.explain(mapped, split)
        assert "  devices: as the mesh has it: operands lie on a mesh with axes of explicit type" in str(report)
        with pytest.raises(lanax.PlanError, match=r"no argument is split. Split the batch, as in `jax.sha"):
            mapped(whole)
        with jax.set_mesh(mesh):
            assert_same(mapped(split), want)
            assert "has axes of explicit type" in lanax.explain(mapped, split).unshared
            with pytest.raises(lanax.PlanError, match="no argument is split"):
                mapped(numbers(8))
    words = "names 3 devices, and argument `v` is split over a mesh of 4 with axes of explicit type"
    with pytest.raises(lanax.PlanError, match=words):
        jax.jit(lanax.vmap(grow, plan=Plan(devices=3)))(split)
    with lanax.use_plan(devices=3):  # what is set for all calls is for those that can use it
        assert_same(jax.jit(lanax.vmap(grow))(split), want)


def test_what_is_not_shared_says_why():
    x, mesh = numbers(8), Mesh(np.array(DEVICES[:2]), ("q",))
    shared = Plan(devices=4)

    def whole(v: Any) -> Any:
        from equinox.internal import unvmap_max

        return grow(v) + unvmap_max(v[0])

    @jax.custom_batching.custom_vmap
    def ruled(v: Any) -> Any:
        return v * 2

    @ruled.def_vmap
    def _rule(axis_size: int, in_batched: Any, v: Any) -> Any:
        return v * axis_size, True

    def inside(v: Any, plan: Plan | None = None) -> Any:
        return jax.shard_map(lanax.vmap(grow, plan=plan), mesh=mesh, in_specs=P("q"), out_specs=P("q"))(v)

    def by_setting(v: Any) -> Any:
        with lanax.use_plan(shared):
            return inside(v)

    whole_batch = "one runs the whole batch: some equation has to see all examples"
    for mapped, reason in ((lanax.vmap(whole, plan=shared), whole_batch),
                           (by_setting, "as the mesh has it: inside shard_map each device has its share already")):
        report = lanax.explain(mapped, x)
        assert report.unshared == reason
        assert f"  devices: {reason}" in str(report)
        assert not report.shares
    report = lanax.explain(lanax.vmap(ruled, plan=shared), x)
    assert not report.shares
    assert "rule of custom_vmap" in str(report)
    with pytest.raises(lanax.PlanError, match=r"`devices` of a Plan cannot be asked for inside jax.shard_map, where"):
        inside(x, shared)
    assert_same(lanax.vmap(whole, plan=shared)(x), lanax.vmap(whole)(x))
    assert_same(lanax.vmap(ruled, plan=shared)(x), jax.vmap(ruled)(x))
    assert_same(jax.jit(by_setting)(x), lanax.vmap(grow)(x))


def test_a_profile_has_the_time_of_each_device():
    found = lanax.profile(lanax.vmap(grow, plan=Plan(devices=4)), numbers(10))
    assert [(d.device, d.examples) for d in found.devices] == [("cpu:0", 3), ("cpu:1", 3), ("cpu:2", 3), ("cpu:3", 1)]
    assert all(d.seconds > 0 for d in found.devices)
    assert "cpu:3 1 examples, " in str(found)
    assert found.to_dict()["devices"][3]["examples"] == 1
    assert_same(found.results, lanax.vmap(grow)(numbers(10)))
    keys = jax.random.split(jax.random.key(0), 3)
    found = lanax.profile(lanax.vmap(lambda v, k, w: grow(v, w) + jax.random.uniform(k), (0, 0, None),
                                     plan=Plan(devices=8)), numbers(3), keys, W)
    assert [d.seconds > 0 for d in found.devices] == [True] * 3 + [False] * 5


def test_a_profile_of_no_examples():
    for plan in (None, Plan(devices=8)):
        found = lanax.profile(lanax.vmap(grow, plan=plan), numbers(0))
        assert (found.results.shape, found.kernels, found.devices) == ((0,), (), ())
        assert "over 0 examples" in str(found)


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_bad_devices(monkeypatch):
    def refused(message: str, devices: Any) -> None:
        with pytest.raises(lanax.PlanError, match=re.escape(message)):
            lanax.vmap(grow, plan=Plan(devices=devices))(numbers(3))

    refused("`devices` of a Plan asks for 9 devices (the call); this process has 8: cpu:0, cpu:1,", 9)
    refused("`devices` of a Plan got cpu:3 more than once: name each device once.", [*DEVICES, DEVICES[3]])
    refused("`devices` of a Plan takes devices, such as those of `jax.devices()`; at position 1 it got int: 1.",
            [DEVICES[0], 1])
    two_axes = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    refused("got a mesh with several axes, {'a': 4, 'b': 2}: it is not clear which of them is the batch axis.",
            two_axes)
    monkeypatch.setattr("lanax._plan.kind_of", lambda d: "gpu (A)" if d.id == 1 else kind_of(d))
    refused("`devices` of a Plan got devices of different kinds, cpu (cpu), gpu (A): one call runs on", DEVICES[:2])


def test_arguments_that_are_committed_elsewhere():
    plan = Plan(devices=DEVICES[:2])
    here, away = (jax.device_put(numbers(3), DEVICES[i]) for i in (1, 5))
    assert_same(lanax.vmap(grow, plan=plan)(here), lanax.vmap(grow)(numbers(3)))
    for call, name in ((lambda: lanax.vmap(lambda a, b: grow(a["q"]) + b, plan=plan)({"q": away}, np.ones(3)),
                        "a['q']"),
                       (lambda: lanax.vmap(lambda a, *, b: grow(a) + b[0], plan=plan)(numbers(3), b=away), "b"),
                       (lambda: lanax.map(grow, away, plan=plan), "xs")):
        words = f"argument `{name}` is committed to cpu:5, which `devices` of the Plan leaves out (cpu:0, cpu:1): add"
        with pytest.raises(lanax.PlanError, match=re.escape(words)):
            call()
    with pytest.raises(ValueError, match=r"(?s)Received incompatible devices .*argument v.*device ids \[5\]"):
        jax.jit(lanax.vmap(grow, plan=plan))(away)  # JAX's own words


def test_threads_are_shared_by_the_devices():
    """A kernel that runs alone has all cores, and no more threads than those, though XLA's pool has eight."""
    cores = lanax.explain(lanax.vmap(grow), numbers(1_000_000)).kernels[0].threads
    shared = lanax.explain(lanax.vmap(grow, plan=Plan(devices=8)), numbers(1_000_000)).kernels[0].threads
    assert shared == -(-cores // 8)
    alone = lanax.profile(lanax.vmap(smooth, (0, None)), numbers(100_000), W).kernels[0]
    assert alone.threads <= cores


def test_the_bits_are_those_of_one_device():
    x = np.random.default_rng(0).uniform(0.1, 3, (1001, 3)).astype(np.float32)
    want = lanax.vmap(smooth, (0, None))(x, W)
    for devices, lanes in itertools.product((3, 8), (None, 4)):
        plan = Plan(devices=devices, lanes=lanes)
        assert_same(lanax.vmap(smooth, (0, None), plan=plan)(x, W), want)


def test_devices_that_finish_early_help_the_others():
    """Shares that cost more than others, while several run at once."""
    x = np.linspace(1.01, 3.0, 100_003, dtype=np.float32)[::-1].copy()

    def steps(v: Any) -> Any:
        return lax.while_loop(lambda s: s[0] < 9, lambda s: (s[0] * v, s[1] + jnp.sin(s[0])), (v, v))

    want = lanax.vmap(steps)(x)
    for devices in (2, 8):
        run = jax.jit(lanax.vmap(steps, plan=Plan(devices=devices)))
        for got in [run(x) for _ in range(10)]:
            assert_same(got, want)
