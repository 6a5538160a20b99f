"""The examples run, on small sizes; each compares its answer with that of `jax.vmap`."""

from __future__ import annotations

import pathlib
import runpy
from typing import Any

import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "examples"
SIZES: dict[str, dict[str, Any]] = {
    "01_mandelbrot": {"width": 72, "height": 24},
    "02_lorenz_diffrax": {"systems": 200},
    "03_explain_and_plan": {"size": 300},
    "05_devices": {"size": 301},
    "06_distributed": {"rows": 1003},
}


def test_every_example_is_run() -> None:
    assert sorted(file.stem for file in FOLDER.glob("*.py")) == sorted(SIZES)


@pytest.mark.parametrize("name", SIZES)
def test_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(FOLDER / f"{name}.py"))["main"](**SIZES[name])
    assert capsys.readouterr().out
