"""Pieces on given devices, shardings inside a program, and the page and the example about devices."""

from __future__ import annotations

import pathlib
import re
import runpy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import lanax

DEVICES = jax.devices()
ROOT = pathlib.Path(__file__).parents[2]


def numbers(n: int) -> np.ndarray:
    return np.linspace(0.1, 3.0, 3 * n, dtype=np.float32).reshape(n, 3)


def grow(v: Any) -> Any:
    """A loop that does not end on zeros."""
    return lax.while_loop(lambda u: (u * u).sum() < 90, lambda u: u * 1.5, v).sum()


# ---- pieces ----------------------------------------------------------------------------------------------------------


def test_shards_of_different_lengths_are_one_batch():
    x, want = numbers(10), lanax.vmap(grow)(numbers(10))
    shards = lanax.device_put_sharded([x[:3], x[3:3], x[3:4], jnp.asarray(x[4:])], DEVICES[2:6])
    assert isinstance(shards, lanax.Shards)
    assert (shards.shape, shards.ndim, len(shards), shards.lengths) == ((10, 3), 2, 10, (3, 0, 1, 6))
    assert repr(shards) == "Shards(float32[10, 3]: 3 on cpu:2, 0 on cpu:3, 1 on cpu:4, 6 on cpu:5)"
    np.testing.assert_array_equal(shards, x)
    np.testing.assert_array_equal(shards.join(), x)

    def fun(a: Any, b: Any, w: Any) -> Any:
        return grow(a["x"] * w) + b, jnp.outer(a["x"], a["x"]), w

    # A plan's devices do not matter: each part runs where it lies.
    mapped = lanax.vmap(fun, (0, 0, None), (0, 0, None), plan=lanax.Plan(devices=2))
    first, second, third = mapped({"x": shards}, np.arange(10.0, dtype=np.float32), 1.0)
    assert [part.devices() for part in first.parts] == [{d} for d in DEVICES[2:6]]
    np.testing.assert_array_equal(first, np.asarray(want) + np.arange(10))
    np.testing.assert_allclose(second, x[:, :, None] * x[:, None, :], rtol=1e-6)
    assert third == 1.0
    np.testing.assert_array_equal(lanax.map(grow, shards), want)


def test_shards_of_one_shape_are_stacked():
    x = numbers(10)
    stacked = lanax.device_put_sharded([{"a": x[:5], "k": jax.random.key(0)}, {"a": x[5:], "k": jax.random.key(1)}],
                                       DEVICES[:2])
    assert stacked["a"].shape == (2, 5, 3)
    assert stacked["k"].shape == (2,)
    assert [(s.device, s.index[0]) for s in stacked["a"].addressable_shards] == [
        (DEVICES[0], slice(0, 1)), (DEVICES[1], slice(1, 2))]
    run = jax.jit(lanax.vmap(lanax.vmap(grow)))
    np.testing.assert_array_equal(np.asarray(run(stacked["a"])).ravel(), lanax.vmap(grow)(x))
    assert run(stacked["a"]).devices() == {*DEVICES[:2]}
    # One batch always, where that is asked for.
    np.testing.assert_array_equal(lanax.vmap(grow)(lanax.Shards([x[:5], x[5:]], DEVICES[:2])), lanax.vmap(grow)(x))


X = numbers(4)


