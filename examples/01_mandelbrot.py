"""A loop whose length depends on the data: each point of the plane leaves it at its own time."""

import time

import jax
import jax.numpy as jnp
import numpy as np

import lanax


def escape_count(c):
    """Steps after which z -> z^2 + c leaves the circle of radius 2, for one point; at most 256."""

    def inside(state):
        (x, y), n = state
        return (x * x + y * y <= 4.0) & (n < 256)

    def step(state):
        (x, y), n = state
        return jnp.array([x * x - y * y + c[0], 2 * x * y + c[1]]), n + 1

    return jax.lax.while_loop(inside, step, (jnp.zeros(2), 0))[1]


def timed(name, mapped, points):
    jax.block_until_ready(mapped(points))  # compiles
    start = time.perf_counter()
    counts = np.asarray(mapped(points))
    print(f"{name:12}{1e3 * (time.perf_counter() - start):8.1f} ms")
    return counts


def main(width=640, height=480):
    x, y = np.meshgrid(np.linspace(-2.2, 0.8, width), np.linspace(-1.2, 1.2, height))
    points = np.stack([x.ravel(), y.ravel()], axis=1).astype(np.float32)

    want = timed("jax.vmap", jax.jit(jax.vmap(escape_count)), points)
    got = timed("lanax.vmap", jax.jit(lanax.vmap(escape_count)), points)

    assert np.mean(got != want) < 0.01  # one rounding decides when a point on the rim leaves
    picture = got.reshape(height, width)[:: max(1, height // 24), :: max(1, width // 72)]
    for row in np.digitize(picture, [4, 6, 9, 16, 64, 256]):
        print("".join(" .:+*#@"[level] for level in row))


if __name__ == "__main__":
    main()
