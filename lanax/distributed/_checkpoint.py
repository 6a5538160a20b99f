"""Rows that are done, kept in files, so that a run that was stopped goes on where it was. Knows no program.

One file holds the results of some rows. Its name has the rows and its folder the key of the program; inside are a
checksum of the whole file and one of the inputs of these rows. What is damaged, or of other inputs, is as if it were
not there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import socket
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from lanax._config import logger
from lanax.distributed._shares import Span, pieces

#: Of each file: what it is, a checksum of all that follows, the length of the header (JSON), the header, the arrays.
_MAGIC = b"lanax\x00c\x01"
_HEAD = struct.Struct("<8s32sQ")
_NAME = re.compile(r"rows-(\d+)-(\d+)\.lanax")
_UNFINISHED = ".part"
#: Seconds after which an unfinished file is one that its process has left behind.
_LEFT_BEHIND = 3600

#: The inputs of some rows: an array for each leaf.
Rows = Callable[[Span], Sequence[np.ndarray]]


class Checkpoint:
    """The files of one batch.

    Args:
      folder: of the user's; each program has one of its own inside, by its `key`.
      name: of the program, for people.
      key: what the results depend on beside the inputs.
      inputs: the inputs of rows, of those that this process can read.
      kinds: shape and dtype of one row of each result.
    """

    def __init__(self, folder: Path, name: str, key: str, inputs: Rows,
                 kinds: Sequence[tuple[tuple[int, ...], np.dtype]]):
        plain = re.sub(r"\W+", "_", name).strip("_") or "f"
        self.folder = folder / f"{plain}-{key[:16]}"
        self.key = key
        self.inputs = inputs
        self.kinds = [(list(shape), str(dtype)) for shape, dtype in kinds]
        self.folder.mkdir(parents=True, exist_ok=True)

    def spans(self, within: Span) -> list[Span]:
        """The rows that files in these rows hold, as their names say."""
        found = (_NAME.fullmatch(file.name) for file in self.folder.iterdir())
        spans = sorted((int(m[1]), int(m[2])) for m in found if m)
        return [(a, b) for a, b in spans if within[0] <= a < b <= within[1]]

    def missing(self, rows: int, size: int) -> list[Span]:
        """The rows of a batch that no file holds, as their names say, in pieces of at most `size`."""
        found, begin = [], 0
        for a, b in [*self.spans((0, rows)), (rows, rows)]:
            found += pieces((begin, a), size, begin)
            begin = max(begin, b)
        return found

    def load(self, span: Span) -> list[np.ndarray] | None:
        """The results of the rows of one file; None where it is not sound, or not of these inputs."""
        try:
            data = self._file(span).read_bytes()
        except OSError:
            return None
        arrays = self._sound(data, span)
        if arrays is None:
            logger.warning("%s is damaged or of other inputs; its rows are computed again", self._file(span))
        return arrays

    def store(self, span: Span, arrays: Sequence[np.ndarray]) -> None:
        """Keep results: a file is there whole, or not at all."""
        header = json.dumps(self._header(span)).encode()
        body = b"".join([struct.pack("<Q", len(header)), header, *(np.ascontiguousarray(a).tobytes() for a in arrays)])
        file = self._file(span)
        part = file.with_name(f"{file.name}.{socket.gethostname()}.{os.getpid()}{_UNFINISHED}")
        with part.open("wb") as out:
            out.write(_MAGIC + hashlib.sha256(body).digest() + body)
            out.flush()
            os.fsync(out.fileno())
        os.replace(part, file)

    def tidy(self) -> None:
        """Remove what killed processes have left unfinished."""
        for part in self.folder.glob("*" + _UNFINISHED):
            with contextlib.suppress(OSError):
                if time.time() - part.stat().st_mtime > _LEFT_BEHIND:
                    part.unlink()

    def _file(self, span: Span) -> Path:
        return self.folder / f"rows-{span[0]:012d}-{span[1]:012d}.lanax"

    def _header(self, span: Span) -> dict[str, object]:
        return {"key": self.key, "rows": list(span), "kinds": [list(kind) for kind in self.kinds],
                "inputs": checksum(self.inputs(span))}

    def _sound(self, data: bytes, span: Span) -> list[np.ndarray] | None:
        if len(data) < _HEAD.size:
            return None
        magic, found, length = _HEAD.unpack_from(data)
        body = memoryview(data)[_HEAD.size - 8:]
        if magic != _MAGIC or hashlib.sha256(body).digest() != found:
            return None
        header, rest = bytes(body[8:8 + length]), body[8 + length:]
        if header != json.dumps(self._header(span)).encode():
            return None
        arrays = []
        for shape, dtype in self.kinds:
            whole = (span[1] - span[0], *shape)
            size = int(np.prod(whole)) * np.dtype(dtype).itemsize
            arrays.append(np.frombuffer(rest[:size], dtype).reshape(whole))
            rest = rest[size:]
        return arrays


def checksum(arrays: Sequence[np.ndarray]) -> str:
    """The same for arrays of the same bits."""
    found = hashlib.sha256()
    for a in arrays:
        found.update(f"{a.dtype}{a.shape}".encode())
        found.update(np.ascontiguousarray(a).tobytes())
    return found.hexdigest()
