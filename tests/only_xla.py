"""A primitive that has no lane code and never will, for tests of programs that are cut."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
from jax._src import dispatch
from jax._src.interpreters import ad, batching, mlir
from jax.extend.core import Primitive

only_xla_p = Primitive("only_xla")
only_xla_p.def_abstract_eval(lambda x: x)
only_xla_p.def_impl(functools.partial(dispatch.apply_primitive, only_xla_p))
batching.defvectorized(only_xla_p)
ad.deflinear2(only_xla_p, lambda ct, x: [only_xla_p.bind(ct)])
# The short float shows in the text of a compiled program which shapes XLA has computed.
mlir.register_lowering(only_xla_p, mlir.lower_fun(lambda x: x.astype(jnp.bfloat16).astype(x.dtype),
                                                  multiple_results=False))


def only_xla(x: Any) -> Any:
    """A float32 array, rounded to bfloat16."""
    return only_xla_p.bind(x)
