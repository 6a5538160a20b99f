"""The table of the benchmark programs: sizes, goals and checks. Knows nothing of timing."""

from __future__ import annotations

from collections.abc import Sequence

from lanax._suite import arrays, loops, odes, renderer
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
)


def find(names: Sequence[str]) -> tuple[Program, ...]:
    """The programs of these names, all of them for no names. Raises `KeyError` for a name that does not exist."""
    known = {program.name: program for program in PROGRAMS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise KeyError(f"no benchmark program {', '.join(unknown)}; there are {', '.join(known)}")
    return tuple(known[name] for name in names) or PROGRAMS
