"""Algorithms on small dense matrices, as lane code on lists of lane values. Knows no primitive and no array."""
