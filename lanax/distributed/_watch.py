"""Whether the other processes live. Each says so now and then; process 0 listens, and tells all of one that is silent.

JAX has heartbeats of its own, and ends a process by an abort as soon as another one has missed them. The watch is
quicker than that, so that there is time for a Python exception that says who is missing.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import threading
import time
from typing import Any

import jax

from lanax import _jax
from lanax.distributed._aborted import Farewell

#: Seconds until JAX takes a process for dead, where nobody has said anything else.
HEARTBEAT = 100.0
#: Of these: how long a process may be silent; the time between two signs of life; for a word at the end; how long
#: process 0 waits at the end for the others to go.
_SILENCE, _PERIOD, _LAST, _OTHERS = 0.5, 0.05, 0.15, 0.25
#: Seconds in which a process that has said that it leaves is gone.
_GOING = 2.0

#: What to say of starting again.
_GOES_ON = "; a call with `checkpoint` goes on where it was"

_ALIVE, _DEAD = "lanax/alive", "lanax/dead"


class Watch(threading.Thread):
    """The watch of this process over all.

    Attributes:
      failure: what is wrong, in words; empty as long as nothing is.
    """

    def __init__(self, client: Any, heartbeat: float):
        super().__init__(name="lanax-watch", daemon=True)
        self.client = client
        self.process, self.count, self.address = _jax.process_of()
        self.heartbeat = heartbeat
        self.failure = ""
        self._raised = threading.Event()
        self._stopping = threading.Event()
        self._farewell = Farewell(
            f"lanax.distributed, process {self.process}: aborted. Where JAX says above that its distributed service "
            f"has detected fatal errors, and names no process, process 0 of {self.count}, which all others need (at "
            f"{self.address}), has died or is cut off. Look at what it has printed, and start all processes again"
            f"{_GOES_ON}."
        ) if self.process else None
        self._heard: dict[int, tuple[str, float]] = {}

    def run(self) -> None:
        number = 0
        while not self._stopping.is_set():
            number += 1
            try:
                self._say(str(number))
                self.failure = try_get(self.client, _DEAD) or (self._silent() if self.process == 0 else "")
            except jax.errors.JaxRuntimeError:
                return  # process 0 is gone, and JAX aborts this one; or it is this one that leaves
            if self.failure:
                break
            self._stopping.wait(self.period)
        if self.failure and self._farewell is not None:
            self._farewell.close()  # it is not process 0
        # Who waits for others raises it; what runs longer, or is no call of lanax, gets a line at least.
        if self.failure and not self._raised.wait(_LAST * self.heartbeat):
            self._write(f"{self.failure} JAX will end this process.")

    @property
    def period(self) -> float:
        """Seconds between two looks at the others."""
        return _PERIOD * self.heartbeat

    def raised(self) -> None:
        """Somebody has raised the failure."""
        self._raised.set()

    def who(self, process: int) -> str:
        """A process in words."""
        state = self._heard.get(process, ("", 0.0))[0]
        return f"process {process} of {self.count}" + (f" ({state.split(' ', 1)[1]})" if state else "")

    def has_left(self, process: int) -> bool:
        """Whether a process has ended, as it should; process 0 knows."""
        return self._heard.get(process, ("", 0.0))[0].startswith("left")

    def first_has_left(self) -> bool:
        """The same of process 0, for the others. Why it has left, `failure` says."""
        left = (try_get(self.client, f"{_ALIVE}/0") or "").startswith("left")
        if left:
            self.failure = try_get(self.client, _DEAD) or ""
        return left

    def _say(self, state: str) -> None:
        self.client.key_value_set(f"{_ALIVE}/{self.process}", f"{state} pid {os.getpid()} on {socket.gethostname()}",
                                  allow_overwrite=True)

    def _silent(self) -> str:
        """What to tell all where a process has not been heard of for too long."""
        now = time.monotonic()
        for key, state in self.client.key_value_dir_get(_ALIVE):
            process = int(key.rsplit("/", 1)[1])
            if self._heard.get(process, ("", 0.0))[0] != state:
                self._heard[process] = state, now
        limit = _SILENCE * self.heartbeat
        silent = [p for p, (state, seen) in self._heard.items() if now - seen > limit and not self.has_left(p)]
        if not silent:
            return ""
        failure = (f"{self.who(silent[0])} has not been heard of for {limit:.0f} s: it has died, or is stuck or cut "
                   f"off. Look at what it has printed, and start all processes again{_GOES_ON}.")
        self.client.key_value_set(_DEAD, failure, allow_overwrite=True)
        return failure

    def _write(self, text: str) -> None:
        sys.stderr.write(f"lanax.distributed, process {self.process}: {text}\n")
        sys.stderr.flush()

    def leave(self) -> None:
        """This process ends. Where one is dead JAX must not wait for it, and process 0 stays until the others have
        gone, which would be aborted without it."""
        self._stopping.set()
        self._raised.set()
        try:
            self._say("left")
            self.failure = self.failure or try_get(self.client, _DEAD) or ""
            self.join(_GOING)  # a thread that comes back from C++ when Python is going would abort the process
            if self.failure and self.process == 0:
                self._wait_for_others()
        except jax.errors.JaxRuntimeError:
            pass  # the service is gone
        if self._farewell is not None:
            self._farewell.close()
        if self.failure:
            # JAX may still abort: the failure has been told, and its status is that of an exception.
            Farewell("lanax.distributed: aborted while it was ending, after a failure that it has told of.", 1).keep()
            _jax.leave_coordination()

    def _wait_for_others(self) -> None:
        end = time.monotonic() + _OTHERS * self.heartbeat
        while time.monotonic() < end:
            states = [state for _, state in self.client.key_value_dir_get(_ALIVE)]
            if sum(not state.startswith("left") for state in states) <= 1:  # but the dead one
                break
            time.sleep(0.02)
        time.sleep(min(_GOING, 0.1 * self.heartbeat))


def try_get(client: Any, key: str) -> str | None:
    """The value of a key; None where it has none yet."""
    try:
        return client.key_value_try_get(key)
    except jax.errors.JaxRuntimeError as error:
        if "NOT_FOUND" in str(error):
            return None
        raise


_watch: Watch | None = None


def watch(heartbeat: float = HEARTBEAT) -> Watch | None:
    """The watch, begun where there is none yet; None where this process is alone."""
    global _watch
    client = _jax.coordination()
    if client is None:
        return None
    if _watch is None or _watch.client is not client:
        _watch = Watch(client, heartbeat)
        _watch.start()
    return _watch


@atexit.register  # later than JAX's own, so it is called before
def leave() -> None:
    """End the watch, if there is one."""
    global _watch
    if _watch is not None and _jax.coordination() is _watch.client:
        _watch.leave()
    _watch = None
