"""`initialize`: `jax.distributed.initialize`, with what it takes checked first, and devices of the CPU chosen."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Sequence
from typing import Any

import jax

from lanax import _jax
from lanax._errors import DistributedError
from lanax.distributed._watch import HEARTBEAT, leave, watch

_NAME = "lanax.distributed.initialize"
#: JAX ends the process itself where it has waited too long. It is given so many seconds more than lanax waits.
_MORE_SECONDS = 3600

#: Which of the CPU's devices are used; None for all.
_cpu_devices: tuple[int, ...] | None = None


def initialize(coordinator_address: str | None = None, num_processes: int | None = None, process_id: int | None = None,
               local_device_ids: int | Sequence[int] | None = None, *, initialization_timeout: int = 300,
               heartbeat_timeout_seconds: int = int(HEARTBEAT), **more: Any) -> None:
    """Connect this process with others: `jax.distributed.initialize`. Every process calls it once, before anything
    else that uses JAX.

    Args:
      coordinator_address: host and port of process 0, where it listens; the same in every process.
      num_processes: how many processes there are.
      process_id: the number of this one, from 0 on. These three are found out under Slurm, Open MPI and Kubernetes and
        on TPUs; so is MPI with `cluster_detection_method="mpi4py"`.
      local_device_ids: which devices of its machine this process uses. On the CPU, where JAX does not look at it, this
        process gets so many devices; where the user's settings make a number of devices of the CPU
        (`jax_num_cpu_devices`, `XLA_FLAGS`), these of them are what `lanax.distributed` uses.
      initialization_timeout: seconds to wait for the other processes.
      heartbeat_timeout_seconds: after so many without a sign of life a process counts as dead, and the others end.
      **more: what `jax.distributed.initialize` takes beside.

    Raises:
      TypeError, ValueError: an argument is not what it should be.
      DistributedError: it has been called before, JAX has been used already, or the others have not come in time.
    """
    ids = _device_ids(local_device_ids)
    _check(coordinator_address, num_processes, process_id)
    _check_seconds(initialization_timeout=initialization_timeout, heartbeat_timeout_seconds=heartbeat_timeout_seconds)
    _check_state()
    _choose_cpu_devices(ids)
    given = {"coordinator_address": coordinator_address, "num_processes": num_processes, "process_id": process_id,
             "local_device_ids": ids}
    _connect({**given, **more, "heartbeat_timeout_seconds": heartbeat_timeout_seconds}, initialization_timeout)
    watch(heartbeat_timeout_seconds)


def shutdown() -> None:
    """Take leave of the other processes: `jax.distributed.shutdown`. At the end of a program it is called by itself."""
    leave()
    jax.distributed.shutdown()


def local_devices() -> list[Any]:
    """The devices of this process that `lanax.distributed.map` uses: those of `local_device_ids`, else all."""
    devices = jax.local_devices()
    if _cpu_devices is None or devices[0].platform != "cpu":
        return devices
    return [devices[i] for i in _cpu_devices]


def _check(address: Any, count: Any, number: Any) -> None:
    if address is not None and not (isinstance(address, str) and address.rpartition(":")[2].isdecimal()):
        raise ValueError(f"`coordinator_address` of {_NAME} is the host of process 0 and a free port there, such as "
                         f"'10.0.0.1:1234'; got {address!r}.")
    if count is not None and (type(count) is not int or count < 1):
        raise ValueError(f"`num_processes` of {_NAME} is the number of all processes: an int of 1 or more; "
                         f"got {count!r}.")
    if number is not None and (type(number) is not int or number < 0):
        raise ValueError(f"`process_id` of {_NAME} is the number of this process: an int of 0 or more; got {number!r}.")
    if number is not None and count is not None and number >= count:
        raise ValueError(f"`process_id` of {_NAME} is from 0 to num_processes - 1 = {count - 1}; got {number}. Every "
                         "process has its own, and process 0 is the one at `coordinator_address`.")


def _check_seconds(**seconds: Any) -> None:
    for name, value in seconds.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"`{name}` of {_NAME} is a number of seconds: an int of 1 or more; got {value!r}.")


def _device_ids(ids: Any) -> list[int] | None:
    """`local_device_ids` as a list; None where they are left to JAX."""
    if ids is None and os.environ.get("JAX_LOCAL_DEVICE_IDS"):
        ids = [int(part) for part in os.environ["JAX_LOCAL_DEVICE_IDS"].split(",")]
    if ids is None:
        return None
    found = [ids] if type(ids) is int else list(ids) if isinstance(ids, Sequence) and not isinstance(ids, str) else []
    if not found or not all(type(i) is int and i >= 0 for i in found) or len(set(found)) < len(found):
        raise ValueError(f"`local_device_ids` of {_NAME} are numbers of devices, from 0 on, each once, such as [0, 1]; "
                         f"got {ids!r}.")
    return found


def _check_state() -> None:
    if _jax.coordination() is not None:
        number, count, address = _jax.process_of()
        raise DistributedError(f"{_NAME} has been called before, or jax.distributed.initialize has: this is process "
                               f"{number} of {count} at {address}. Call it once, at the start of the program.")
    if _jax.backend_is_started():
        raise DistributedError(f"{_NAME} was called after JAX had looked for its devices, which are then those of this "
                               "process alone. Call it before anything that uses JAX: computations, `jax.devices()`, "
                               "`jnp.zeros(...)`, random keys, also in modules that are imported.")


def _choose_cpu_devices(ids: list[int] | None) -> None:
    global _cpu_devices
    asked = _jax.cpu_devices_asked()
    if ids is None or asked is None:
        _cpu_devices = None
        if ids is not None:
            jax.config.update("jax_num_cpu_devices", len(ids))
        return
    if max(ids) >= asked and (getattr(jax.config, "jax_platforms", None) or "").startswith("cpu"):
        raise ValueError(f"`local_device_ids` of {_NAME} has {max(ids)}, and the settings (jax_num_cpu_devices or "
                         f"XLA_FLAGS) make {asked} devices of this CPU, 0 to {asked - 1}: ask for fewer, or leave the "
                         "settings out, and the process gets as many devices as there are ids.")
    _cpu_devices = tuple(i for i in ids if i < asked) or None


def _connect(given: dict[str, Any], seconds: int) -> None:
    """JAX's own `initialize`, in a thread: JAX would abort the process where others do not come."""
    raised: list[BaseException] = []

    def connect() -> None:
        try:
            jax.distributed.initialize(**given, initialization_timeout=seconds + _MORE_SECONDS)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=connect, name="lanax-connect", daemon=True)
    thread.start()
    try:
        thread.join(seconds)
        done = not thread.is_alive()
    except BaseException:  # Ctrl-C
        _jax.leave_coordination()
        raise
    if raised and re.search("(should|must) be defined", str(raised[0])):
        raise ValueError(f"`coordinator_address`, `num_processes` and `process_id` of {_NAME} can be left out only "
                         "under Slurm, Open MPI, Kubernetes or on a TPU, and this is none of them, or not all that it "
                         f"should be: {raised[0]}") from raised[0]
    if raised:
        raise raised[0]
    if not done:
        number, count, address = _jax.process_of()
        _jax.leave_coordination()
        raise DistributedError(
            f"{_NAME}: process {number} has waited {seconds} s for the others ({count} processes at {address}). Each "
            "of them has to call it with the same `coordinator_address` and `num_processes` and a `process_id` of its "
            "own, and process 0 has to be reached at that address (look for a firewall, a wrong host, a port in use, "
            "and proxies in the environment). `initialization_timeout` lets it wait longer.")
