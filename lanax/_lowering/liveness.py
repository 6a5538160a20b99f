"""When each value of a jaxpr is read for the last time. Emits nothing."""

from __future__ import annotations

from collections import Counter

from lanax._jax import DropVar, Jaxpr, Literal, Var


class Liveness:
    """Uses of the variables of one jaxpr. `uses` counts the reads of each, results included."""

    def __init__(self, jaxpr: Jaxpr):
        self._jaxpr = jaxpr
        self._outer = {*jaxpr.constvars, *jaxpr.invars}
        self.uses: Counter[Var] = Counter()
        self._last: dict[Var, int] = {}
        for i, eqn in enumerate(jaxpr.eqns):
            for v in eqn.invars:
                if not isinstance(v, Literal):
                    self.uses[v] += 1
                    self._last[v] = i
        for v in jaxpr.outvars:
            if not isinstance(v, Literal):
                self.uses[v] += 1
                self._last[v] = len(jaxpr.eqns)
        self._ending: dict[int, list[Var]] = {}
        for v, i in self._last.items():
            self._ending.setdefault(i, []).append(v)

    def dying(self, i: int) -> frozenset[int]:
        """Positions of the operands of equation `i` that are read there for the last time, and once only."""
        invars = self._jaxpr.eqns[i].invars
        return frozenset(k for k, v in enumerate(invars)
                         if not isinstance(v, Literal) and self._last[v] == i and invars.count(v) == 1)

    def live_after(self, i: int) -> list[Var]:
        """Variables that are read after equation `i`."""
        return [v for v, last in self._last.items() if last > i]

    def dead_after(self, i: int) -> list[Var]:
        """Variables that nothing reads after equation `i`."""
        return self._ending.get(i, [])

    def used(self, i: int) -> tuple[bool, ...]:
        """For each result of equation `i`, whether anything reads it."""
        return tuple(not isinstance(v, DropVar) and v in self._last for v in self._jaxpr.eqns[i].outvars)
