"""The settings: their one table, the environment, `config`, `use_plan`, and the plan that they make of a call. Knows no
program."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import logging
import os
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lanax import _jax
from lanax._errors import SettingError
from lanax._plan import FIELDS, Plan, as_typed, byte_count


@dataclasses.dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
      name: as `config` has it, and a plan where it is a field of one.
      default: its value where nobody sets it.
      meaning: what it does, for the documentation.
      check: gives the value of what was assigned; raises ValueError, which says what is allowed.
      read: gives what was assigned from the text of a variable of the environment.
    """

    name: str
    default: Any
    meaning: str
    check: Callable[[Any], Any]
    read: Callable[[str], Any] = str

    @property
    def variable(self) -> str:
        """The variable of the environment."""
        return f"LANAX_{self.name.upper()}"


def _number(text: str) -> int | str:
    """An int where the text is one; else the text, for the check to refuse."""
    return int(text) if text.strip().isdecimal() else text


def _field(name: str, meaning: str) -> Setting:
    def check(value: Any) -> Any:
        return getattr(Plan(**{name: value}), name)

    return Setting(name, None, meaning, check, str if name in ("route", "memory", "accuracy") else _number)


def _switch(value: Any) -> bool:
    word = str(value).strip().lower()
    if word in ("1", "on", "true", "yes"):
        return True
    if word in ("0", "off", "false", "no"):
        return False
    raise ValueError(f"it is on or off (1, true, yes; 0, false, no); got {value!r}.")


def _size(value: Any) -> int:
    count = byte_count(int(value) if isinstance(value, str) and value.strip().isdecimal() else value)
    if count is None:
        raise ValueError(f"it is a number of bytes: an int, or text such as '512MiB' or '2GiB'; got {value!r}.")
    return count


def _folder(value: Any) -> str | None:
    return None if value is None else str(Path(value).expanduser())


LOG_LEVELS = ("off", "warning", "info", "debug")
#: The stages of a kernel that `as_text` and `dump` show, in order.
STAGE_NAMES = ("jaxpr", "uniformity", "plan", "llvm", "optimised", "asm")


def _level(value: Any) -> str:
    word = str(value).strip().lower()
    if word not in LOG_LEVELS:
        raise ValueError(f"it is one of {', '.join(LOG_LEVELS)}; got {value!r}.")
    return word


def _stages(value: Any) -> tuple[str, ...]:
    names = [part.strip() for part in value.split(",")] if isinstance(value, str) else list(value)
    unknown = [name for name in names if name and name not in STAGE_NAMES]
    if unknown:
        raise ValueError(f"it names stages, with commas between them: {', '.join(STAGE_NAMES)}; got {unknown[0]!r}.")
    return tuple(filter(None, names))


#: Every setting, by name. docs/settings.md has the same table.
SETTINGS: Mapping[str, Setting] = types.MappingProxyType({s.name: s for s in (
    _field("route", "`auto`, `lanes`, `xla` or `serial`"),
    _field("lanes", "examples that one step of a kernel runs together: a power of two, at most 64"),
    _field("threads", "most threads that work on one kernel; 1: the calling thread alone"),
    _field("chunk", "examples that are alive at once; those that a thread of a kernel claims at a time"),
    _field("memory", "most bytes for what is alive beside arguments and results"),
    _field("devices", "what shares the batch of one call: a number of devices, a list of them, or a mesh"),
    _field("parallelism", "most threads that work on one call, those of all its devices together"),
    _field("accuracy", "`default`, or `fast`: functions within 4 ULP, in fewer instructions"),
    Setting("cache", True, "whether compiled kernels are kept on disk", _switch),
    Setting("cache_dir", None, "the folder that they are kept in; by default the platform's for caches", _folder),
    Setting("cache_size", 1 << 30, "most bytes of kernels on disk; the least recently used go first", _size),
    Setting("log", "off", "what is printed to standard error: `off`, `warning`, `info` or `debug`", _level),
    Setting("dump", (), "stages that are written to files, with commas between them", _stages),
    Setting("dump_to", "lanax-dump", "the folder that they are written to", _folder),
)})


def from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """The settings that variables of an environment give; an empty one gives none."""
    found = {}
    for setting in SETTINGS.values():
        text = environment.get(setting.variable, "")
        if text.strip():
            try:
                found[setting.name] = setting.check(setting.read(text))
            except ValueError as error:
                raise SettingError(f"the environment has {setting.variable}={text!r}: {error}") from None
    try:
        _plan_of(found)
    except ValueError as error:
        given = ", ".join(SETTINGS[name].variable for name in found if name in FIELDS)
        raise SettingError(f"the environment has {given}, which do not go together: {error}") from None
    known = [setting.variable for setting in SETTINGS.values()]
    for name in environment:
        if name.startswith("LANAX_") and name not in known:
            warnings.warn(f"the environment has {name}, which lanax does not know; it knows {', '.join(known)}.",
                          stacklevel=2)
    return found


#: Compilations, what the cache on disk gives, and what is left to XLA.
logger = logging.getLogger("lanax")
# Without a handler Python prints warnings by itself, also where `log` is off.
logger.addHandler(logging.NullHandler())


def _print_log(level: str) -> None:
    """Print what is logged from this level on; what the program sets up for the logger is left alone."""
    for handler in [handler for handler in logger.handlers if isinstance(handler, _Printer)]:
        logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)
    if level != "off":
        logger.addHandler(_Printer())
        logger.setLevel(level.upper())


class _Printer(logging.StreamHandler):
    """Prints to standard error."""

    def __init__(self):
        super().__init__()
        self.setFormatter(logging.Formatter("lanax: %(message)s"))


