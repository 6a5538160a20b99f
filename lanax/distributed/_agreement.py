"""One call that all processes make together: they agree on what it is, hear of each other's failures, and end at once.

All of it goes through the key-value store of JAX's coordination service; nothing here touches a device. Process 0
collects from all, and tells all: each process asks for one key at a time, however many there are.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax

from lanax import _jax
from lanax._errors import DistributedError
from lanax.distributed._watch import Watch, try_get, watch

_numbers = itertools.count()
_one_at_a_time = threading.RLock()

#: Seconds of one question to the service; between two looks at whether another process has failed.
_QUESTION, _LOOK = 2.0, 0.5
#: Where one process waits for another, it gives it so much longer than that has itself.
_LONGER = 5.0

#: What the processes have to say alike, and what is wrong where they do not.
Compare = Callable[[list[dict[str, Any]]], str]


class Call:
    """One call, in this process.

    Attributes:
      name: of the function that is called.
      process, count: the number of this process, and of all.
    """

    def __init__(self, name: str, timeout: float, watching: Watch | None):
        self.name = name
        self.timeout = timeout
        self.process, self.count, _ = _jax.process_of() if watching else (0, 1, "")
        self._watch: Any = watching
        self._client: Any = _jax.coordination()
        self._number = next(_numbers) if watching else 0
        self._looked = 0.0

    def agree(self, mine: dict[str, Any], wrong: Compare, wanted: str) -> list[Any]:
        """What every process says of the call; returns in all of them, or raises in all of them.

        Args:
          mine: what this one says; JSON takes it.
          wrong: what is wrong with what all say, in words, or nothing. Process 0 asks it.
          wanted: the field that is returned, in the order of the processes.

        Raises:
          DistributedError: they do not agree, or one of them does not come.
        """
        def judge(texts: list[str]) -> str:
            everyone = [json.loads(text) for text in texts]
            return json.dumps([wrong(everyone), [said[wanted] for said in everyone]])

        text, found = json.loads(self._all_say("begin", json.dumps(mine), self.timeout, judge))
        if text:
            raise DistributedError(f"{self.name}: {text}")
        return found

    def is_same(self, what: str, mine: str) -> bool:
        """Whether all processes say the same of `what`, which is asked once in a call."""
        return self._all_say(what, mine, None, lambda said: "yes" if len({*said}) == 1 else "no") == "yes"

    def wait_for_all(self, where: str = "end") -> None:
        """Returns when all processes have come here, however long that takes; another name for each place in a call."""
        self._all_say(where, "", None, lambda _: "")

    def look(self) -> None:
        """Raises DistributedError where another process has failed; cheap, as it mostly looks at the clock."""
        if self._watch is None:
            return
        if self._watch.failure:
            self._watch.raised()
            raise DistributedError(f"{self.name}: {self._watch.failure}")
        if time.monotonic() - self._looked > _LOOK:
            self._looked = time.monotonic()
            failed = self._ask(lambda: try_get(self._client, self._key("failed")))
            if failed:
                raise DistributedError(f"{self.name}: {failed}")

    def tell_rows(self, rows: int) -> None:
        """How many rows this process has done."""
        if self._watch is not None:
            self._ask(lambda: self._client.key_value_set(self._key(f"rows/{self.process}"), str(rows), True))

    def all_rows(self) -> int:
        """How many rows all have said that they have done."""
        return sum(int(rows) for _, rows in self._ask(lambda: self._client.key_value_dir_get(self._key("rows"))))

    def fail(self, error: BaseException) -> None:
        """Tell the others that this process has failed."""
        if self._watch is None or (isinstance(error, DistributedError) and self._watch.failure):
            return
        said = str(error).strip().splitlines()
        text = (f"process {self.process} of {self.count} stopped with {type(error).__name__}"
                f"{': ' + said[0] if said else ''}")
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # another one was first, or the service is gone
            self._client.key_value_set(self._key("failed"), text)

    def _key(self, what: str) -> str:
        return f"lanax/calls/{self._number}/{what}"

    def _all_say(self, what: str, mine: str, seconds: float | None, judge: Callable[[list[str]], str]) -> str:
        """What process 0 makes of what all say, given in the order of the processes."""
        if self._watch is None:
            return judge([mine])
        self._ask(lambda: self._client.key_value_set(self._key(f"{what}/{self.process}"), mine))
        if self.process == 0:
            said = judge(self._collect(what, seconds))
            if what == "begin" and self._number:  # all have come here, so nobody reads of the call before
                self._ask(lambda: self._client.key_value_delete(f"lanax/calls/{self._number - 1}"))
            self._ask(lambda: self._client.key_value_set(self._key(f"{what}-all"), said))
            return said
        return self._answer(f"{what}-all", None if seconds is None else seconds + _LONGER)

    def _collect(self, what: str, seconds: float | None) -> list[str]:
        begun = time.monotonic()
        while True:
            found = dict(self._ask(lambda: self._client.key_value_dir_get(self._key(what))))
            said = {int(key.rsplit("/", 1)[1]): text for key, text in found.items()}
            if len(said) == self.count:
                return [said[i] for i in range(self.count)]
            self.look()
            missing = [i for i in range(self.count) if i not in said]
            gone = next((i for i in missing if self._watch.has_left(i)), None)
            if gone is not None:
                raise DistributedError(f"{self.name}: {self._watch.who(gone)} has ended, and does not take part.")
            waited = time.monotonic() - begun
            if seconds is not None and waited > seconds:
                raise DistributedError(
                    f"{self.name}: {', '.join(map(self._watch.who, missing[:4]))}{' and others' * (len(missing) > 4)} "
                    f"did not come to this call within {seconds:g} s (`timeout`). Every process has to make the same "
                    "calls in the same order.")
            time.sleep(min(0.25, max(0.002, 0.05 * waited)))

    def _answer(self, what: str, seconds: float | None) -> str:
        """What process 0 says under a key."""
        begun = time.monotonic()
        question = int(1000 * min(_QUESTION, self._watch.period))
        while True:
            try:
                return self._client.blocking_key_value_get(self._key(what), question)
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise self._unreached(error) from error
            self._looked = 0.0
            self.look()
            if self._ask(self._watch.first_has_left):
                self.look()  # perhaps since another one is dead
                raise DistributedError(f"{self.name}: process 0 of {self.count} has ended, and does not take part.")
            if seconds is not None and time.monotonic() - begun > seconds:
                raise DistributedError(f"{self.name}: process 0 of {self.count} did not come to this call within "
                                       f"{seconds:g} s (`timeout`). Every process has to make the same calls in the "
                                       "same order.")

    def _ask(self, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except jax.errors.JaxRuntimeError as error:
            raise self._unreached(error) from error

    def _unreached(self, error: Exception) -> DistributedError:
        self._watch.raised()
        failure = self._watch.failure or (f"process 0 of {self.count}, which all others need, no longer answers: it "
                                          f"has died or is cut off ({str(error).splitlines()[0]})")
        return DistributedError(f"{self.name}: {failure}")


@contextlib.contextmanager
def call_of(name: str, timeout: float) -> Iterator[Call]:
    """A call that all processes make. What fails in one of them fails in all."""
    with _one_at_a_time:
        call = Call(name, timeout, watch())
        try:
            yield call
        except BaseException as error:
            call.fail(error)
            raise
