"""The processes that make up one program, and their devices, looked at without starting a backend."""

from __future__ import annotations

import ctypes
import os
import re
from typing import Any

from jax._src import distributed as _distributed
from jax._src import xla_bridge as _xla_bridge


def backend_is_started() -> bool:
    """Whether JAX has looked for its devices already."""
    return _xla_bridge.backends_are_initialized()


def coordination() -> Any:
    """The client of the service by which processes find each other; None where there is but this process."""
    return _distributed.global_state.client


def process_of() -> tuple[int, int, str]:
    """The number of this process, how many there are, and the address of the service; starts no backend."""
    state = _distributed.global_state
    return state.process_id, state.num_processes, state.coordinator_address or ""


def leave_coordination() -> None:
    """Leave the service without a word: to take leave is to wait for all processes, those that are dead too."""
    state = _distributed.global_state
    for held in (state.preemption_sync_manager, state.client, state.service):
        if held is not None:  # to be destroyed is to take leave
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
    state.preemption_sync_manager = state.client = state.service = None


def cpu_devices_asked() -> int | None:
    """How many devices the user's settings make of the CPU; None where they do not say."""
    flag = re.findall(r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    count = _xla_bridge.num_cpu_devices.value
    return count if count >= 0 else int(flag[-1]) if flag else None
