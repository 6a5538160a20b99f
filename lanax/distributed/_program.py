"""The user's function as it is run on some rows, and what it is called by in other processes. Knows no process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from lanax import _jax
from lanax._api import is_divisible, vmap
from lanax._config import resolve
from lanax._plan import Plan
from lanax._program import digest
from lanax.distributed._initialize import local_devices
from lanax.distributed._inputs import Inputs, typed

#: Rows of the batch that is traced.
_ROWS = 64


@dataclasses.dataclass(frozen=True)
class Program:
    """What runs on some rows: a compiled function for each number of them.

    Attributes:
      name, digest: of the user's function, and what it computes, the same in every process.
      plan: as it is resolved.
      run: takes and gives leaves of a batch, keys as their words.
      out_types, out_tree: of the results; types of one row.
      calls_back: whether it calls Python functions, of which the digest knows the names only.
    """

    name: str
    digest: str
    plan: Plan
    run: Callable[..., Any]
    out_types: list[Any]
    out_tree: Any
    calls_back: bool

    @property
    def kinds(self) -> list[tuple[tuple[int, ...], np.dtype]]:
        """Shape and dtype of one row of each result, as it is kept."""
        return list(map(_jax.words_type, self.out_types))


#: What was compiled in earlier calls, the latest last.
_kept: dict[Any, Program] = {}
_KEPT = 16


def program_of(caller: str, f: Callable[..., Any], given: Inputs, plan: Plan) -> Program:
    """What `f` is for these inputs.

    Raises ValueError where it needs to see the whole batch, and what `f` raises."""
    name = getattr(f, "__name__", type(f).__name__)
    out_tree: Any = None

    def flat(*leaves: Any) -> list[Any]:
        nonlocal out_tree
        outs, out_tree = jax.tree.flatten(f(jax.tree.unflatten(given.tree, leaves)))
        return outs

    closed = _jax.trace(flat, [_jax.core.ShapedArray(t.shape, t.dtype, weak_type=t.weak_type) for t in given.types],
                        name)
    found = digest(closed)
    calls_back = _calls_back(_jax.open_and_consts(closed)[0])
    key = (found, given.tree, out_tree, plan, resolve(plan), tuple(local_devices()))
    if key in _kept and not calls_back:
        _kept[key] = _kept.pop(key)
        return _kept[key]
    mapped = vmap(f, plan=plan)
    rows = [jax.ShapeDtypeStruct((_ROWS, *t.shape), t.dtype, weak_type=t.weak_type) for t in given.types]
    batch = jax.tree.unflatten(given.tree, rows)
    outs = jax.eval_shape(mapped, batch)  # the errors of f are raised here
    if not is_divisible(mapped, (batch,), {}):
        raise ValueError(f"`f` of {caller}, {name}, cannot be shared out: its results for some rows are not known to "
                         "be those for the whole batch. It has a rule of custom_vmap, reduces over the batch, or "
                         "cannot be traced for one example; `lanax.explain(lanax.vmap(f), xs)` says more.")
    types = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype, weak_type=x.weak_type) for x in jax.tree.leaves(outs)]
    program = Program(name, found, resolve(plan), _compiled(mapped, given.tree, given.types), types, out_tree,
                       calls_back)
    _kept[key] = program
    while len(_kept) > _KEPT:
        del _kept[next(iter(_kept))]
    return program


def _calls_back(jaxpr: Any) -> bool:
    return any("callback" in e.primitive.name or any(_calls_back(j) for j in _jax.jaxprs_in(e)) for e in jaxpr.eqns)


def _compiled(mapped: Callable[..., Any], tree: Any, types: Sequence[Any]) -> Callable[..., Any]:
    def run(*words: Any) -> list[Any]:
        leaves = [typed(w, t) for w, t in zip(words, types, strict=True)]
        return [_jax.words_of(x) for x in jax.tree.leaves(mapped(jax.tree.unflatten(tree, leaves)))]

    return jax.jit(run)
