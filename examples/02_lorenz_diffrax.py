"""A library, unchanged: an ensemble of Lorenz systems, each solved by diffrax with steps of its own."""

import time

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

import lanax


def lorenz(t, y, rho):
    x, y, z = y
    return jnp.array([10.0 * (y - x), x * (rho - z) - y, x * y - 8.0 / 3.0 * z])


def solve(start, rho):
    """State at t = 1 and the number of steps, for one system."""
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lorenz), diffrax.Tsit5(), t0=0.0, t1=1.0, dt0=0.01, y0=start, args=rho,
        stepsize_controller=diffrax.PIDController(rtol=1e-5, atol=1e-5),
    )
    return solution.ys[0], solution.stats["num_steps"]


def timed(name, mapped, *args):
    start = time.perf_counter()
    compiled = mapped.lower(*args).compile()
    middle = time.perf_counter()
    out = jax.block_until_ready(compiled(*args))
    print(f"{name:12} compiled in {middle - start:5.1f} s, runs in {1e3 * (time.perf_counter() - middle):8.1f} ms")
    return out


def main(systems=10_000):
    rng = np.random.default_rng(0)
    starts = (1.0 + 0.5 * rng.standard_normal((systems, 3))).astype(np.float32)
    rho = rng.uniform(0.5, 28.0, systems).astype(np.float32)

    want, want_steps = timed("jax.vmap", jax.jit(jax.vmap(solve)), starts, rho)
    got, steps = timed("lanax.vmap", jax.jit(lanax.vmap(solve)), starts, rho)

    np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-2)
    assert abs(steps.mean() - want_steps.mean()) < 0.1  # rounding decides whether a step is accepted
    print(f"steps of one system: from {steps.min()} to {steps.max()}, on average {steps.mean():.1f}")


if __name__ == "__main__":
    main()