class Config:
    """Settings for the whole process: `config.threads` reads one, `config.update("threads", 1)` sets it.

    None stands for what the environment says, or the default. An update counts from the next call of a mapped function
    on, under `jax.jit` too: what was compiled under other settings is not used for it.

    Raises:
      SettingError: there is no setting of that name (an AttributeError too), or it does not take the value (a
        ValueError too).
    """

    _given: dict[str, Any]
    _environment: dict[str, Any]
    _plans: tuple[Plan, Plan]

    def __init__(self, environment: Mapping[str, str]):
        found = from_environment(environment)
        vars(self).update(_given={}, _environment=found, _plans=(Plan(), _plan_of(found)))
        _print_log(self.log)

    def update(self, name: str, value: Any) -> None:
        """Set the setting `name`; None takes back what was set."""
        setting = _setting(name)
        given = {key: v for key, v in self._given.items() if key != name}
        try:
            if value is not None:
                given[name] = setting.check(value)
            plan = _plan_of(given)
        except ValueError as error:
            raise SettingError(f"lanax.config.{name}: {error}") from None
        vars(self).update(_given=given, _plans=(plan, self._plans[1]))
        if name in FIELDS:
            _config_in_jit_key.set_global(None if plan == Plan() else repr(plan))
        elif name == "log":
            _print_log(self.log)

    def __getattr__(self, name: str) -> Any:
        setting = _setting(name)
        return self._given.get(name, self._environment.get(name, setting.default))

    def __setattr__(self, name: str, value: Any) -> None:
        self.update(name, value)

    def __dir__(self) -> list[str]:
        return [*SETTINGS, "update"]

    def __repr__(self) -> str:
        shown = ((name, getattr(self, name)) for name in SETTINGS)
        sizes = ("memory", "cache_size")
        lines = (f"  {name}={as_typed(v) if name in sizes and v else v!r}" for name, v in shown)
        return "\n".join(["lanax.config:", *lines])


def _plan_of(given: Mapping[str, Any]) -> Plan:
    """The fields of a plan among some settings."""
    return Plan(**{name: value for name, value in given.items() if name in FIELDS})


def _setting(name: str) -> Setting:
    if name not in SETTINGS:
        raise SettingError(f"lanax.config has no setting {name!r}; it has {', '.join(SETTINGS)}.")
    return SETTINGS[name]


# JAX keeps what it has traced and compiled apart by the values of these two, so `use_plan` and `config` work on
# functions that are jitted already.
_config_in_jit_key = _jax.JitKey()
_plan_in_jit_key = _jax.JitKey()

config = Config(os.environ)

_NOTHING = Plan()
_used: contextvars.ContextVar[Plan] = contextvars.ContextVar("lanax_plan", default=_NOTHING)
_overriding: contextvars.ContextVar[Plan] = contextvars.ContextVar("lanax_overriding_plan", default=_NOTHING)


def use_plan(plan: Plan | None = None, /, **fields: Any) -> contextlib.AbstractContextManager[Plan]:
    """A context in which mapped functions run by a plan, as far as they have none of their own: a `Plan`, the fields of
    one, or both. Contexts may be nested: the inner one counts, for the fields that it gives.

    It holds for the thread or task that enters it. It works as a decorator too. In asynchronous code, do not await
    inside it: the plan is a task's own, but the cache of `jax.jit` knows of threads only.

    Raises:
      PlanError: a field is out of range.
    """
    return _within(_used, _checked(plan, "use_plan").replace(**fields))


def overriding(plan: Plan | None) -> contextlib.AbstractContextManager[Plan]:
    """A context in which the plan of `explain` goes before what mapped functions have of their own."""
    return _within(_overriding, _checked(plan, "explain"))


def _checked(plan: Plan | None, of: str) -> Plan:
    if plan is not None and not isinstance(plan, Plan):
        raise TypeError(f"`plan` of lanax.{of} must be a lanax.Plan or None; got {type(plan).__name__}: {plan!r}.")
    return plan or Plan()


@contextlib.contextmanager
def _within(variable: contextvars.ContextVar[Plan], plan: Plan) -> Iterator[Plan]:
    token = variable.set(plan.over(variable.get()))
    _tell_jit()
    try:
        yield variable.get()
    finally:
        variable.reset(token)
        _tell_jit()


def _tell_jit() -> None:
    """Not by what was there before: tasks of one thread may leave their contexts in any order."""
    plans = _overriding.get(), _used.get()
    _plan_in_jit_key.set_local(None if plans == (_NOTHING, _NOTHING) else repr(plans))


def resolve(own: Plan) -> Plan:
    """The plan of a call that has a plan of its `own`: of each field the nearest, and where it came from."""
    return _resolved(_overriding.get(), own, _used.get(), *config._plans)


def with_stored(plan: Plan, stored: Plan) -> Plan:
    """The plan of a call, and from what `lanax.tune` stored what it leaves open."""
    merged = plan.over(stored)
    sources = {name: plan.sources.get(name, "lanax.tune") for name in merged.given()}
    object.__setattr__(merged, "sources", sources)
    return merged


@functools.lru_cache(maxsize=256)
def _resolved(*layers: Plan) -> Plan:
    plan, sources = Plan(), {}
    for layer, source in zip(layers, ("explain", "the call", "use_plan", "config", None), strict=True):
        plan = plan.over(layer)
        sources = {name: source or SETTINGS[name].variable for name in plan.given()} | sources
    object.__setattr__(plan, "sources", sources)
    return plan
