"""Four processes that share batches out and compare the bits with those of one process; then calls that must fail."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from programs import grown, numbers

import lanax
from lanax import distributed

HERE, COUNT = int(sys.argv[1]), int(sys.argv[2])
ROWS = 1_000_003
MORE = {"initialization_timeout": 120, "heartbeat_timeout_seconds": 60}


def same(got: Any, want: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def raises(kind: type[Exception], *words: str) -> Callable[[Callable[[], Any]], None]:
    def check(call: Callable[[], Any]) -> None:
        with pytest.raises(kind) as caught:
            call()
        missing = [word for word in words if word not in str(caught.value)]
        assert not missing, (missing, str(caught.value))

    return check


def a_large_batch() -> None:
    x = numbers(ROWS)
    want = jax.tree.map(np.asarray, lanax.vmap(grown)(x))
    same(distributed.map(grown, x, progress=True), want)
    mine = distributed.share(ROWS)
    assert (mine.start, mine.stop) == (250_001 * HERE, min(250_001 * (HERE + 1), ROWS))
    same(distributed.map(grown, x, gather=False), jax.tree.map(lambda w: w[mine.start:mine.stop], want))
    # Each brings its own rows, uneven ones, the last none.
    edges = [0, 70_001, 70_002, ROWS, ROWS]
    own = x[edges[HERE]:edges[HERE + 1]]
    same(distributed.map(grown, own, inputs="local", chunk=100_000), want)
    same(distributed.map(grown, own, inputs="local", gather=False),
         jax.tree.map(lambda w: w[edges[HERE]:edges[HERE + 1]], want))


def other_batches() -> None:
    for rows in (0, 1, 3, 5):
        x = numbers(rows)
        same(distributed.map(grown, x), lanax.vmap(grown)(x))
    keys = jax.random.split(jax.random.key(3), 37)
    xs = {"key": keys, "wide": np.arange(37.0), "half": jnp.arange(37, dtype=jnp.bfloat16)}

    def many(t: Any) -> Any:
        return jax.random.normal(t["key"], (2, 3)), t["key"], t["half"] * 2, (t["wide"] > 3, jnp.zeros((0, 2)))

    same(distributed.map(many, xs, chunk=4), lanax.vmap(many)(xs))


def global_arrays() -> None:
    """Each process runs its own shards, and nothing is moved."""
    x = numbers(4 * 1000)
    want = jax.tree.map(np.asarray, lanax.vmap(grown)(x))
    mesh = Mesh(np.array(jax.devices()), ("x",))
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    mine = distributed.share(len(x))
    array = jax.make_array_from_process_local_data(sharding, x[mine.start:mine.stop], x.shape)
    compiled = jax.jit(lanax.vmap(grown)).lower(array).compile()
    text = compiled.as_text()
    assert "custom-call" in text
    for moved in ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter"):
        assert moved not in text
    for got in (compiled(array), lanax.vmap(grown)(array), distributed.map(grown, array, gather=False)):
        for g, w in zip(got, want, strict=True):
            assert not g.is_fully_addressable
            assert g.sharding.spec == PartitionSpec("x")
            for shard in g.addressable_shards:
                same(np.asarray(shard.data), w[shard.index])
    same(distributed.map(grown, array, chunk=300), want)
    keys = jax.jit(jax.vmap(jax.random.key))((array + 2).astype(jnp.uint32))
    drawn = distributed.map(lambda k: (k, jax.random.normal(k, (2,))), keys, gather=False)
    wanted = lanax.vmap(lambda n: jax.random.normal(jax.random.key(n), (2,)))((x + 2).astype(np.uint32))
    for shard in drawn[1].addressable_shards:
        same(np.asarray(shard.data), np.asarray(wanted[shard.index]))
    everywhere = jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec()), x, x.shape)
    raises(lanax.DistributedError, "each row in one process")(lambda: distributed.map(grown, everywhere))
    raises(ValueError, "xs[0]", "xs[1]", "make_array_from_process_local_data")(
        lambda: distributed.map(lambda t: t[0] + t[1], (x, array)))


def calls_that_fail() -> None:
    fails = raises(lanax.DistributedError, "`xs` differs", "process 0 has 8 rows, process 3 has 11", "inputs='local'")
    fails(lambda: distributed.map(grown, numbers(8 + 3 * (HERE == 3))))
    fails = raises(lanax.DistributedError, "`xs` differs", "float32[3]", "float32[4]")
    fails(lambda: distributed.map(lambda v: v.sum(), np.ones((8, 3 + (HERE == 2)), np.float32)))
    fails = raises(lanax.DistributedError, "`f` differs", "closes over")
    fails(lambda: distributed.map(lambda v: v * HERE, numbers(8)))
    raises(lanax.DistributedError, "`chunk` differs")(lambda: distributed.map(grown, numbers(8), chunk=1 + HERE))
    # What fails in one fails in all, at once.
    if HERE == 1:
        raises(ValueError, "has no axis")(lambda: distributed.map(grown, np.zeros((), np.float32)))
    else:
        fails = raises(lanax.DistributedError, "process 1 of 4 stopped with ValueError: `xs`")
        fails(lambda: distributed.map(grown, numbers(8)))
    # One that does not come.
    if HERE != 2:
        raises(lanax.DistributedError, "process 2 of 4", "did not come to this call within 1 s")(
            lambda: distributed.map(grown, numbers(8), timeout=1.0))
    else:
        time.sleep(4.0)
        raises(lanax.DistributedError, "process 0 of 4 stopped")(lambda: distributed.map(grown, numbers(8)))
    same(distributed.map(grown, numbers(9)), lanax.vmap(grown)(numbers(9)))  # and all is well again


distributed.initialize(f"127.0.0.1:{sys.argv[3]}", COUNT, HERE, **MORE)
raises(lanax.DistributedError, "called before", f"process {HERE} of 4")(
    lambda: distributed.initialize(f"127.0.0.1:{sys.argv[3]}", COUNT, HERE, **MORE))
a_large_batch()
other_batches()
global_arrays()
calls_that_fail()
if HERE:  # process 0 has come to its end, and waits for the others to do so
    raises(lanax.DistributedError, "process 0 of 4 has ended")(lambda: distributed.map(grown, numbers(8)))
sys.stdout.write("well\n")
