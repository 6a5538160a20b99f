"""One batch on several devices: shared out by lanax, by a list of devices, or by where its parts lie already.

Run as a script it makes four devices of the CPU; set XLA_FLAGS yourself for another number.
"""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import lanax


def steps_to_one(n):
    """How many steps of Collatz's iteration lead to 1. From 0 none do: padding is never run."""
    def step(state):
        n, count = state
        return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), count + 1

    return jax.lax.while_loop(lambda state: state[0] != 1, step, (n, 0))[1]


def main(size=10_007):
    devices = jax.devices()
    numbers = np.arange(1, size + 1, dtype=np.int32)
    want = jax.vmap(steps_to_one)(numbers)

    # A number of devices; the size need not divide.
    mapped = lanax.vmap(steps_to_one, plan=lanax.Plan(devices=len(devices)))
    print(lanax.explain(mapped, numbers), end="\n\n")
    np.testing.assert_array_equal(mapped(numbers), want)
    np.testing.assert_array_equal(jax.jit(mapped)(numbers), want)

    # Some of them only, and no more than two threads at work in all.
    few = lanax.vmap(steps_to_one, plan=lanax.Plan(devices=devices[-2:], parallelism=2))
    np.testing.assert_array_equal(few(numbers), want)

    # Pieces of any length on devices of your choice: half of the numbers on the first one.
    ends = np.linspace(size // 2, size, len(devices), dtype=int)[:-1]
    shards = lanax.Shards(np.split(numbers, ends), devices)
    steps = lanax.vmap(steps_to_one)(shards)
    print(steps)
    np.testing.assert_array_equal(np.asarray(steps), want)

    # JAX's own way, for a length that divides: each device runs what it has.
    mesh = jax.make_mesh((len(devices),), ("batch",), axis_types=(AxisType.Auto,))
    even = numbers[:size - size % len(devices)]
    placed = jax.device_put(even, NamedSharding(mesh, PartitionSpec("batch")))
    np.testing.assert_array_equal(jax.jit(lanax.vmap(steps_to_one))(placed), want[:len(even)])

    # A sharding pinned inside a computation, for any length.
    def pinned(numbers):
        sharding = lanax.PositionalSharding(devices)
        return lanax.vmap(steps_to_one)(lanax.with_sharding_constraint(numbers + 1 - 1, sharding))

    np.testing.assert_array_equal(jax.jit(pinned)(numbers), want)


if __name__ == "__main__":
    main()
