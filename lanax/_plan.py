"""How a mapped call runs: routes, lanes, threads, chunk. A `Plan` is what the user asks for; knows no jaxpr."""

from __future__ import annotations

import dataclasses

from lanax._errors import PlanError
from lanax._target import host

ROUTES = ("auto", "lanes", "xla", "serial")
#: Most examples that one step may hold.
MAX_LANES = 64


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a mapped function is to run. A field that is None is chosen by lanax.

    Args:
      route: `"auto"`; `"lanes"`: every equation that can be in lanes is, whatever it costs; `"xla"`: as
        `jax.vmap` runs it; `"serial"`: one example after another in each thread (lanes = 1).
      lanes: examples that one step of the kernel runs together: a power of two, at most 64.
      threads: most threads that work on one call; 1 is the calling thread alone.
      chunk: examples that a thread claims at a time; rounded up to whole steps.

    Raises:
      PlanError: a field is out of range.
    """

    route: str | None = None
    lanes: int | None = None
    threads: int | None = None
    chunk: int | None = None

    def __post_init__(self) -> None:
        if self.route is not None and self.route not in ROUTES:
            raise PlanError(f"`route` of a Plan must be one of {', '.join(map(repr, ROUTES))}; got {self.route!r}.")
        self._check_count("threads", "the number of threads that may work on one call", host().cores)
        self._check_count("chunk", "the number of examples that a thread claims at a time", None)
        lanes = self.lanes
        if lanes is not None and (type(lanes) is not int or not 1 <= lanes <= MAX_LANES or lanes & (lanes - 1)):
            native = host().native_lanes(32)
            raise PlanError(f"`lanes` of a Plan must be a power of two from 1 to {MAX_LANES} (this machine's registers "
                            f"hold {native} float32); got {lanes!r}.")
        if self.route == "serial" and lanes not in (None, 1):
            raise PlanError(f"route='serial' runs one example at a time: `lanes` must be 1 or left out; got {lanes}.")

    def _check_count(self, field: str, what: str, here: int | None) -> None:
        value = getattr(self, field)
        if value is not None and (type(value) is not int or value < 1):
            machine = "" if here is None else f" (this process may use {here} cores)"
            raise PlanError(f"`{field}` of a Plan is {what}: an int of 1 or more{machine}; got {value!r}.")

    def __repr__(self) -> str:
        given = [f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self)
                 if getattr(self, f.name) is not None]
        return f"Plan({', '.join(given)})"


@dataclasses.dataclass(frozen=True)
class KernelPlan:
    """The choices for one kernel, with their reasons.

    Attributes:
      lanes: examples of one step; `native_lanes` x `vectors`.
      native_lanes: lanes of one register for the ruling dtype.
      vectors: registers in flight for one value.
      ruling: name of the dtype that decides the lanes.
      mask_bits: width of a lane of a mask.
      threads: most threads; 0 for as many as XLA's pool has.
      chunk: examples that a thread claims at a time; 0 to let the run decide.
      grain: fewest examples worth a thread of their own.
      refill: lanes that have left the program's loop take the next example when not more than this many are active; 0:
        each step runs until its last example is done.
      reason: why these lanes.
    """

    lanes: int
    native_lanes: int
    vectors: int
    ruling: str
    mask_bits: int
    threads: int
    chunk: int
    grain: int
    refill: int
    reason: str
