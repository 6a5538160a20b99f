"""Arrays of random keys as arrays of their words, with trailing axes."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def key_type(x: Any) -> Any:
    """The dtype of an array of random keys, or of its type; None for others."""
    return x.dtype if jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key) else None


def is_key(x: Any) -> bool:
    """Whether an array, or a type, is of random keys."""
    return key_type(x) is not None


def words_shape(x: Any) -> tuple[int, ...]:
    """Shape of the words of one key."""
    return x.dtype._impl.key_shape


def words_type(x: Any) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype of `words_of` an array, or a type."""
    return ((*x.shape, *words_shape(x)), np.dtype(np.uint32)) if is_key(x) else (tuple(x.shape), x.dtype)


def words_of(x: Any) -> Any:
    """The words of keys; other arrays as they are."""
    return jax.random.key_data(x) if is_key(x) else x


def of_words(words: Any, keys: Any) -> Any:
    """The array of which these are the words; `keys` is its `key_type`."""
    return words if keys is None else jax.random.wrap_key_data(words, impl=keys._impl)
