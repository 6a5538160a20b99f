"""Runs the tests of this folder that need several devices, in a process that has eight."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


@pytest.mark.parametrize("name", sorted(p.name for p in FOLDER.glob("eight_*.py")))
def test_on_eight_devices(name):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FOLDER / name)],
        env={**os.environ, "XLA_FLAGS": flags}, cwd=FOLDER.parent.parent, capture_output=True, text=True, timeout=900,
        check=False)
    assert run.returncode == 0, run.stdout + run.stderr