@pytest.mark.parametrize(("shards", "devices", "message"), [
    ([X, X, X], DEVICES[:2], "lanax.device_put_sharded puts one shard on each device; got 3 shards for 2 devices: join "
                             "some of them, or name more devices."),
    ([X], DEVICES[:2], "got 1 shards for 2 devices: name fewer devices."),
    ([X, X], [DEVICES[0]] * 2, "`devices` of lanax.device_put_sharded got cpu:0 more than once"),
    ([X, X], [DEVICES[0], 1], "at position 1 it got int: 1."),
    ([X, X], 2, "`devices` of lanax.device_put_sharded is a list of devices, such as `jax.devices()`; got int: 2."),
    ([], DEVICES[:2], "takes a list of one shard at least; got list: []."),
    ([X, X[:, :2]], DEVICES[:2], "arrays of one dtype whose shapes differ along axis 0 at most; got float32[4, 3], "
                                 "float32[4, 2]."),
    ([X, X.astype(np.int32)], DEVICES[:2], "shards of one dtype; got float32[4, 3], int32[4, 3]."),
    ([{"a": X}, X], DEVICES[:2], "takes shards of one structure; shard 0 is PyTreeDef({'a': *}), shard 1 is"),
])
def test_shards_that_do_not_go_together(shards, devices, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        lanax.device_put_sharded(shards, devices)


def test_what_shards_do_not_go_into():
    shards = lanax.Shards([X[:3], X[3:]], DEVICES[:2])
    other = lanax.Shards([X[:2], X[2:]], DEVICES[:2])

    def whole(v: Any) -> Any:
        from equinox.internal import unvmap_max

        return grow(v) + unvmap_max(v[0])

    for call, message in (
        (lambda: lanax.vmap(grow, axis_name="i")(shards), "a function mapped with `axis_name` sees all examples"),
        (lambda: lanax.vmap(grow, 1)(shards), "`in_axes` of lanax.Shards must be 0"),
        (lambda: lanax.vmap(lambda v: v, 0, 1)(shards), "`out_axes` must be 0 or None"),
        (lambda: lanax.vmap(lambda a, b: a + b)(shards, other), "must have parts of the same lengths on the same"),
        (lambda: lanax.vmap(lambda a, b: a + b)(shards, np.ones(3)), "must have as many examples as Shards(float32["),
        (lambda: lanax.vmap(whole)(shards), "an equation of the mapped function may have to see all examples"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            call()
    with pytest.raises(TypeError, match=r"lanax.Shards lie on several devices .* do not go into jax.jit"):
        jax.jit(lambda: lanax.vmap(grow)(shards))()
    assert lanax.explain(lanax.vmap(grow), shards).axis_size == 3  # the longest part
    profile = lanax.profile(lanax.vmap(grow), shards)
    np.testing.assert_array_equal(profile.results, lanax.vmap(grow)(X))


# ---- shardings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_a_constraint_for_any_length(kind):
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(kind,) * 2)

    def pinned(v: Any) -> Any:
        both = lanax.with_sharding_constraint({"v": v * 1, "n": v[:, 0]}, {"v": P(("x", "y")), "n": P("x")})
        return lanax.vmap(grow)(both["v"]), both["n"]

    for n, pieces in ((8, 8), (10, 1), (12, 4)):
        x, want = numbers(n), lanax.vmap(grow)(numbers(n))
        with jax.set_mesh(mesh):
            for run in (pinned, jax.jit(pinned)):
                got, first = run(jnp.asarray(x))
                np.testing.assert_array_equal(got, want)
                np.testing.assert_array_equal(first, x[:, 0])
            alone = lanax.with_sharding_constraint(jnp.asarray(x), NamedSharding(mesh, P(("x", "y"))))
            assert len({str(s.index) for s in alone.addressable_shards}) == pieces
    with pytest.raises(RuntimeError, match="non-empty mesh"):
        lanax.with_sharding_constraint(jnp.ones(8), P("x"))  # JAX's own error


def test_positional_sharding():
    ids = np.arange(8)
    sharding = lanax.PositionalSharding(DEVICES)
    assert isinstance(sharding, NamedSharding)
    assert (sharding.shape, sharding.ndim, sharding.num_devices) == ((8,), 1, 8)
    assert repr(sharding.reshape(4, 2)) == "PositionalSharding(4, 2) of 8 devices"
    assert sharding == lanax.PositionalSharding(DEVICES)
    assert sharding.reshape((4, -1)).T.shape == (2, 4)
    assert sharding.reshape(2, 4).replicate(1, keepdims=False).shape == (2,)
    assert sharding.reshape(8, 1).mesh == sharding.reshape(2, 2, 2).replicate(1).mesh

    def places(array: Any) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for shard in array.addressable_shards:
            found.setdefault(str(np.asarray(shard.data).ravel().tolist()), []).append(shard.device.id)
        return found

    x = np.arange(8).reshape(4, 2)
    by_both = jax.device_put(x, sharding.reshape(4, 2))
    assert places(by_both) == {f"[{i}]": [i] for i in ids}
    assert by_both.sharding.shape == (4, 2)
    assert places(jax.device_put(x, sharding.reshape(4, 2).replicate(0))) == {
        "[0, 2, 4, 6]": [0, 2, 4, 6], "[1, 3, 5, 7]": [1, 3, 5, 7]}
    assert places(jax.device_put(x, sharding.reshape(2, 4).replicate(1))) == {
        "[0, 1, 2, 3]": [0, 1, 2, 3], "[4, 5, 6, 7]": [4, 5, 6, 7]}
    assert len(places(jax.device_put(x, sharding.replicate()))) == 1
    # Numbers that do not share their factors' order get a mesh of their own.
    six = lanax.PositionalSharding(DEVICES[:6]).reshape(2, 3)
    assert places(jax.device_put(x[:3], six.reshape(3, 2))) == {f"[{i}]": [i] for i in range(6)}
    assert places(jax.device_put(x[:3], six.replicate(0).reshape(3, 1))) == {
        "[0, 1]": [0, 3], "[2, 3]": [1, 4], "[4, 5]": [2, 5]}
    # Two of them in one program, with a kernel.
    run = jax.jit(lambda a, b: lanax.vmap(grow)(lanax.with_sharding_constraint(a + b, sharding.reshape(8, 1))))
    a, b = (jax.device_put(np.ones((8, 8), np.float32), s) for s in (sharding.reshape(4, 2), sharding.replicate(0)))
    assert isinstance(run(a, b).sharding, NamedSharding)
    np.testing.assert_array_equal(run(a, b), lanax.vmap(grow)(np.full((8, 8), 2, np.float32)))
    for make, message in ((lambda: sharding.reshape(3, 2), "cannot reshape"),
                          (lambda: sharding.replicate(1), "must be one of its 1; got 1"),
                          (lambda: lanax.PositionalSharding([]), "of lanax.PositionalSharding got no device")):
        with pytest.raises(ValueError, match=re.escape(message)):
            make()


# ---- documentation ---------------------------------------------------------------------------------------------------


def test_the_page_about_devices_runs():
    page = ROOT / "docs" / "devices.md"
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    exec(compile("\n".join(blocks), str(page), "exec"), {"__name__": "page"})


def test_the_example_runs(capsys):
    runpy.run_path(str(ROOT / "examples" / "05_devices.py"))["main"](size=301)
    assert "devices: cpu:0 38, cpu:1 38," in capsys.readouterr().out
