"""Puts this folder on the import path: pytest does so for a folder with a conftest.py."""

import jax

# Tests of float64 switch it on themselves; a test must not depend on the shell's settings.
jax.config.update("jax_platforms", "cpu")
