"""How a mapped call runs: routes, lanes, threads, chunk. A `Plan` is what the user asks for; knows no jaxpr."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from lanax._errors import PlanError
from lanax._target import host

ROUTES = ("auto", "lanes", "xla", "serial")
#: Most examples that one step may hold.
MAX_LANES = 64

_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a mapped function is to run. A field that is None is taken from the settings around the call, see
    `use_plan` and `config`; what none of them gives is chosen by lanax.

    Args:
      route: `"auto"`; `"lanes"`: every equation that can be in lanes is, whatever it costs; `"xla"`: as
        `jax.vmap` runs it; `"serial"`: one example after another in each thread (lanes = 1).
      lanes: examples that one step of the kernel runs together: a power of two, at most 64.
      threads: most threads that work on one kernel; 1 is the calling thread alone. What is left to XLA runs on XLA's
        own pool, whatever this says.
      chunk: examples that are alive at once: those that a thread of a kernel claims at a time, rounded up to whole
        steps.
      memory: most bytes for what is alive beside arguments and results, as an int or as in `"2GiB"` (KiB, MiB, GiB,
        TiB). A kernel uses fewer threads where their scratch would exceed it, but always one. See `examples_alive`.
      devices: JAX devices that share one call; only 1 is served yet.

    Raises:
      PlanError: a field is out of range.
    """

    route: str | None = None
    lanes: int | None = None
    threads: int | None = None
    chunk: int | None = None
    memory: int | str | None = None
    devices: int | None = None

    #: Where each field that is given came from, in a plan that the settings made; no part of its value.
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.route is not None and self.route not in ROUTES:
            raise PlanError(f"`route` of a Plan must be one of {', '.join(map(repr, ROUTES))}; got {self.route!r}.")
        self._check_count("threads", "the number of threads that may work on one call",
                          f" (this process may use {host().cores} cores)")
        self._check_count("chunk", "the number of examples that a thread claims at a time")
        self._check_count("devices", "the number of JAX devices that share one call")
        if self.devices not in (None, 1):
            raise PlanError(f"`devices` of a Plan must be 1 or left out: several devices are not served yet; "
                            f"got {self.devices}. `jax.shard_map` of a mapped function spreads it over devices.")
        object.__setattr__(self, "memory", _bytes(self.memory))
        lanes = self.lanes
        if lanes is not None and (type(lanes) is not int or not 1 <= lanes <= MAX_LANES or lanes & (lanes - 1)):
            native = host().native_lanes(32)
            raise PlanError(f"`lanes` of a Plan must be a power of two from 1 to {MAX_LANES} (this machine's registers "
                            f"hold {native} float32); got {lanes!r}.")
        if self.route == "serial" and lanes not in (None, 1):
            raise PlanError(f"route='serial' runs one example at a time: `lanes` must be 1 or left out; got {lanes}.")

    def _check_count(self, field: str, what: str, here: str = "") -> None:
        value = getattr(self, field)
        if value is not None and (type(value) is not int or value < 1):
            raise PlanError(f"`{field}` of a Plan is {what}: an int of 1 or more{here}; got {value!r}.")

    def replace(self, **changes: Any) -> Plan:
        """The same plan with some fields changed."""
        return dataclasses.replace(self, **changes)

    def given(self) -> dict[str, Any]:
        """The fields that are not None."""
        return {name: value for name in FIELDS if (value := getattr(self, name)) is not None}

    def typed(self) -> dict[str, Any]:
        """The same, as one would type them."""
        return {name: as_typed(value) if name == "memory" else value for name, value in self.given().items()}

    def over(self, other: Plan) -> Plan:
        """This plan, with what it leaves open taken from `other`. A field of `other` that contradicts this plan gives
        way."""
        fields = other.given()
        if self.route == "serial":
            fields.pop("lanes", None)
        elif self.lanes not in (None, 1) and other.route == "serial":
            fields.pop("route")
        return Plan(**fields | self.given())

    def examples_alive(self, example_bytes: int) -> int | None:
        """How many examples of `example_bytes` bytes may be alive at once: `chunk`, or fewer where `memory` holds no
        more, but at least one; None for any number."""
        memory: Any = self.memory  # an int by now
        if memory is None:
            return self.chunk
        fit = max(1, memory // max(1, example_bytes))
        return fit if self.chunk is None else min(fit, self.chunk)

    def __repr__(self) -> str:
        return f"Plan({', '.join(f'{name}={value!r}' for name, value in self.typed().items())})"


#: The names of a plan's fields.
FIELDS = tuple(f.name for f in dataclasses.fields(Plan) if f.init)


def byte_count(value: object) -> int | None:
    """The bytes that an int or text such as `"2GiB"` names; None where it names none."""
    if type(value) is int:
        return value if value >= 0 else None
    found = re.fullmatch(r"(\d+) ?(\w*)", value.strip()) if isinstance(value, str) else None
    return int(found[1]) * _UNITS[found[2]] if found and found[2] in _UNITS else None


def as_typed(count: int) -> int | str:
    """A number of bytes as one would type it."""
    unit = next((u for u in ("TiB", "GiB", "MiB", "KiB") if count and count % _UNITS[u] == 0), None)
    return f"{count // _UNITS[unit]}{unit}" if unit else count


def _bytes(value: int | str | None) -> int | None:
    count = None if value is None else byte_count(value)
    if value is not None and not count:
        raise PlanError(f"`memory` of a Plan is a number of bytes: an int of 1 or more, or text such as '512MiB' or "
                        f"'2GiB'; got {value!r}.")
    return count


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
