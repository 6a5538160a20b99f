"""Emits LLVM IR for lane values: arithmetic, memory, control flow. Knows no jaxpr and no primitive."""
