"""Compiled kernels on disk: a second process compiles nothing; what is damaged or another's is not loaded; failing
costs a warning."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lanax
from lanax.__main__ import main
from lanax._runtime import cache, jit
from lanax._target import host

CODE = """
define i64 @answer() {{
  ret i64 {}
}}
"""
PROGRAM = """
    import logging, sys
    import jax, numpy as np
    from jax import lax
    import lanax

    class Count(logging.Handler):
        compiled = found = 0
        def emit(self, record):
            Count.compiled += ": compiled" in record.getMessage()
            Count.found += "found on disk" in record.getMessage()

    logging.getLogger("lanax").addHandler(Count())
    logging.getLogger("lanax").setLevel("INFO")

    def fun(x):
        return lax.while_loop(lambda v: v < 9, lambda v: v * 2 + 1, x)

    got = np.asarray(jax.jit(lanax.vmap(fun))(np.arange(100, dtype=np.float32)))
    print(Count.compiled, Count.found, got.sum())
    assert (got == np.asarray(jax.vmap(fun)(np.arange(100, dtype=np.float32)))).all()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of the test's own, which does not exist yet."""
    monkeypatch.setattr(cache, "_warned", False)
    lanax.config.update("cache_dir", tmp_path / "kernels")
    yield tmp_path / "kernels"
    for name in ("cache", "cache_dir", "cache_size"):
        lanax.config.update(name, None)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modules that LLVM compiles."""
    seen: list[str] = []
    real = jit._optimised
    monkeypatch.setattr(jit, "_optimised", lambda text, target: (seen.append(text), real(text, target))[1])
    return seen


def answer(number: int) -> jit.Compiled:
    return jit.compile_module(CODE.format(number), host(), f"answer_{number}")


def value(compiled: jit.Compiled) -> int:
    return ctypes.CFUNCTYPE(ctypes.c_int64)(compiled.address("answer"))()


def run(program: str, **environment: Any) -> subprocess.CompletedProcess[str]:
    """A process of its own."""
    given = {k: v for k, v in os.environ.items() if not k.startswith("LANAX_")}
    given |= {"JAX_PLATFORMS": "cpu"} | {k: str(v) for k, v in environment.items()}
    return subprocess.run([sys.executable, "-c", textwrap.dedent(program)], env=given, capture_output=True, text=True,
                          check=True)


# ---- what it is for --------------------------------------------------------------------------------------------------
def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    """With the cache of JAX beside it, in which the number of the kernel is all that differs from function to
    function."""
    given = {"JAX_COMPILATION_CACHE_DIR": tmp_path / "jax", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": 0,
             "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": -1, "LANAX_CACHE_DIR": tmp_path / "k"}
    first, second = (run(PROGRAM, **given).stdout.split() for _ in range(2))
    assert list((tmp_path / "jax").iterdir())
    assert first[:2] == ["2", "0"]  # the kernel and the handler
    assert second == ["0", "2", first[2]]
    assert run(PROGRAM.replace("v * 2 + 1", "v * 2 + 3"), **given).stdout.split()[:2] == ["1", "1"]


def test_a_kernel_is_compiled_once(folder: Path, compilations: list[str]) -> None:
    assert [value(answer(42)) for _ in range(3)] == [42] * 3
    assert value(answer(43)) == 43
    assert len(compilations) == 2
    assert len(list(folder.iterdir())) == 2


def test_the_key_is_all_that_code_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    target = host()
    others = [dataclasses.replace(target, **{name: "x"}) for name in ("triple", "cpu", "features")]
    keys = [jit._key("a", target), jit._key("b", target), *(jit._key("a", other) for other in others)]
    monkeypatch.setattr(jit.llvmlite, "__version__", "0.0")
    keys.append(jit._key("a", target))
    monkeypatch.setattr(jit, "_compiler", lambda: "other passes")
    assert len({*keys, jit._key("a", target)}) == 7


def test_it_can_be_turned_off(folder: Path) -> None:
    lanax.config.update("cache", False)
    assert value(answer(1)) == 1
    assert not folder.exists()


def test_many_write_and_read_at_once(folder: Path) -> None:
    codes = {f"{i:064}": bytes([i]) * 100_000 for i in range(4)}

    def work(seed: int) -> None:
        for i in range(40):
            key = f"{(seed + i) % 4:064}"
            if (seed + i) % 3:
                cache.store(key, "some", ["f"], codes[key])
            else:
                assert cache.load(key) in (None, (["f"], codes[key]))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert len(list(folder.iterdir())) == 4
    assert all(cache.load(key) == (["f"], code) for key, code in codes.items())


# ---- what is not loaded ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("damage", [
    lambda data: b"", lambda data: data[:20], lambda data: data[:-1], lambda data: data + b"x",
    lambda data: data[:-5] + bytes([data[-5] ^ 1]) + data[-4:], lambda data: data[:60] + b"?" + data[61:],
    lambda data: b"\x7fELF" + data[4:], lambda data: bytes(len(data)),
], ids=["empty", "head", "short", "long", "bit", "header", "other", "zeros"])
def test_a_damaged_file_is_compiled_anew(folder: Path, compilations: list[str], damage: Any) -> None:
    answer(7)
    (file,) = folder.iterdir()
    sound = file.read_bytes()
    file.write_bytes(damage(sound))
    assert value(answer(7)) == 7
    assert len(compilations) == 2
    assert file.read_bytes() == sound
    assert value(answer(7)) == 7
    assert len(compilations) == 2


def test_a_file_under_another_name_is_not_it(folder: Path, compilations: list[str]) -> None:
    answer(1)
    (first,) = folder.iterdir()
    answer(2)
    (second,) = (f for f in folder.iterdir() if f != first)
    second.write_bytes(first.read_bytes())
    assert value(answer(2)) == 2
    assert len(compilations) == 3


def test_code_that_does_not_link_is_compiled_anew(folder: Path, compilations: list[str]) -> None:
    key = jit._key(CODE.format(5), host())
    cache.store(key, "answer", ["answer"], b"no object file")
    assert value(answer(5)) == 5
    assert value(answer(5)) == 5
    assert len(compilations) == 1


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="who owns a file is checked on POSIX only")
def test_what_others_may_write_is_not_loaded(folder: Path, compilations: list[str],
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    answer(7)
    (file,) = folder.iterdir()
    for path, mode in ((folder, 0o770), (folder, 0o707), (file, 0o620), (file, 0o606)):
        path.chmod(mode)
        monkeypatch.setattr(cache, "_warned", False)
        before = len(compilations)
        with pytest.warns(UserWarning, match="other users may write to"):
            assert value(answer(7)) == 7
        assert len(compilations) == before + 1
        folder.chmod(0o700)
        file.chmod(0o600)
    monkeypatch.setattr(cache, "_warned", False)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.warns(UserWarning, match="belongs to another user"):
        assert value(answer(7)) == 7


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="there are no links to follow")
def test_links_are_not_followed(folder: Path, compilations: list[str]) -> None:
    answer(7)
    (file,) = folder.iterdir()
    file.rename(folder.parent / "elsewhere")
    file.symlink_to(folder.parent / "elsewhere")
    with pytest.warns(UserWarning, match="cannot keep compiled kernels on disk"):
        assert value(answer(7)) == 7
    assert len(compilations) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="modes are POSIX's")
def test_folder_and_files_are_the_users_alone(folder: Path) -> None:
    answer(7)
    (file,) = folder.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


# ---- failing ---------------------------------------------------------------------------------------------------------
def full(*_: Any, **__: Any) -> Any:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("where", ["mkstemp", "replace", "mkdir"])
def test_a_disk_that_cannot_be_written_costs_one_warning(folder: Path, monkeypatch: pytest.MonkeyPatch,
                                                         where: str) -> None:
    owner = {"mkstemp": cache.tempfile, "replace": cache.os, "mkdir": Path}[where]
    monkeypatch.setattr(owner, where, full)
    with pytest.warns(UserWarning, match=r"lanax cannot keep compiled kernels on disk: .*No space left") as caught:
        assert [value(answer(i)) for i in range(3)] == [0, 1, 2]
    assert [warning.filename for warning in caught] == [__file__]
    assert not folder.exists() or not list(folder.iterdir())


def test_a_folder_that_cannot_be_a_folder(folder: Path) -> None:
    folder.write_text("a file")
    with pytest.warns(UserWarning, match="cannot keep compiled kernels on disk") as caught:
        assert [value(answer(i)) for i in range(3)] == [0, 1, 2]
    assert len(caught) == 1


def test_no_home(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    lanax.config.update("cache_dir", None)
    monkeypatch.setitem(lanax.config._environment, "cache_dir", None)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.warns(UserWarning, match="Could not determine home directory"):
        assert value(answer(1)) == 1


# ---- size and place --------------------------------------------------------------------------------------------------
def test_the_least_recently_used_go_first(folder: Path, compilations: list[str]) -> None:
    for i in range(10):
        answer(i)
        for file in folder.iterdir():
            os.utime(file, (file.stat().st_atime, file.stat().st_mtime - 100))
    answer(0)  # used again
    size = sum(entry.bytes for entry in cache.entries())
    lanax.config.update("cache_size", size)
    answer(10)  # one too many
    assert sum(entry.bytes for entry in cache.entries()) <= size * 9 // 10
    kept = {entry.name for entry in cache.entries()}
    assert {"answer_0", "answer_10", "answer_9"} <= kept
    assert "answer_1" not in kept
    assert "answer_2" not in kept


def test_a_kernel_larger_than_the_limit_is_not_stored(folder: Path) -> None:
    lanax.config.update("cache_size", "1KiB")
    lanax.config.update("cache_size", 100)
    assert value(answer(3)) == 3
    assert not folder.exists() or not list(folder.iterdir())


def test_what_a_killed_process_left_is_removed_in_time(folder: Path) -> None:
    answer(1)
    old, new = folder / "old.part", folder / "new.part"
    for file in (old, new):
        file.write_bytes(b"x" * 1000)
    os.utime(old, (0, 0))
    lanax.config.update("cache_size", sum(entry.bytes for entry in cache.entries()) + 50)
    cache._sizes.clear()
    answer(2)
    assert not old.exists()
    assert new.exists()


@pytest.mark.parametrize(("platform", "variables", "expected"), [
    ("linux", {"XDG_CACHE_HOME": "/x/cache"}, "/x/cache/lanax"),
    ("linux", {"XDG_CACHE_HOME": "relative"}, "~/.cache/lanax"),
    ("linux", {}, "~/.cache/lanax"),
    ("darwin", {}, "~/Library/Caches/lanax"),
    ("win32", {"LOCALAPPDATA": "/local"}, "/local/lanax/Cache"),
])
def test_the_platforms_folder(monkeypatch: pytest.MonkeyPatch, platform: str, variables: dict[str, str],
                              expected: str) -> None:
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(sys, "platform", platform)
    assert cache.default_folder() == Path(expected).expanduser()


# ---- the command -----------------------------------------------------------------------------------------------------
def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(3):
        answer(i)
    assert main(["cache", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["folder"] == str(folder)
    assert found["kernels"] == 3
    assert found["bytes"] == sum(f.stat().st_size for f in folder.iterdir())
    assert {e["name"] for e in found["entries"]} == {"answer_0", "answer_1", "answer_2"}
    assert main(["cache", "list"]) == 0
    assert "answer_1" in capsys.readouterr().out
    assert main(["cache", "size"]) == 0
    assert f"3 kernels in {folder}" in " ".join(capsys.readouterr().out.split())
    assert main(["cache", "clear"]) == 0
    assert "removed 3 kernels" in capsys.readouterr().out
    assert list(folder.iterdir()) == []
    assert main(["cache", "size", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kernels"] == 0


def test_a_mapped_function_uses_it(folder: Path, compilations: list[str]) -> None:
    mapped = lanax.vmap(lambda x: x * 3.25 + 17.5, plan=lanax.Plan(route="lanes", lanes=4))
    x = np.arange(9, dtype=np.float32)
    np.testing.assert_array_equal(mapped(x), x * 3.25 + 17.5)
    names = {entry.name for entry in cache.entries()}
    assert "<lambda>" in names
