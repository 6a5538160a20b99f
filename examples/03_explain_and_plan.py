"""What runs where, and why: `lanax.explain` shows the plan of a call, `lanax.Plan` changes it."""

import jax
import jax.numpy as jnp
import numpy as np

import lanax


def project(weights, x):
    """A large product, which XLA is better at, then a loop that each example leaves at its own time."""
    y = jnp.tanh(weights @ x)
    return jax.lax.while_loop(lambda v: jnp.abs(v).sum() > 1.0, lambda v: v * v * 0.9, y[:8])


def main(size=10_000):
    rng = np.random.default_rng(0)
    weights, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((64, 64), (size, 64)))
    want = jax.vmap(project, (None, 0))(weights, x)

    mapped = lanax.vmap(project, (None, 0))
    report = lanax.explain(mapped, weights, x)
    print(report, end="\n\n")
    assert report.routes == ("xla", "lanes")
    assert [miss.primitive for miss in report.misses] == ["dot_general"]

    # Each field of a plan may be given; what is left out is chosen. The bits do not depend on lanes, threads or chunk.
    results = []
    for plan in (lanax.Plan(), lanax.Plan(lanes=4), lanax.Plan(threads=1, chunk=1000), lanax.Plan(route="serial")):
        planned = lanax.vmap(project, (None, 0), plan=plan)
        print(f"{plan!s:32} {lanax.explain(planned, weights, x).plan_line}")
        results.append(np.asarray(planned(weights, x)))
    for result in results:
        np.testing.assert_allclose(result, want, rtol=1e-4, atol=1e-6)

    print("\nWhich values vary over the batch (v), and which are the same for all examples (u):")
    print(mapped.lower(weights, x).as_text("uniformity"))


if __name__ == "__main__":
    main()
