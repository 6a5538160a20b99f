"""How a mapped call runs: routes, lanes, threads, chunk. A `Plan` is what the user asks for; knows no jaxpr."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import Mesh

from lanax._errors import PlanError
from lanax._target import host

ROUTES = ("auto", "lanes", "xla", "serial")
ACCURACIES = ("default", "fast")
#: Most examples that one step may hold.
MAX_LANES = 64

#: A `jax.Device`, which type checkers cannot read.
Device: TypeAlias = Any

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
      devices: what shares the batch: a number of devices, the first of this process; a list of them; or a mesh with one
        axis. Shares are even, the last ones take what is left. 1, the number, is as if it were left out.
      accuracy: `"default"`, or `"fast"`: elementary functions in kernels are within 4 ULP instead of 1 (float32) or 2
        (float64), in fewer instructions. docs/accuracy.md has both. What is left to XLA stays as it is.
      parallelism: most threads that work on one call, those of all its devices together. Each device has an even part
        of them; where there are more devices than that, the first so many run the batch.

    Raises:
      PlanError: a field is out of range.
    """

    route: str | None = None
    lanes: int | None = None
    threads: int | None = None
    chunk: int | None = None
    memory: int | str | None = None
    devices: int | Sequence[Device] | Mesh | None = None
    accuracy: str | None = None
    parallelism: int | None = None

    #: Where each field that is given came from, in a plan that the settings made; no part of its value.
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.route is not None and self.route not in ROUTES:
            raise PlanError(f"`route` of a Plan must be one of {', '.join(map(repr, ROUTES))}; got {self.route!r}.")
        if self.accuracy is not None and self.accuracy not in ACCURACIES:
            raise PlanError(f"`accuracy` of a Plan must be one of {', '.join(map(repr, ACCURACIES))}; "
                            f"got {self.accuracy!r}.")
        cores = f" (this process may use {host().cores} cores)"
        self._check_count("threads", "the number of threads that may work on one kernel", cores)
        self._check_count("chunk", "the number of examples that are alive at once")
        self._check_count("parallelism", "the number of threads that may work on one call, on all its devices", cores)
        object.__setattr__(self, "devices", _devices(self.devices))
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
        shown: dict[str, Any] = {"memory": as_typed, "devices": _device_names}
        return {name: shown.get(name, lambda v: v)(value) for name, value in self.given().items()}

    @property
    def most_threads(self) -> int | None:
        """Most threads that may work on one kernel of one device; None for any number."""
        return min((n for n in (self.threads, self.parallelism) if n is not None), default=None)

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


def device_name(device: Device) -> str:
    """A device in short, such as `cpu:0`."""
    return f"{device.platform}:{device.id}"


def _device_names(devices: int | Sequence[Device]) -> Any:
    return devices if isinstance(devices, int) else list(map(device_name, devices))


def _devices(value: Any) -> int | tuple[Device, ...] | None:
    """The field `devices`: None, a number, or devices in order."""
    if value is None or (type(value) is int and value >= 1):
        return value
    if isinstance(value, Mesh):
        sizes = [n for n in value.devices.shape if n > 1]
        if len(sizes) > 1:
            raise PlanError(f"`devices` of a Plan got a mesh with several axes, {dict(value.shape)}: it is not "
                            "clear which of them is the batch axis. Pass a mesh with one axis, or the devices "
                            "themselves, `list(mesh.devices.flat)`.")
        value = value.devices
    if not isinstance(value, (list, tuple, np.ndarray)):
        raise PlanError("`devices` of a Plan is an int of 1 or more, a list of devices such as `jax.devices()[:2]`, "
                        f"or a `jax.sharding.Mesh` with one axis; got {type(value).__name__}: {value!r}.")
    found = tuple(value.ravel() if isinstance(value, np.ndarray) else value)
    check_devices(found, "`devices` of a Plan")
    return found


def check_devices(devices: Sequence[Any], of: str) -> None:
    """Raises PlanError, a ValueError too, where these are not devices that can share a batch; `of`: an argument."""
    if not devices:
        raise PlanError(f"{of} got no device: it needs one at least.")
    for i, device in enumerate(devices):
        if not isinstance(device, jax.Device):
            raise PlanError(f"{of} takes devices, such as those of `jax.devices()`; at position {i} it got "
                            f"{type(device).__name__}: {device!r}.")
    twice = next((d for i, d in enumerate(devices) if d in devices[:i]), None)
    if twice is not None:
        raise PlanError(f"{of} got {device_name(twice)} more than once: name each device once.")
    kinds = sorted({kind_of(d) for d in devices})
    if len(kinds) > 1:
        raise PlanError(f"{of} got devices of different kinds, {', '.join(kinds)}: one call runs on "
                        "devices of one kind; make a plan for each kind.")


def kind_of(device: Device) -> str:
    """What devices must have in common to run one call."""
    return f"{device.platform} ({device.device_kind})"


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
      accuracy: `default` or `fast`.
      refill: lanes that have left the program's loop take the next examples when they have waited so many trips, on
        average; 0: each step runs until its last example is done.
      uneven: why lanes are not refilled.
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
    uneven: str
    accuracy: str
    reason: str
