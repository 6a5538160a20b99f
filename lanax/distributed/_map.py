"""`map`: one batch over all processes. Each runs its rows by `lanax.vmap` on its own devices, piece by piece."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lanax import _jax
from lanax._errors import DistributedError
from lanax._plan import Plan
from lanax._reports.progress import bar
from lanax.distributed._agreement import Call, call_of
from lanax.distributed._checkpoint import Checkpoint
from lanax.distributed._gather import check_collectives, gathered
from lanax.distributed._initialize import local_devices
from lanax.distributed._inputs import ARRAY, GLOBAL, LOCAL, Inputs, typed
from lanax.distributed._program import Program, program_of
from lanax.distributed._shares import Span, one_after_another, pieces, shares

_NAME = "lanax.distributed.map"
#: Pieces that a batch is cut into where nobody says how many rows one has, and what their rows are a multiple of.
_PIECES, _MULTIPLE = 256, 64
#: Seconds between two updates of the bar.
_UPDATE = 0.5


@_jax.api_boundary
def map(f: Callable[..., Any], xs: Any, *, inputs: str = GLOBAL, gather: bool = True, chunk: int | None = None,
        checkpoint: str | os.PathLike[str] | None = None, plan: Plan | None = None, progress: bool = False,
        timeout: float = 300.0) -> Any:
    """Map a function over a batch that all processes share out among them. All of them make the call.

    Args:
      f: a function of one example; takes and gives a pytree of arrays. The same in every process.
      xs: a pytree of arrays, whose first axes are the batch axis.
      inputs: `"global"`: every process has the same whole batch, and runs `lanax.distributed.share` of it; `"local"`:
        every process has its own rows, any number of them, and the batch is those of process 0, then those of
        process 1, and so on. Global `jax.Array`s of several processes are taken for what they are.
      gather: give the results of the whole batch to every process; else each has those of its own rows, and of global
        arrays the result is global arrays, where they were computed.
      chunk: rows that run at once in a process, between which it can be stopped and saves what is done; left out, a
        256th of the batch or more.
      checkpoint: a folder, which all processes see, for the results of chunks. A call that finds some of its chunks
        there, of the same program and the same inputs, computes the others.
      plan: how each process runs its rows; see `lanax.Plan`.
      progress: process 0 shows a bar on standard error, of the rows that all have done.
      timeout: seconds to wait for the other processes to make the call.

    Returns:
      What `lanax.vmap(f)(xs)` gives for the whole batch in one process, bit for bit where no part is left to XLA.

    Raises:
      TypeError, ValueError: an argument is not what it should be, or `f` needs to see the whole batch at once.
      DistributedError: processes call it with different things, or another one has failed, died or not come.
    """
    with call_of(_NAME, timeout) as call:
        _check(f, inputs, chunk, plan, timeout)
        given = Inputs(_NAME, xs, inputs)
        program = program_of(_NAME, f, given, plan or Plan())
        if gather and call.count > 1:
            check_collectives(_NAME)
        here = call.agree(_said(given, program, gather, chunk, checkpoint), _wrong, "here")
        work = _share_out(call, given, here)
        size = chunk or _piece_rows(work.rows)
        with _progress(call, program.name, work.rows, progress) as tell:
            arrays = _run(call, given, program, work, size, checkpoint, tell)
            if progress:
                call.tell_rows(work.mine[1] - work.mine[0])
            call.wait_for_all()
        if not gather and given.sharding is not None:
            return _global(program, arrays, given.sharding, work.rows)
        if gather and call.count > 1:
            arrays = gathered(arrays, work.mine, work.spans, work.rows)
        return jax.tree.unflatten(program.out_tree, [typed(jnp.asarray(a), t)
                                                     for a, t in zip(arrays, program.out_types, strict=True)])


def _check(f: Any, inputs: Any, chunk: Any, plan: Any, timeout: Any) -> None:
    if not callable(f):
        raise TypeError(f"`f` of {_NAME} must be a function of one example; got {type(f).__name__}.")
    if inputs not in (GLOBAL, LOCAL):
        raise ValueError(f"`inputs` of {_NAME} is 'global', where every process has the whole batch, or 'local', where "
                         f"each has its own rows; got {inputs!r}.")
    if chunk is not None and (type(chunk) is not int or chunk < 1):
        raise ValueError(f"`chunk` of {_NAME} is the number of rows that run at once: an int of 1 or more; "
                         f"got {chunk!r}.")
    if plan is not None and not isinstance(plan, Plan):
        raise TypeError(f"`plan` of {_NAME} must be a lanax.Plan or None; got {type(plan).__name__}: {plan!r}.")
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise ValueError(f"`timeout` of {_NAME} is a number of seconds greater than 0; got {timeout!r}.")
    if not _jax.core.trace_state_clean():
        raise TypeError(f"{_NAME} runs on the host and cannot be traced: call it outside of jax.jit, jax.vmap and "
                        "other transformations.")


# ---- who does what ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Work:
    """The rows of every process.

    Attributes:
      rows: of the batch.
      spans: the rows that each process runs; `mine` are those of this one.
      offset: the first row of the batch that this process was given.
      readable: the rows whose inputs this process has.
    """

    rows: int
    spans: list[Span]
    mine: Span
    offset: int
    readable: Span


def _said(given: Inputs, program: Program, gather: bool, chunk: int | None, checkpoint: Any) -> dict[str, Any]:
    """What this process says of the call."""
    if checkpoint is not None and program.calls_back:
        raise ValueError(f"`checkpoint` of {_NAME}: {program.name} calls Python functions, and nobody could say "
                         "whether files hold the results of the same ones. Leave it out, or take the callback out of "
                         "`f`.")
    return {"f": program.name, "kind": given.kind, "structure": given.kinds(), "program": program.digest,
            "plan": _of_bits(program.plan), "gather": bool(gather), "chunk": chunk,
            "checkpoint": checkpoint is not None, "rows": given.rows, "here": given.here}


def _of_bits(plan: Plan) -> list[Any]:
    """What the bits of results may depend on, of a plan."""
    return [plan.route, getattr(plan, "accuracy", None)]


#: What all processes have to say alike, in the order in which it is compared: what it is called, and what to do.
_ALIKE = {
    "f": ("`f`", "every process has to make the same calls in the same order"),
    "kind": ("`inputs`", "pass the same in every process"),
    "structure": ("`xs`", "structure, dtypes and shapes, but for the number of rows, must be the same everywhere"),
    "program": ("`f`", "it computes something else, or closes over other values"),
    "plan": ("`plan`", "route and accuracy must be the same in every process"),
    "gather": ("`gather`", "pass the same in every process"),
    "chunk": ("`chunk`", "pass the same in every process"),
    "checkpoint": ("`checkpoint`", "pass it in every process, or in none"),
}


def _wrong(everyone: list[dict[str, Any]]) -> str:
    """What is wrong with what all say, in words, or nothing."""
    for field, (what, advice) in _ALIKE.items():
        other = next((i for i, said in enumerate(everyone) if said[field] != everyone[0][field]), None)
        if other is not None:
            shown = [_short(said[field]) for said in (everyone[0], everyone[other])]
            return f"{what} differs: process 0 has {shown[0]}, process {other} has {shown[1]}; {advice}."
    rows = [said["rows"] for said in everyone]
    if everyone[0]["kind"] == LOCAL:
        return ""
    other = next((i for i, n in enumerate(rows) if n != rows[0]), None)
    if other is not None:
        advice = ("A global array has one shape, the same in every process." if everyone[0]["kind"] == ARRAY else
                  "With inputs='global' every process passes the whole batch; pass inputs='local' where each has its "
                  "own rows.")
        return f"`xs` differs: process 0 has {rows[0]} rows, process {other} has {rows[other]}. {advice}"
    spans = sorted(tuple(said["here"]) for said in everyone)
    if everyone[0]["kind"] == ARRAY and [0, *(s[1] for s in spans)] != [*(s[0] for s in spans), rows[0]]:
        return (f"`xs`, global arrays of {rows[0]} rows, must have each row in one process: the processes have "
                f"{_short(spans)}. Split the first axis over all devices.")
    return ""


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 160 else text[:157] + "..."


def _share_out(call: Call, given: Inputs, here: list[list[int]]) -> _Work:
    """Who runs what; `here` are the rows that each process was given."""
    if given.kind == LOCAL:
        sizes = [stop - start for start, stop in here]
        spans, rows = one_after_another(sizes), sum(sizes)
    elif given.kind == ARRAY:
        spans, rows = [(start, stop) for start, stop in here], given.rows
    else:
        spans, rows = shares(given.rows, call.count), given.rows
    mine = spans[call.process]
    offset = mine[0] if given.kind == LOCAL else 0
    return _Work(rows, spans, mine, offset, mine if given.kind != GLOBAL else (0, rows))


def _piece_rows(rows: int) -> int:
    """A number that depends on the batch alone, so that other processes find the same pieces in a checkpoint."""
    return max(1, -(-rows // (_PIECES * _MULTIPLE))) * _MULTIPLE


# ---- the rows of this process ----------------------------------------------------------------------------------------


def _run(call: Call, given: Inputs, program: Program, work: _Work, size: int, checkpoint: Any,
         tell: Callable[[int], None]) -> list[np.ndarray]:
    """The results of this process's rows; `tell` is told how many are done."""
    start, stop = work.mine
    outs = [np.empty((stop - start, *shape), dtype) for shape, dtype in program.kinds]
    compute = functools.partial(_computed, call, given, program, work, size)
    todo, store = pieces(work.mine, size, start), None
    if checkpoint is not None:
        store = _checkpoint(call, given, program, work, checkpoint)
        _run_even_part(call, given, work, store, size, compute, tell)
        todo = _missing(call, store, work, size, outs)
    done = stop - start - _rows(todo)
    tell(done)
    for span, results in compute(todo):
        for out, result in zip(outs, results, strict=True):
            out[span[0] - start:span[1] - start] = result
        if store is not None:
            store.store(span, results)
        done += span[1] - span[0]
        tell(done)
    return outs


