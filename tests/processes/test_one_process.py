"""`lanax.distributed` where there is one process: the same results, checkpoints, and what is said of bad arguments."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_same
from programs import grown, numbers

import lanax
from lanax import distributed
from lanax.distributed import _map
from lanax.distributed._shares import pieces

ROWS, CHUNK = 1003, 100


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The rows that are computed, in pieces."""
    seen: list[tuple[int, int]] = []
    real = _map._Runner.__call__

    def runs(self: Any, span: tuple[int, int]) -> Any:
        seen.append(span)
        return real(self, span)

    monkeypatch.setattr(_map._Runner, "__call__", runs)
    return seen


def test_the_same_as_vmap() -> None:
    weight = np.float32(1.5)
    xs = {"key": jax.random.split(jax.random.key(3), 37), "wide": np.arange(37.0),
          "half": jnp.arange(37, dtype=jnp.bfloat16), "weak": jax.lax.full((37,), 2.5), "int": np.arange(37),
          "complex": np.arange(37) * 1j}

    def many(t: Any) -> Any:
        return (jax.random.normal(t["key"], (2, 3)), t["key"], t["half"] * 2, {"b": t["wide"] > 3, "w": t["weak"] * 2},
                jnp.zeros((0, 2)), t["int"] * weight, t["complex"] * 2, 3)

    for chunk in (None, 1, 10, 37, 100):
        assert_same(distributed.map(many, xs, chunk=chunk, inputs="local"), lanax.vmap(many)(xs))
    for out in (lambda a, b: (a, b), lambda a, b: {"a": a, "b": b}):  # one program, two structures
        assert_same(distributed.map(lambda x, out=out: out(x, x * 2), numbers(3)),
             lanax.vmap(lambda x, out=out: out(x, x * 2))(numbers(3)))
    for rows in (0, 1):
        some = jax.tree.map(lambda x, rows=rows: x[:rows], xs)
        assert_same(distributed.map(many, some, gather=False), lanax.vmap(many)(some))


def test_shares_and_pieces() -> None:
    for rows in (0, 1, 3, 10, 1003):
        for count in (1, 2, 3, 7):
            got = [distributed.share(rows, i, count) for i in range(count)]
            assert [i for r in got for i in r] == list(range(rows))
            assert [len(r) for r in got] == sorted((len(r) for r in got), reverse=True)
    assert pieces((5, 32), 10) == [(5, 10), (10, 20), (20, 30), (30, 32)]
    assert pieces((5, 32), 10, 5) == [(5, 15), (15, 25), (25, 32)]
    with pytest.raises(ValueError, match="process_id=3, num_processes=3"):
        distributed.share(5, 3, 3)


# ---- checkpoints -----------------------------------------------------------------------------------------------------
def test_a_checkpoint_is_used(tmp_path: Path, ran: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    x = numbers(ROWS)

    def call(x: Any = x, f: Any = grown, chunk: int = CHUNK, **more: Any) -> list[Any]:
        ran.clear()
        assert_same(distributed.map(f, x, chunk=chunk, checkpoint=tmp_path, **more), lanax.vmap(f)(x))
        return list(ran)

    whole = pieces((0, ROWS), CHUNK)
    assert call() == whole
    assert call() == []
    assert call(inputs="local", gather=False) == []
    folder, = tmp_path.iterdir()
    files = sorted(folder.iterdir())
    assert [f.stem for f in files[:2]] == ["rows-000000000000-000000000100", "rows-000000000100-000000000200"]

    # Missing, cut short, one bit wrong, empty, and what a killed process has left: computed again, never believed.
    files[0].unlink()
    files[2].write_bytes(files[2].read_bytes()[:-1])
    data = bytearray(files[4].read_bytes())
    data[-5] ^= 1
    files[4].write_bytes(data)
    files[6].write_bytes(b"")
    files[7].with_name(files[7].name + ".host.1.part").write_bytes(b"half")
    files[8].write_bytes(files[9].read_bytes())  # of other rows
    with caplog.at_level(logging.WARNING, "lanax"):
        again = call()
    assert again == [whole[i] for i in (0, 2, 4, 6, 8)]
    assert "damaged" in caplog.text
    assert call() == []

    # Other pieces: what lies whole in files is used, the rest is computed.
    files[3].unlink()
    assert call(chunk=70) == [(300, 350), (350, 400)]
    # Other inputs, another function, other values that it closes over: nothing is taken for what it is not.
    changed = x.copy()
    changed[150] = 7
    assert call(changed) == [(100, 200)]
    assert call(f=lambda v: grown(v)[0] * 2) == whole
    for scale in map(jnp.float32, (2.0, 3.0)):
        assert call(f=lambda v, s=scale: v * s) == whole


def test_a_run_that_fails_keeps_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ran: list[Any]) -> None:
    x, seen = numbers(ROWS), _map._Runner.__call__

    def fails(self: Any, span: tuple[int, int]) -> Any:
        if span[0] == 500:
            raise KeyboardInterrupt
        return seen(self, span)

    with monkeypatch.context() as patch:
        patch.setattr(_map._Runner, "__call__", fails)
        with pytest.raises(KeyboardInterrupt):
            distributed.map(grown, x, chunk=CHUNK, checkpoint=tmp_path, progress=True)
    assert len(ran) == 5
    ran.clear()
    assert_same(distributed.map(grown, x, chunk=CHUNK, checkpoint=tmp_path, progress=True), lanax.vmap(grown)(x))
    assert ran[0] == (500, 600)


