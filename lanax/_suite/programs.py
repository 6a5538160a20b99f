"""The table of the benchmark programs: sizes, goals and checks. Knows nothing of timing."""

from __future__ import annotations

from collections.abc import Sequence

from lanax._suite import arrays, estimation, gradients, libraries, loops, matrices, odes, renderer, sampling
from lanax._suite.program import Check, Program

#: Goals are for two threads, float32, on AVX2, against `jit(jax.vmap(f))` in the same process.
PROGRAMS: tuple[Program, ...] = (
    Program("mandelbrot", "Mandelbrot, 256 iterations", loops.mandelbrot, 1024**2, 128**2, 50.0,
            Check(fraction=0.995)),
    Program("lorenz_rk", "adaptive Lorenz, Bogacki-Shampine by hand", odes.lorenz_rk, 100_000, 2_000, 18.0,
            Check(tolerance=1e-3)),
    Program("lorenz_diffrax", "adaptive Lorenz, diffrax Tsit5", odes.lorenz_diffrax, 100_000, 2_000, 25.0,
            Check(tolerance=1e-3), needs=("diffrax",)),
    Program("kepler", "Kepler's equation by Newton", loops.kepler, 1_000_000, 20_000, 16.0, Check(tolerance=1e-4)),
    Program("collatz", "Collatz length, int32", loops.collatz, 1_000_000, 20_000, 4.5, Check()),
    Program("renderer", "sphere-tracing renderer", renderer.renderer, 512**2, 64**2, 120.0,
            Check(tolerance=1e-3, fraction=0.998)),
    Program("rk4_vdp", "Van der Pol, 1000 RK4 scan steps", odes.rk4_vdp, 100_000, 2_000, 1.5, Check(tolerance=2e-3)),
    Program("straggler", "255 mild oscillators, 1 stiff (200 x)", odes.straggler, 256, 256, 50.0,
            Check(tolerance=1e-3)),
    Program("sinexp", "three times sin(x) exp(-x)", arrays.sinexp, 16 * 1024**2, 256 * 1024, 3.0,
            Check(tolerance=1e-6)),
    Program("black_scholes", "Black-Scholes call and put", arrays.black_scholes, 1_000_000, 50_000, 1.0,
            Check(tolerance=5e-5)),
    Program("saxpy", "saxpy", arrays.saxpy, 16 * 1024**2, 256 * 1024, 1.0, Check(tolerance=1e-6)),
    Program("mlp", "perceptron 784-128-10", arrays.mlp, 8192, 512, 1.0, Check(tolerance=1e-5)),
    Program("matmul4", "4x4 matrix product", matrices.matmul4, 500_000, 20_000, 1.0, Check(tolerance=1e-5)),
    Program("matmul8", "8x8 matrix product", matrices.matmul8, 100_000, 5_000, 1.0, Check(tolerance=1e-5)),
    Program("cholesky3", "3x3 Cholesky", matrices.cholesky3, 1_000_000, 20_000, 30.0, Check(tolerance=1e-5)),
    Program("solve4", "4x4 solve", matrices.solve4, 500_000, 20_000, 20.0, Check(tolerance=1e-3, fraction=0.999)),
    Program("inv3", "3x3 inverse of a product", matrices.inv3, 1_000_000, 20_000, 16.0,
            Check(tolerance=1e-2, fraction=0.999)),
    Program("cholesky_solve6", "6x6 Cholesky and its two solves", matrices.cholesky_solve6, 200_000, 10_000, 14.0,
            Check(tolerance=1e-3)),
    Program("eigh8", "8x8 eigh with vectors", matrices.eigh8, 20_000, 1_000, 7.0,
            Check(tolerance=1e-3, fraction=0.99)),
    Program("svd3", "3x3 svd", matrices.svd3, 200_000, 5_000, 10.0, Check(tolerance=1e-3, fraction=0.99)),
    Program("expm3", "3x3 expm, mixed norms", matrices.expm3, 100_000, 2_000, 10.0, Check(tolerance=1e-3)),
    Program("kalman", "Kalman filter, 100 steps", estimation.kalman, 20_000, 500, 120.0, Check(tolerance=1e-3)),
    Program("kalman_alike", "the same, with one noise for all", estimation.kalman_alike, 20_000, 500, 1.0,
            Check(tolerance=1e-3)),
    Program("marquardt", "Levenberg-Marquardt by hand", estimation.marquardt, 50_000, 1_000, 13.0,
            Check(tolerance=1e-3)),
    Program("kinematics", "inverse kinematics of two links", estimation.kinematics, 100_000, 2_000, 100.0,
            Check(tolerance=1e-3, fraction=0.999)),
    Program("logistic200", "logistic regression of 200 observations", estimation.logistic200, 10_000, 500, 1.0,
            Check(tolerance=1e-4)),
    Program("gradients24", "conjugate gradients, 24 equations", estimation.gradients24, 20_000, 500, 1.0,
            Check(tolerance=1e-4)),
    Program("softmax100", "softmax of 100 numbers", arrays.softmax100, 100_000, 5_000, 1.0, Check(tolerance=1e-6)),
    Program("sort32", "sort of 32 numbers", sampling.sort32, 100_000, 2_000, 15.0, Check()),
    Program("median101", "median of 101 numbers", sampling.median101, 20_000, 1_000, 1.0, Check(tolerance=1e-6)),
    Program("deviation1000", "standard deviation of 1000 numbers", sampling.deviation1000, 20_000, 500, 1.0,
            Check(tolerance=1e-5)),
    Program("monte_carlo", "Monte Carlo path, 252 days", sampling.monte_carlo, 20_000, 500, 4.0,
            Check(tolerance=1e-2)),
    Program("ode_gradient", "gradient through an adaptive solver", gradients.ode_gradient, 20_000, 500, 5.0,
            Check(tolerance=1e-2, fraction=0.99)),
    Program("greeks", "Black-Scholes Greeks by jax.grad", gradients.greeks, 1_000_000, 50_000, 3.0,
            Check(tolerance=1e-4)),
    Program("hessian", "Hessian of a likelihood", gradients.hessian, 100_000, 2_000, 5.0, Check(tolerance=1e-2)),
    Program("forces64", "forces of all pairs of 64 points", gradients.forces64, 2_000, 100, 1.0, Check(tolerance=1e-3)),
    Program("robertson", "Robertson, diffrax Kvaerno5", libraries.robertson, 10_000, 200, 10.0,
            Check(tolerance=1e-3), needs=("diffrax",)),
    Program("optimistix_fit", "optimistix Levenberg-Marquardt", libraries.optimistix_fit, 20_000, 500, 10.0,
            Check(tolerance=1e-3), needs=("optimistix",)),
    Program("nuts", "blackjax NUTS, 100 steps", libraries.nuts, 1_000, 50, 3.0,
            Check(tolerance=1e-2, fraction=0.99), needs=("blackjax",)),
)


def find(names: Sequence[str]) -> tuple[Program, ...]:
    """The programs of these names, all of them for no names. Raises `KeyError` for a name that does not exist."""
    known = {program.name: program for program in PROGRAMS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise KeyError(f"no benchmark program {', '.join(unknown)}; there are {', '.join(known)}")
    return tuple(known[name] for name in names) or PROGRAMS
