"""Arrays of random keys and of complex numbers: in a kernel they are arrays of their words, or parts, with a trailing
axis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lanax._jax import is_key, words_shape
from lanax._lowering.arrays import Array
from lanax._lowering.context import Context, Rule


def is_complex(aval: Any) -> bool:
    """Whether a type is of complex numbers: in a kernel, inputs and results only."""
    return getattr(aval.dtype, "kind", "") == "c"


def by_word(ctx: Context, rule: Rule, operands: list[Array], params: Mapping[str, Any]) -> list[Array]:
    """Apply a rule that moves elements about to each word of the keys, and put the results together again."""
    b = ctx.b
    shape = next(words_shape(a) for a in (*ctx.avals_in, *ctx.avals_out) if is_key(a))
    columns = []
    for word in np.ndindex(*shape):
        parts = []
        for x, aval in zip(operands, ctx.avals_in, strict=True):
            if is_key(aval):
                x = b.view(x, aval.shape, lambda *i, word=word: (*i, *word))
            parts.append(x)
        out = rule(ctx, *parts, **params)
        columns.append([out] if isinstance(out, Array) else list(out))
    return [_join(ctx, [column[k] for column in columns], shape) if is_key(aval) else columns[0][k]
            for k, aval in enumerate(ctx.avals_out)]


def _join(ctx: Context, words: list[Array], shape: tuple[int, ...]) -> Array:
    b = ctx.b
    whole = (*words[0].shape, *shape)
    rank = len(words[0].shape)
    if all(b.is_small(w) for w in words) and np.prod(whole) <= 4 * words[0].size * len(words):
        values = [words[k].at(*i) for i in np.ndindex(*words[0].shape) for k in range(len(words))]
        return b.settled(b.elements(values, whole, words[0].dtype))
    out = b.allocate(whole, words[0].dtype, any(w.varying for w in words))
    for word, source in zip(np.ndindex(*shape), words, strict=True):
        b.for_each(source.shape, lambda *i, word=word, source=source: out.put((*i, *word), source.at(*i[:rank])))
    return out
