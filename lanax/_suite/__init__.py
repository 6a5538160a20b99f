"""Benchmark programs, how they are timed and how the figures are shown. Uses only what `lanax` and `jax` export."""
