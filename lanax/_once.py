"""A property that is computed once, also where several threads ask for it first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class once(Generic[T]):
    """A property that one thread computes while others wait; then it is a plain attribute.

    Since Python 3.12 `functools.cached_property` lets several threads compute it, each a value of its own. Where the
    value holds variables of a jaxpr, what one thread took from it then means nothing to another.
    """

    def __init__(self, compute: Callable[[Any], T]):
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __get__(self, instance: Any, owner: Any = None) -> T:
        found, name = vars(instance), self._compute.__name__
        # One lock an object: its properties ask for each other on the way.
        with found.setdefault("_once_lock", threading.RLock()):
            if name not in found:
                found[name] = self._compute(instance)
            return found[name]