def _rows(spans: Sequence[Span]) -> int:
    return sum(b - a for a, b in spans)


def _computed(call: Call, given: Inputs, program: Program, work: _Work, size: int,
              todo: Sequence[Span]) -> Iterator[tuple[Span, list[np.ndarray]]]:
    """Runs rows in pieces of at most `size`; gives the results of each."""
    runner = _Runner(given, program, work, min(size, max((b - a for a, b in todo), default=1)))
    for span in todo:
        call.look()
        yield span, runner(span)


class _Runner:
    """Runs pieces of at most `size` rows on the devices of this process; smaller ones are padded by their last row."""

    def __init__(self, given: Inputs, program: Program, work: _Work, size: int):
        self.given = given
        self.program = program
        self.offset = work.offset
        devices = local_devices()
        self.place: Any = devices[0]
        if len(devices) > 1 and program.plan.devices is None:
            self.place = NamedSharding(Mesh(np.array(devices), ("devices",)), PartitionSpec("devices"))
            size = -(-size // len(devices)) * len(devices)
        self.size = size

    def __call__(self, span: Span) -> list[np.ndarray]:
        count = span[1] - span[0]
        rows = self.given.read((span[0] - self.offset, span[1] - self.offset))
        if count < self.size:
            rows = [np.concatenate([x, np.broadcast_to(x[-1:], (self.size - count, *x.shape[1:]))]) for x in rows]
        outs = self.program.run(*jax.device_put(rows, self.place))
        return [np.asarray(out)[:count] for out in outs]


@contextlib.contextmanager
def _progress(call: Call, name: str, rows: int, shown: bool) -> Iterator[Callable[[int], None]]:
    """A function that is told how many rows this process has done; process 0 shows how many all have."""
    stopping = threading.Event()
    told = [0]

    def tell(done: int) -> None:
        told[0] = done

    def update() -> None:
        with bar(shown=call.process == 0) as lines:
            task = lines.add_task(name, total=rows)
            while True:
                last = stopping.wait(_UPDATE)
                try:
                    call.tell_rows(told[0])
                    everybody = told[0] if call.count == 1 else call.all_rows() if call.process == 0 else 0
                except DistributedError:  # the call itself will raise it
                    return
                lines.update(task, completed=everybody)
                if last:
                    return

    thread = threading.Thread(target=update, name="lanax-progress", daemon=True)
    if shown:
        thread.start()
    try:
        yield tell
    finally:
        stopping.set()
        if shown:
            thread.join()


def _global(program: Program, arrays: Sequence[np.ndarray], sharding: NamedSharding, rows: int) -> Any:
    """Results as global arrays, each row where its inputs were."""
    whole = [typed(jax.make_array_from_process_local_data(sharding, a, (rows, *a.shape[1:])), t)
             for a, t in zip(arrays, program.out_types, strict=True)]
    return jax.tree.unflatten(program.out_tree, whole)


# ---- what is done already --------------------------------------------------------------------------------------------


def _checkpoint(call: Call, given: Inputs, program: Program, work: _Work, folder: Any) -> Checkpoint:
    versions = sys.modules["lanax"].__version__, jax.__version__
    parts = [program.digest, given.kinds(), _of_bits(program.plan), jax.default_backend(), work.rows, versions,
             [(list(shape), str(dtype)) for shape, dtype in program.kinds]]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    store = Checkpoint(Path(folder).expanduser(), program.name, key, functools.partial(_read, given, work.offset),
                       program.kinds)
    if call.process == 0:
        store.tidy()
    return store


def _read(given: Inputs, offset: int, span: Span) -> list[np.ndarray]:
    return given.read((span[0] - offset, span[1] - offset))


def _run_even_part(call: Call, given: Inputs, work: _Work, store: Checkpoint, size: int,
                   compute: Callable[[Sequence[Span]], Iterator[tuple[Span, list[np.ndarray]]]],
                   tell: Callable[[int], None]) -> None:
    """Where some rows are in files, and all processes see the same files and can read all inputs: runs an even part of
    the other rows, whoever's they are, into files. Each process finds what its own rows lack there afterwards."""
    if given.kind != GLOBAL or call.count == 1:
        return
    missing = store.missing(work.rows, size)
    total = _rows(missing)
    alike = call.is_same("files", hashlib.sha256(json.dumps(missing).encode()).hexdigest())
    if not alike or total in (0, work.rows):
        return
    start, stop = work.mine
    done = stop - start - _rows([(max(a, start), min(b, stop)) for a, b in missing if a < stop and start < b])
    ends = itertools.accumulate(b - a for a, b in missing)
    mine = [span for span, end in zip(missing, ends, strict=True) if (end - 1) * call.count // total == call.process]
    for span, results in compute(mine):
        store.store(span, results)
        done += span[1] - span[0]
        tell(done)
    call.wait_for_all("stored")


def _missing(call: Call, store: Checkpoint, work: _Work, size: int, outs: list[np.ndarray]) -> list[Span]:
    """Takes what is done, and gives the rows that are not, in pieces."""
    start, stop = work.mine
    done = np.zeros(stop - start, bool)
    for a, b in store.spans(work.readable):
        first, last = max(a, start), min(b, stop)
        if first >= last or done[first - start:last - start].all():
            continue
        call.look()
        arrays = store.load((a, b))
        if arrays is not None:
            for out, array in zip(outs, arrays, strict=True):
                out[first - start:last - start] = array[first - a:last - a]
            done[first - start:last - start] = True
    edges = np.flatnonzero(np.diff(np.concatenate([[True], done, [True]]).astype(np.int8)))
    gaps = [(start + int(a), start + int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]
    return [piece for gap in gaps for piece in pieces(gap, size)]
