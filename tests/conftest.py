"""Puts this folder on the import path: pytest does so for a folder with a conftest.py."""

import os
import shutil
import tempfile

import jax
import pytest

# Tests of float64 switch it on themselves; a test must not depend on the shell's settings.
jax.config.update("jax_platforms", "cpu")

# Nor on lanax's settings there, nor on kernels that another run left. The workers of one run share a folder.
if "PYTEST_XDIST_WORKER" not in os.environ:
    for name in [name for name in os.environ if name.startswith("LANAX_")]:
        del os.environ[name]
    os.environ["LANAX_CACHE_DIR"] = tempfile.mkdtemp(prefix="lanax-tests-")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the folder of the run's kernels."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        shutil.rmtree(os.environ["LANAX_CACHE_DIR"], ignore_errors=True)
