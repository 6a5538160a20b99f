"""Keeps compiled kernels on disk, so that the next process does not compile them again. Knows neither LLVM nor XLA.

The files hold machine code, so what another user could have written is not loaded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import stat
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lanax._config import config, logger
from lanax._jax import warn_at_users_line

#: Of each file: what it is, a checksum of all that follows, the length of the header (JSON), the header, the code.
_MAGIC = b"lanax\x00k\x01"
_HEAD = struct.Struct("=8s32sI")
_SUFFIX = ".lanax"
_UNFINISHED = ".part"
#: Seconds after which an unfinished file is one that its process has left behind.
_LEFT_BEHIND = 3600


@dataclasses.dataclass(frozen=True)
class Entry:
    """One kernel on disk.

    Attributes:
      file: where it lies.
      bytes: the size of the file.
      used: when it was last used, in seconds since 1970.
    """

    file: Path
    bytes: int
    used: float

    @property
    def name(self) -> str:
        """The function that it was compiled for; empty where the file is not sound."""
        with contextlib.suppress(OSError, ValueError):
            content = _content(_read(self.file), self.file.stem)
            return content[0]["name"] if content else ""
        return ""


def default_folder() -> Path:
    """The platform's folder for caches."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "lanax" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "lanax"
    given = os.environ.get("XDG_CACHE_HOME", "")  # a relative one is to be ignored, says the standard
    return (Path(given) if os.path.isabs(given) else Path.home() / ".cache") / "lanax"


def folder() -> Path:
    """The folder of the kernels; it need not exist."""
    return Path(config.cache_dir) if config.cache_dir else default_folder()


def load(key: str) -> tuple[list[str], bytes] | None:
    """The exported symbols and the object code that were stored under a key; None where there is nothing sound."""
    if not config.cache:
        return None
    with _failing_softly():
        path = folder() / (key + _SUFFIX)
        try:
            _trusted(path.parent)
            data = _read(path)
        except FileNotFoundError:
            return None
        content = _content(data, key)
        if content is None:
            logger.warning("%s is damaged or no kernel; it is removed and compiled anew", path)
            path.unlink(missing_ok=True)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # the least recently used go first
        header, code = content
        return header["symbols"], code
    return None


def store(key: str, name: str, symbols: list[str], code: bytes) -> None:
    """Store the object code of a kernel; where that fails there is one warning."""
    if not config.cache:
        return
    header = json.dumps({"key": key, "name": name, "symbols": symbols}).encode()
    body = struct.pack("=I", len(header)) + header + code
    data = _MAGIC + hashlib.sha256(body).digest() + body
    if len(data) > config.cache_size:
        return
    with _failing_softly():
        place = folder()
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(_trusted(place), key + _SUFFIX, data)
        _trim(place, len(data))


def remove(key: str) -> None:
    """Forget what is stored under a key."""
    with contextlib.suppress(OSError, RuntimeError):
        (folder() / (key + _SUFFIX)).unlink(missing_ok=True)


def entries() -> list[Entry]:
    """What is stored, the most recently used first."""
    return sorted(_entries(folder()), key=lambda e: e.used, reverse=True)


def clear() -> int:
    """Remove everything that is stored; the number of kernels."""
    found = _entries(folder(), all_files=True)
    for entry in found:
        entry.file.unlink(missing_ok=True)
    _sizes.clear()
    return sum(entry.file.suffix == _SUFFIX for entry in found)


def read_file(path: Path) -> bytes:
    """A file of the folder that nobody else can have written; raises OSError where there is none."""
    _trusted(path.parent)
    return _read(path)


def write_file(name: str, data: bytes) -> Path:
    """Write a file into the folder: other processes see all of it or none. Raises OSError where that fails."""
    place = folder()
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write(_trusted(place), name, data)
    return place / name


# ---- trust -----------------------------------------------------------------------------------------------------------


class _Untrusted(OSError):
    """Machine code that somebody else may have written."""


def _trusted(path: Path) -> Path:
    """A folder that nobody else can write to."""
    _check_owner(path, path.stat())
    return path


def _check_owner(path: Path, found: os.stat_result) -> None:
    if not hasattr(os, "geteuid"):
        return  # on Windows the user's folders are the user's
    if found.st_uid != os.geteuid():
        raise _Untrusted(f"{path} belongs to another user")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _Untrusted(f"other users may write to {path} (`chmod go-w` would mend it)")


def _read(path: Path) -> bytes:
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise _Untrusted(f"{path} is no ordinary file")
        _check_owner(path, found)
        return file.read()


def _content(data: bytes, key: str) -> tuple[dict[str, Any], bytes] | None:
    """Header and code of a file's bytes; None where it is damaged or another's."""
    if len(data) < _HEAD.size:
        return None
    magic, checksum, length = _HEAD.unpack_from(data)
    if magic != _MAGIC or hashlib.sha256(data[_HEAD.size - 4:]).digest() != checksum:
        return None
    header = json.loads(data[_HEAD.size:_HEAD.size + length])
    return (header, data[_HEAD.size + length:]) if header["key"] == key else None


# ---- writing ---------------------------------------------------------------------------------------------------------


def _write(place: Path, name: str, data: bytes) -> None:
    """Other processes see the whole file or none."""
    number, part = tempfile.mkstemp(suffix=_UNFINISHED, dir=place)  # for its owner alone
    try:
        with open(number, "wb") as file:
            file.write(data)
        os.replace(part, place / name)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


#: Bytes in each folder, as far as this process knows.
_sizes: dict[Path, int] = {}


def _trim(place: Path, added: int) -> None:
    """Remove the least recently used kernels, down to nine tenths of the limit, where it is exceeded."""
    known = _sizes.get(place)
    size = sum(e.bytes for e in _entries(place)) if known is None else known + added
    if size > config.cache_size:
        now = time.time()
        oldest_first = sorted(_entries(place, all_files=True), key=lambda e: e.used)
        size = sum(e.bytes for e in oldest_first)
        for entry in oldest_first:
            unfinished = entry.file.suffix == _UNFINISHED
            if now - entry.used > _LEFT_BEHIND if unfinished else size > config.cache_size * 9 // 10:
                with contextlib.suppress(OSError):
                    entry.file.unlink()
                size -= entry.bytes
    _sizes[place] = size


def _entries(place: Path, all_files: bool = False) -> list[Entry]:
    found = []
    with contextlib.suppress(FileNotFoundError), os.scandir(place) as files:
        for file in files:
            with contextlib.suppress(FileNotFoundError):  # another process may have removed it
                if file.name.endswith((_SUFFIX, _UNFINISHED) if all_files else _SUFFIX):
                    about = file.stat(follow_symlinks=False)
                    found.append(Entry(Path(file.path), about.st_size, about.st_mtime))
    return found


# ---- failing ---------------------------------------------------------------------------------------------------------

_warned = False


@contextlib.contextmanager
def _failing_softly() -> Iterator[None]:
    """What goes wrong with the folder costs one warning, and that kernels are compiled anew."""
    global _warned
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: there is no home
        if not _warned:
            _warned = True
            warn_at_users_line(
                f"lanax cannot keep compiled kernels on disk: {error}. It compiles them in each process. "
                "LANAX_CACHE_DIR chooses another folder, LANAX_CACHE=off silences this.", UserWarning)
