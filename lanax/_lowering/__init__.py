"""From a per-example jaxpr to LLVM IR: kernel -> rules -> jaxpr -> registry -> context -> emitter -> arrays."""
