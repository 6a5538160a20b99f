"""Environments, and modules of JAX itself, by lanax."""

from __future__ import annotations

import jax_programs
import pytest
from program import Program, assert_same


@pytest.mark.parametrize("program", jax_programs.PROGRAMS, ids=str)
def test_same(program: Program) -> None:
    assert_same(program)
