"""Runs kernels: from an LLVM module to a custom call that XLA makes. Knows no jaxpr and no primitive."""
