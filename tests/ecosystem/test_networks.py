"""Equinox, flax and optax by lanax."""

from __future__ import annotations

import pytest

pytest.importorskip("equinox")
pytest.importorskip("flax")
pytest.importorskip("optax")

import networks_programs
from program import Program, assert_same


@pytest.mark.parametrize("program", networks_programs.PROGRAMS, ids=str)
def test_same(program: Program) -> None:
    assert_same(program)
