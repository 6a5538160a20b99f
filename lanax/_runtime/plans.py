"""Plans that `lanax.tune` found, on disk, for mapped calls that leave their plan open. Data (JSON), never code."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import hashlib
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import llvmlite.binding as llvm

from lanax import _jax
from lanax._config import config, logger, with_stored
from lanax._plan import Plan
from lanax._program import Program
from lanax._runtime import cache
from lanax._target import host

_SUFFIX = ".plan.json"
#: Of the files: another number means another form.
_FORM = 1
_MOST_BYTES = 1 << 16
#: The fields of a plan that a measurement can choose.
CHOSEN = ("route", "lanes", "threads", "chunk")

# A plan that is stored or removed counts from the next call on, in functions that are jitted already too.
_stored_in_jit_key = _jax.JitKey()
_asking_in_jit_key = _jax.JitKey()
_asked: contextvars.ContextVar[set[str] | None] = contextvars.ContextVar("lanax_asked_plans", default=None)


def with_stored_plan(program: Program, in_axes: Sequence[int | None], axis_size: int, plan: Plan) -> Plan:
    """The plan of a call: what `plan` leaves open is taken from what was stored for it, if anything was."""
    asked = _asked.get()
    if asked is not None:
        asked.add(_key(program, tuple(in_axes), axis_size, plan))
        return plan
    if not config.cache:
        return plan
    with contextlib.suppress(OSError, RuntimeError):  # there is no home, or it cannot be read
        place = cache.folder()
        stored = _load(place, _key(program, tuple(in_axes), axis_size, plan)) if _is_there(place) else None
        return plan if stored is None else with_stored(plan, stored)
    return plan


@contextlib.contextmanager
def asking() -> Iterator[set[str]]:
    """Collects the keys of the mapped calls that are traced inside it; no stored plan is used there."""
    keys: set[str] = set()
    token = _asked.set(keys)
    _asking_in_jit_key.set_local("asking")
    try:
        yield keys
    finally:
        _asked.reset(token)
        _asking_in_jit_key.set_local(None)


def store(keys: set[str], name: str, plan: Plan) -> list[Path]:
    """Keep a plan for the calls of these keys; the files. The automatic plan is kept by keeping none.

    Raises OSError where the folder cannot be written."""
    if not plan.given():
        for key in keys:
            (cache.folder() / (key + _SUFFIX)).unlink(missing_ok=True)
        _forget(cache.folder())
        return []
    chosen = {field: value for field, value in plan.given().items() if field in CHOSEN}
    files = []
    for key in sorted(keys):
        text = json.dumps({"form": _FORM, "key": key, "name": name, "plan": chosen}, indent=2)
        files.append(cache.write_file(key + _SUFFIX, text.encode()))
    _forget(cache.folder())
    return files


def clear() -> int:
    """Remove every stored plan; how many there were."""
    files = list(cache.folder().glob("*" + _SUFFIX))
    for file in files:
        file.unlink(missing_ok=True)
    _forget(cache.folder())
    return len(files)


# A process sees what is stored when it first looks, and what it stores and removes itself: one call, one plan.
@functools.lru_cache(maxsize=64)
def _is_there(place: Path) -> bool:
    return any(place.glob("*" + _SUFFIX))


@functools.lru_cache(maxsize=4096)
def _load(place: Path, key: str) -> Plan | None:
    file = place / (key + _SUFFIX)
    try:
        data = cache.read_file(file)
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("%s is not read: %s", file, error)
        return None
    plan = _sound(data, key)
    if plan is None:
        logger.warning("%s is damaged or no plan; it is removed", file)
        with contextlib.suppress(OSError):
            file.unlink()
    return plan


def _sound(data: bytes, key: str) -> Plan | None:
    """The plan that a file holds; None where it holds anything else."""
    try:
        found: Any = json.loads(data) if len(data) <= _MOST_BYTES else None
    except ValueError:
        return None
    if not isinstance(found, dict) or found.get("form") != _FORM or found.get("key") != key:
        return None
    fields = found.get("plan")
    if not isinstance(fields, dict) or not {*fields} <= {*CHOSEN}:
        return None
    try:
        return Plan(**fields)
    except (TypeError, ValueError):  # PlanError is one
        return None


def _forget(place: Path) -> None:
    _is_there.cache_clear()
    _load.cache_clear()
    stored = sorted(file.name + str(file.stat().st_mtime_ns) for file in place.glob("*" + _SUFFIX))
    _stored_in_jit_key.set_global(hashlib.sha256("".join(stored).encode()).hexdigest() if stored else None)


# ---- keys ------------------------------------------------------------------------------------------------------------


def _key(program: Program, in_axes: tuple[int | None, ...], axis_size: int, plan: Plan) -> str:
    """What a measured plan depends on, as a name for a file. The batch counts up to a factor of two."""
    target = host()
    parts = (_digest(program), in_axes, axis_size.bit_length(), sorted(plan.typed().items()), target.triple, target.cpu,
             target.features, target.cores, _versions())
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@functools.lru_cache(maxsize=256)
def _digest(program: Program) -> str:
    """What a program computes, the same in every process: its text, without the addresses of Python's objects. (Two
    programs of one text would share a plan, and both be right.)"""
    text = re.sub(r"0x[0-9a-f]+", "", str(program.jaxpr))
    return hashlib.sha256(f"{[str(v.aval) for v in program.jaxpr.invars]}{text}".encode()).hexdigest()


@functools.cache
def _versions() -> tuple[str, ...]:
    return sys.modules["lanax"].__version__, jax.__version__, ".".join(map(str, llvm.llvm_version_info))