# ---- bad arguments ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("given", "kind", "words"), [
    ({"f": 3}, TypeError, "`f` of lanax.distributed.map must be a function of one example; got int"),
    ({"xs": []}, ValueError, "`xs` of lanax.distributed.map has no array"),
    ({"xs": {"a": np.ones(3), "b": 2.0}}, TypeError, r"`xs\['b'\]` .* must be an array .* got float"),
    ({"xs": np.float32(2)[...]}, ValueError, "`xs` of lanax.distributed.map has no axis"),
    ({"xs": (np.ones(3), np.ones(4))}, ValueError, r"`xs\[0\]` has 3 rows, `xs\[1\]` has 4"),
    ({"xs": np.array(["a"])}, TypeError, "dtype .* which JAX does not have"),
    ({"inputs": "all"}, ValueError, "`inputs` .* 'global', .* or 'local'.* got 'all'"),
    ({"chunk": 0}, ValueError, "`chunk` .* an int of 1 or more; got 0"),
    ({"plan": 3}, TypeError, "`plan` .* must be a lanax.Plan or None; got int"),
    ({"timeout": 0}, ValueError, "`timeout` .* greater than 0; got 0"),
    ({"f": lambda x: x.nothing}, AttributeError, "nothing"),
])
def test_bad_arguments(given: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        distributed.map(**{"f": grown, "xs": numbers(3), **given})


def test_what_cannot_be_shared_out(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="cannot be traced"):
        jax.jit(lambda x: distributed.map(grown, x))(numbers(3))

    @jax.custom_batching.custom_vmap
    def counting(x: Any) -> Any:
        return x

    counting.def_vmap(lambda size, mapped, x: (x + size, mapped[0]))
    with pytest.raises(ValueError, match=r"`f` of lanax\.distributed\.map, .*, cannot be shared out"):
        distributed.map(counting, numbers(3))

    def calls(x: Any) -> Any:
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((), np.float32), x, vmap_method="expand_dims")

    with pytest.raises(ValueError, match=r"`checkpoint` of .* calls Python functions"):
        distributed.map(calls, numbers(3), checkpoint=tmp_path)


@pytest.mark.parametrize(("given", "words"), [
    ({"coordinator_address": "here"}, "`coordinator_address` .* such as '10.0.0.1:1234'; got 'here'"),
    ({"num_processes": 0}, "`num_processes` .* an int of 1 or more; got 0"),
    ({"process_id": -1}, "`process_id` .* an int of 0 or more; got -1"),
    ({"num_processes": 4, "process_id": 4}, "`process_id` .* from 0 to num_processes - 1 = 3; got 4"),
    ({"local_device_ids": [0, 0]}, r"`local_device_ids` .* each once, such as \[0, 1\]; got \[0, 0\]"),
    ({"local_device_ids": -1}, "`local_device_ids` .* got -1"),
    ({"heartbeat_timeout_seconds": 0}, "`heartbeat_timeout_seconds` .* an int of 1 or more; got 0"),
])
def test_bad_arguments_of_initialize(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        distributed.initialize(**given)


def test_initialize_comes_first() -> None:
    jnp.zeros(1)
    with pytest.raises(lanax.DistributedError, match="after JAX had looked for its devices"):
        distributed.initialize("127.0.0.1:1234", 1, 0)
