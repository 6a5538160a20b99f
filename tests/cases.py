"""The table: every row of every family. One row for a primitive buys all the sweeps of `run/test_cases.py`."""

from __future__ import annotations

import importlib
import pathlib

from case import Case

CASES: list[Case] = [case for file in sorted(pathlib.Path(__file__).parent.glob("cases_*.py"))
                     for case in importlib.import_module(file.stem).CASES]
