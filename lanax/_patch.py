"""`patch`, `unpatch`: `jax.vmap`, `jax.lax.map` and `jax.numpy.vectorize` in other people's code run on lanax.

What stands in `jax` while a patch is in effect anywhere is a function that asks whether it is in effect here.
"""

from __future__ import annotations

import contextvars
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from lanax import _jax
from lanax._api import vmap
from lanax._map import map as map_
from lanax._plan import Plan

_lock = threading.RLock()
#: The plans of the `with` blocks around this, innermost last; each thread and task has its own.
_around: contextvars.ContextVar[tuple[Plan, ...]] = contextvars.ContextVar("lanax_patches", default=())
#: The plans of the patches for the whole process, latest last.
_everywhere: list[Plan] = []
#: How many `with` blocks are open in all threads.
_open_blocks = 0

# JAX keeps what it has traced apart by these, so that what was jitted before a patch is traced anew inside it.
_around_in_jit_key = _jax.JitKey()
_everywhere_in_jit_key = _jax.JitKey()


class patch:
    """Run `jax.vmap`, `jax.lax.map` and `jax.numpy.vectorize` on lanax, in any library's code.

        with lanax.patch():      # in this thread, inside the block
            ...

        lanax.patch()            # in the whole process, until lanax.unpatch()

    What `jax.vmap` gives inside stays mapped by lanax wherever it is called; what it gave before stays JAX's. Modules
    that hold the functions under a name of their own (`from jax import vmap`) are served too, but not a reference
    inside an object, a closure or a default argument. JAX's own code goes on with JAX's functions.

    (For an instant before a block begins, other threads may get lanax's functions too.)

    Args:
      plan: as for `lanax.vmap` and `lanax.map`.

    Raises:
      TypeError: `plan` is not a `Plan`.
    """

    def __init__(self, *, plan: Plan | None = None):
        if plan is not None and not isinstance(plan, Plan):
            raise TypeError(f"`plan` of lanax.patch must be a lanax.Plan or None; got {type(plan).__name__}: {plan!r}.")
        self._plan = Plan() if plan is None else plan
        with _lock:
            _everywhere.append(self._plan)
            _changed()

    def __enter__(self) -> None:
        global _open_blocks
        with _lock:
            _take_back(self._plan)
            _open_blocks += 1
            _around.set((*_around.get(), self._plan))
            _changed()

    def __exit__(self, *_: object) -> None:
        global _open_blocks
        with _lock:
            _open_blocks -= 1
            _around.set(_around.get()[:-1])
            _changed()


def unpatch() -> None:
    """Undo every `lanax.patch()` for the whole process. Those of `with` blocks end with their blocks."""
    with _lock:
        _everywhere.clear()
        _changed()


def _take_back(plan: Plan) -> None:
    """A patch that turns out to be for a `with` block is none for the process."""
    at = next((i for i in reversed(range(len(_everywhere))) if _everywhere[i] is plan), None)
    if at is not None:
        del _everywhere[at]


def _plan_here() -> Plan | None:
    """The plan of the patch in effect here, or None."""
    around = _around.get()
    if around:
        return around[-1]
    return _everywhere[-1] if _everywhere else None


def _changed() -> None:
    """Tell JAX's caches, and put the dispatchers in place or take them away."""
    around = _around.get()
    _around_in_jit_key.set_local(repr(around[-1]) if around else None)
    _everywhere_in_jit_key.set_global(repr(_everywhere[-1]) if _everywhere else None)
    if _everywhere or _open_blocks:
        _install()
    else:
        _uninstall()


# What stands for JAX's functions. Code that has got hold of one keeps it; where no patch is in effect it is JAX's.

#: Arguments of `jax.vmap` that `lanax.vmap` has too.
_VMAP_ARGS = 6


@functools.wraps(_jax.vmap)
def _vmap(*args: Any, **kwargs: Any) -> Any:
    plan = _plan_here()
    if plan is None or len(args) > _VMAP_ARGS or "sum_match" in kwargs:
        return _jax.vmap(*args, **kwargs)
    return vmap(*args, **kwargs, plan=plan)


@functools.wraps(_jax.lax_map)
def _lax_map(*args: Any, **kwargs: Any) -> Any:
    plan = _plan_here()
    return _jax.lax_map(*args, **kwargs) if plan is None else map_(*args, **kwargs, plan=plan)


@functools.wraps(_jax.vectorize)
def _vectorize(pyfunc: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    # JAX writes parts of its linear algebra with it.
    own = (getattr(pyfunc, "__module__", None) or "").split(".")[0] == "jax"
    return (_jax.vectorize if own or _plan_here() is None else _by_lanax)(pyfunc, *args, **kwargs)


_by_lanax = _jax.vectorize_with(_vmap)
_DISPATCHERS = {id(_jax.vmap): _vmap, id(_jax.lax_map): _lax_map, id(_jax.vectorize): _vectorize}

# Modules that hold JAX's functions.

#: The public ones of JAX; other modules of JAX are its own business.
_JAX_NAMES = (("jax", "vmap"), ("jax.lax", "map"), ("jax.numpy", "vectorize"))
#: Where the dispatchers stand now: (module, name, what stood there).
_placed: list[tuple[Any, str, Any]] = []
#: For modules that have been searched, by name: the module, how many globals it had, and which of them are replaced.
_searched: dict[str, tuple[Any, int, list[str]]] = {}


def _install() -> None:
    if _placed:
        return
    for module, name, found in [*_in_jax(), *_in_other_modules()]:
        _placed.append((module, name, found))
        setattr(module, name, _replacement(found))


def _uninstall() -> None:
    while _placed:
        module, name, found = _placed.pop()
        now = getattr(module, name, None)
        if now is _DISPATCHERS.get(id(found)) or isinstance(now, functools.partial):
            setattr(module, name, found)


def _in_jax() -> Iterator[tuple[Any, str, Any]]:
    for module, name in _JAX_NAMES:
        yield sys.modules[module], name, getattr(sys.modules[module], name)


def _in_other_modules() -> Iterator[tuple[Any, str, Any]]:
    for path, module in list(sys.modules.items()):
        held = getattr(module, "__dict__", None)
        if path.split(".")[0] in ("jax", "jaxlib", "lanax") or held is None:
            continue
        known, count, names = _searched.get(path, (None, -1, []))
        if known is not module or count != len(held):
            # The dictionary and not getattr(), which would import what some modules import on demand.
            names = [name for name, value in list(held.items()) if _replacement(value) is not value]
            _searched[path] = module, len(held), names
        for name in names:
            if _replacement(held.get(name)) is not held.get(name):
                yield module, name, held[name]


def _replacement(value: Any) -> Any:
    """What stands for a value of a module while a patch is in effect: for most, that value."""
    if type(value) is functools.partial and id(value.func) in _DISPATCHERS:
        return functools.partial(_DISPATCHERS[id(value.func)], *value.args, **value.keywords)
    return _DISPATCHERS.get(id(value), value)
