"""Blackjax and numpyro by lanax."""

from __future__ import annotations

import pytest

pytest.importorskip("blackjax")
pytest.importorskip("numpyro")

import sampling_programs
from program import Program, assert_same


@pytest.mark.parametrize("program", sampling_programs.PROGRAMS, ids=str)
def test_same(program: Program) -> None:
    assert_same(program)
