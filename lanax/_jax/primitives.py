"""JAX's primitives: which there are, and what some of them are in others."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax._src import dispatch
from jax._src.core import Primitive
from jax._src.lax import lax as _lax
from jax._src.lax.scaled_dot import _scaled_dot_impl

try:
    from jax._src.random import prng  # from 0.12 on
except ImportError:
    from jax._src import prng  # type: ignore[attr-defined, no-redef]

#: Where primitives are that JAX does not import by itself.
_FURTHER_MODULES = ("jax.export", "jax.experimental.checkify", "jax.experimental.sparse", "jax.scipy.linalg",
                    "jax.scipy.special")


def installed_primitives(elsewhere: tuple[str, ...]) -> dict[str, bool]:
    """The names of all primitives of the installed JAX, and whether each stands in a module whose name does not start
    with one of `elsewhere`."""
    for name in _FURTHER_MODULES:
        importlib.import_module(name)
    found: dict[str, bool] = {}
    for module, contents in list(sys.modules.items()):
        if module.split(".")[0] == "jax" and contents is not None:
            for value in list(vars(contents).values()):
                if isinstance(value, Primitive):
                    found[value.name] = found.get(value.name, False) or not module.startswith(elsewhere)
    return found


def impl_of(primitive: Primitive) -> Callable[..., Any] | None:
    """A primitive's own `impl` where it is Python that JAX can trace; None for JAX's own primitives."""
    impl = primitive.__dict__.get("impl")
    if impl is None or (isinstance(impl, functools.partial) and impl.func is dispatch.apply_primitive):
        return None
    # JAX's own impls compile, run callbacks or look into buffers.
    return None if (getattr(impl, "__module__", None) or "").split(".")[0] in ("jax", "jaxlib") else impl


def sparse_impl(name: str) -> Callable[..., Any]:
    """What a primitive of `jax.experimental.sparse` is in dense arrays; that has been imported by whoever uses it."""
    module = importlib.import_module(f"jax.experimental.sparse.{name.split('_')[0] if '_' in name else 'api'}")
    return getattr(module, f"_{name}_impl")


def random_gamma_impl(keys: Any, a: Any, *, log_space: bool) -> Any:
    """`random_gamma` in other primitives, one element after another."""
    module = importlib.import_module("jax._src.random" + ".core" * prng.__name__.startswith("jax._src.random."))
    return module._gamma_impl(keys, a, log_space=log_space, use_vmap=False)


def counter_hash(name: str) -> Callable[..., Any]:
    """What the primitive that hashes keys and counters for keys of kind `name` is in others; from 0.12 on."""
    return getattr(importlib.import_module(f"jax._src.random.{name}"), f"_{name}_lowering")


#: What `lax.digamma` gives at 0.
DIGAMMA_OF_ZERO = -float("inf") if jax.__version_info__ >= (0, 11) else float("nan")

#: What `ragged_dot_general` and `scaled_dot` are on the CPU: functions of their operands and parameters.
ragged_dot: Any = _lax._ragged_dot_general_impl
scaled_dot: Any = _scaled_dot_impl
_PRESETS = frozenset({"DEFAULT", "F16_F16_F16", "F32_F32_F32", "F64_F64_F64", "BF16_BF16_F32", "BF16_BF16_F32_X3",
                      "BF16_BF16_F32_X6"})


def dot_dtypes(precision: Any, lhs: Any, rhs: Any, out: Any) -> tuple[np.dtype, np.dtype, np.dtype] | None:
    """The dtypes to which a product's `precision` has its operands converted first, and the dtype of the sum; None for
    one that XLA refuses on the CPU."""
    if isinstance(precision, _lax.DotAlgorithm):
        return None
    if not isinstance(precision, _lax.DotAlgorithmPreset):
        return np.dtype(lhs), np.dtype(rhs), np.dtype(out)
    if precision.name not in _PRESETS:
        return None
    left, right, total = _lax.get_algorithm_compute_types(precision, lhs, rhs, out)
    return np.dtype(left), np.dtype(right), np.dtype(out if total is None else total)
