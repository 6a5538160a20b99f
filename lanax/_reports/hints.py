"""What would mend a miss, by the kind of its reason. Reads reasons; makes none."""

from __future__ import annotations

import re

from lanax._planning.partition import Miss

_CALLBACKS = ("pure_callback", "io_callback", "buffer_callback", "debug_callback", "debug_print")
_BETTER = "nothing to mend: XLA is taken to be faster here; Plan(route='lanes') puts it into lanes all the same"

#: The first pattern that is found in the reason counts.
_HINTS: tuple[tuple[str, str], ...] = (
    ("TracerBoolConversionError|ConcretizationTypeError",
     "a Python `if`, `while`, `and` or `not` looks at an array: use jnp.where, jax.lax.cond or jax.lax.while_loop"),
    ("TracerArrayConversionError", "NumPy was given an array of JAX: use the function of jax.numpy"),
    ("TracerIntegerConversionError",
     "an array is used as a Python int: index by jnp.take or jax.lax.dynamic_slice, count by jax.lax.fori_loop"),
    ("NonConcreteBooleanIndexError", "a shape depends on values: use jnp.where(condition, x, y) with three arguments"),
    ("cannot be traced", "jax.make_jaxpr of the function for one example shows the error"),
    ("too large for the memory of a lane",
     "work on smaller pieces of the array, by jax.lax.scan over one of its axes, or reduce it before the call"),
    ("side effect", "take it out of loops and branches, or return the value and print it after the call"),
    ("exchanges values", "keep it out of loops and branches: elsewhere it only divides the program into two kernels"),
    ("rule of custom_vmap", "leave the rule out: lanax needs none"),
    ("reduces over the whole batch|(?<!product )over the batch", "reduce the results after the mapped call"),
    ("better served by XLA|one matrix product over the batch|faster in XLA|memory decides|"
     "elementwise, which XLA fuses|XLA streams", _BETTER),
    ("no kernel, so that jax.lax.map", "mend the other misses, or use lanax.vmap, which cuts the program there"),
    ("`rbg`", "use keys of the default generator: jax.random.key(seed, impl='threefry2x32')"),
    ("SPMD", "leave out `spmd_axis_name`; lanax splits a batch that is sharded by itself"),
    ("mutable arrays", "make the mutable array inside the function (jax.new_ref), outside of custom derivatives"),
    ("matrix of .* left to XLA|permutation of|right-hand sides of|sort of|top_k of|Fourier transform",
     "only smaller ones are in lanes (docs/primitives.md)"),
    ("values of dtype|of dtype", "compute in float32, float64 or int32: x.astype(jnp.float32)"),
    ("values of type", "only arrays of numbers, bools and random keys are in lanes"),
    ("host, one example after another", "compute it before the mapped call"),
    ("no lowering rule|has no lowering rule", "register a rule or a composition for it: docs/adding_a_primitive.md"),
)


def hint(miss: Miss) -> str:
    """What would mend a miss, in a few words; empty where nothing is known."""
    inner = re.findall(r"it holds `([^`]+)`", miss.reason)
    primitive = inner[-1] if inner else miss.primitive
    if primitive in _CALLBACKS and "side effect" not in miss.reason:
        return "it calls Python on the host: write it with jax.numpy, or take it out of loops and branches"
    return next((text for pattern, text in _HINTS if re.search(pattern, miss.reason)), "")
