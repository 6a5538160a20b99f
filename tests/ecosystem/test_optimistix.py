"""Optimistix, lineax and `jax.scipy.optimize` by lanax."""

from __future__ import annotations

import pytest

pytest.importorskip("optimistix")

import optimistix_programs
from program import Program, assert_same


@pytest.mark.parametrize("program", optimistix_programs.PROGRAMS, ids=str)
def test_same(program: Program) -> None:
    assert_same(program)
