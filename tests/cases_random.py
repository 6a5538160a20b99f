"""Rows for random keys and bits of each kind of keys, and for what is replaced by other primitives: sparse matrices,
polynomials."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from case import Arg, Case
from jax import lax
from jax.experimental import sparse

#: Kinds of keys of the installed JAX whose bits are those of each example by itself, and the words of a key.
COUNTERS = {"threefry2x32": 2, "threefry4x32": 4, "philox2x32": 1, "philox4x32": 2}


def is_installed(impl: str) -> bool:
    try:
        jax.random.key(0, impl=impl)
    except ValueError:
        return False
    return True


COUNTERS = {impl: words for impl, words in COUNTERS.items() if is_installed(impl)}
#: The primitive that hashes for a kind of keys.
HASHES = [impl for impl in COUNTERS if impl != "threefry2x32"]


def words_of(count: int) -> Arg:
    return lambda rng, batch: rng.integers(0, 2**32, (batch, count), dtype=np.uint32)


def _of_keys(primitive: str, impl: str, words: int, fun: Callable[[Any], Any], **more: Any) -> Case:
    return Case(primitive, impl, lambda w: fun(jax.random.wrap_key_data(w, impl=impl)), (words_of(words),), **more)


def _random() -> list[Case]:
    out: list[Case] = []
    for impl, words in COUNTERS.items():
        out += [_of_keys("random_bits", impl, words, lambda k: (jax.random.bits(k, (3,)), jax.random.bits(
                    k, (2,), jnp.uint8), jax.random.bits(k, (2,), jnp.uint64))),
                _of_keys("random_gamma", impl, words, lambda k: jax.random.gamma(k, jnp.float32(1.7)), rtol=1e-4)]
    for impl in HASHES:
        hashed = jax.random.key(0, impl=impl).dtype._impl.random_bits
        out.append(Case(impl, "", lambda w, draw=hashed: draw(w, 32, (3,)), (words_of(COUNTERS[impl]),)))
    for impl, words in {**COUNTERS, "rbg": 4}.items():
        out += [_of_keys("random_split", impl, words, lambda k: jax.random.key_data(jax.random.split(k, 3))),
                _of_keys("random_fold_in", impl, words, lambda k: jax.random.key_data(jax.random.fold_in(k, 9))),
                Case("random_seed", impl, lambda s, i=impl: jax.random.key_data(jax.random.key(s, impl=i)),
                     (((), np.int32),))]
    return out


def _matrix(rng: np.random.Generator, batch: int) -> np.ndarray:
    x = rng.normal(size=(batch, 4, 3))
    return (x * (rng.random((batch, 4, 3)) < 0.4)).astype(np.float32)


VECTOR: Arg = ((3,), np.float32)
PLACES = np.array([[0, 1], [2, 3]])


def _bcoo(m: Any) -> Any:
    return sparse.BCOO.fromdense(m, nse=12)


def _sparse() -> list[Case]:
    """Sparse matrices, each made of a dense one."""
    rows: dict[str, Callable[..., Any]] = {
        "bcoo_fromdense": lambda m: _bcoo(m).data,
        "bcoo_todense": lambda m: _bcoo(2 * m).todense(),
        "bcoo_transpose": lambda m: _bcoo(m).T.todense(),
        "bcoo_sort_indices": lambda m: _bcoo(m).T.sort_indices().todense(),
        "bcoo_sum_duplicates": lambda m: _bcoo(m).sum_duplicates(nse=12).todense(),
        "bcoo_extract": lambda m: sparse.bcoo_extract(_bcoo(m), m + 1).data,
        "bcoo_spdot_general": lambda m: (_bcoo(m) @ _bcoo(m.T)).todense(),
        "bcoo_dot_general_sampled": lambda m: sparse.bcoo_dot_general_sampled(
            m, m.T, PLACES, dimension_numbers=(((1,), (0,)), ((), ()))),
        "bcsr_fromdense": lambda m: sparse.BCSR.fromdense(m, nse=12).data,
        "bcsr_todense": lambda m: sparse.BCSR.fromdense(m, nse=12).todense(),
        "bcsr_extract": lambda m: sparse.bcsr_extract(*_bcsr_parts(m), m + 1),
        "todense": lambda m: sparse.todense(_bcoo(m)),
    }
    out = [Case(name, "", fun, (_matrix,)) for name, fun in rows.items()]
    return [*out, Case("bcoo_dot_general", "", lambda m, v: _bcoo(m) @ v, (_matrix, VECTOR)),
            Case("bcsr_dot_general", "", lambda m, v: sparse.BCSR.fromdense(m, nse=12) @ v, (_matrix, VECTOR))]


def _bcsr_parts(m: Any) -> tuple[Any, Any]:
    made = sparse.BCSR.fromdense(m, nse=12)
    return made.indices, made.indptr


def _others() -> list[Case]:
    floats = ((), np.float32), ((), np.float64)
    out: list[Case] = []
    if hasattr(lax, "log2"):
        out += [Case("log2", np.dtype(d).name, lambda x: lax.log2(jnp.abs(x)), ((shape, d),)) for shape, d in floats]
        out += [Case("one_minus_square", "", lambda x: jax.grad(jnp.arcsin)(jnp.tanh(x)), (floats[0],), rtol=1e-4)]
    if hasattr(lax, "polynomial"):
        out += [Case("polynomial", np.dtype(d).name, lambda x: lax.polynomial(x, [1.0, 2.0, -0.5]), ((shape, d),))
                for shape, d in floats]
    return out


CASES = [*_random(), *_sparse(), *_others()]
