"""`python -m lanax demo`: lanax's main job on real programs, with pictures of two answers."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lanax._commands.bench import QUICK_BUDGET, measure_all, verdict
from lanax._commands.console import console
from lanax._suite.programs import find
from lanax._suite.report import machine, table
from lanax._suite.timing import Result

PROGRAMS = ("mandelbrot", "lorenz_rk", "lorenz_diffrax", "kepler", "black_scholes")
BUDGET = 6.0


def run(folder: Path, quick: bool) -> int:
    """Times five programs, prints the table, saves the pictures. Returns 1 where an answer is wrong."""
    out = console()
    facts = machine()
    out.print(
        f"Five per-example programs, batched by jax.vmap and by lanax.vmap, on {facts['cores']} cores with "
        f"{facts['instruction_set']}."
    )
    results = measure_all(find(PROGRAMS), quick=quick, budget=QUICK_BUDGET if quick else BUDGET, out=out)
    out.print(table(results, goals=False))
    for line in _save_pictures(results, folder):
        out.print(line)
    return verdict(results, out)


def _save_pictures(results: Sequence[Result], folder: Path) -> list[str]:
    """Saves what can be drawn; returns what to tell about it."""
    if importlib.util.find_spec("matplotlib") is None:
        return ["No pictures: matplotlib is not installed (pip install 'lanax\\[plot]')."]
    folder.mkdir(parents=True, exist_ok=True)
    painters = {"mandelbrot": _save_mandelbrot, "lorenz_rk": _save_lorenz}
    saved = []
    for result in results:
        if result.program.name in painters:
            path = folder / f"demo-{result.program.name.split('_')[0]}.png"
            painters[result.program.name](result, path)
            saved.append(f"saved {path}")
    return saved


def _save_mandelbrot(result: Result, path: Path) -> None:
    """The escape counts as a picture."""
    from matplotlib import image  # optional

    counts = np.asarray(result.answer)
    side = round(counts.size**0.5)
    image.imsave(path, np.log(counts.reshape(side, side)), cmap="magma", origin="lower")


def _save_lorenz(result: Result, path: Path) -> None:
    """Where each system of the ensemble has come to, coloured by its parameter."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # optional
    from matplotlib.figure import Figure

    states = np.asarray(result.answer)
    rho = np.asarray(result.program.make(result.batch).args[1])
    figure = Figure(figsize=(8, 6), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    points = axes.scatter(states[:, 0], states[:, 2], c=rho, s=1.0, cmap="viridis", linewidths=0.0)
    figure.colorbar(points, label="rho")
    axes.set(xlabel="x", ylabel="z", title=f"{result.batch:,} Lorenz systems at t = 1")
    canvas.print_png(path)
