"""Settings: where each comes from, that the nearest wins, in threads, tasks and jitted functions; and what they do."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

import lanax
from lanax import Plan
from lanax._config import SETTINGS, STAGE_NAMES, Config, from_environment, resolve
from lanax._plan import FIELDS
from lanax._target import host

X = np.arange(300, dtype=np.float32)
LARGE = jax.ShapeDtypeStruct((10_000_000,), np.float32)


def loop(x: Any) -> Any:
    return lax.while_loop(lambda v: v < 9, lambda v: v * 2 + 1, x)


def want(x: np.ndarray) -> np.ndarray:
    for _ in range(10):
        x = np.where(x < 9, x * 2 + 1, x)
    return x


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    for name in SETTINGS:
        lanax.config.update(name, None)


def of(report: lanax.Report, field: str) -> tuple[Any, str | None]:
    """The value of a field of the plan of a call, and who set it."""
    return getattr(report.plan, field), report.plan.sources.get(field)


def explained(**plan: Any) -> lanax.Report:
    return lanax.explain(lanax.vmap(loop, plan=Plan(**plan)), LARGE)


# ---- the nearest wins ------------------------------------------------------------------------------------------------
def test_the_nearest_source_of_a_field_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert of(explained(), "chunk") == (None, None)
    monkeypatch.setattr("lanax._config.config", Config({"LANAX_CHUNK": "10", "LANAX_LANES": "2"}))
    assert of(explained(), "chunk") == (10, "LANAX_CHUNK")
    sys.modules["lanax._config"].config.update("chunk", 20)  # type: ignore[attr-defined]
    assert of(explained(), "chunk") == (20, "config")
    with lanax.use_plan(chunk=30):
        assert of(explained(), "chunk") == (30, "use_plan")
        assert of(explained(chunk=40), "chunk") == (40, "the call")
        mapped = lanax.vmap(loop, plan=Plan(chunk=40))
        report = lanax.explain(mapped, LARGE, plan=Plan(chunk=50, threads=1))
        assert of(report, "chunk") == (50, "explain")
        assert of(report, "lanes") == (2, "LANAX_LANES")
        assert "asked for: lanes=2 (LANAX_LANES), threads=1 (explain), chunk=50 (explain); " in str(report)
        assert "automatic: route, memory, devices" in str(report)
        assert (report.kernels[0].lanes, report.kernels[0].chunk, report.kernels[0].threads) == (2, 50, 1)


def test_contexts_nest_and_merge() -> None:
    with lanax.use_plan(threads=1, lanes=8) as outer:
        assert outer == Plan(threads=1, lanes=8)
        with lanax.use_plan(Plan(lanes=4), chunk=64) as inner:
            assert inner == resolve(Plan()) == Plan(threads=1, lanes=4, chunk=64)
        with pytest.raises(ZeroDivisionError), lanax.use_plan(threads=2):
            raise ZeroDivisionError
        assert resolve(Plan()) == outer
    assert resolve(Plan()) == Plan()


def test_a_context_is_a_decorator_too() -> None:
    @lanax.use_plan(lanes=4)
    def decorated() -> Plan:
        return resolve(Plan())

    assert [decorated(), decorated(), resolve(Plan())] == [Plan(lanes=4), Plan(lanes=4), Plan()]


def test_what_contradicts_a_nearer_field_gives_way() -> None:
    with lanax.use_plan(lanes=8):
        assert explained(route="serial").kernels[0].lanes == 1
    with lanax.use_plan(route="serial"):
        assert explained(lanes=8).kernels[0].lanes == 8
        assert explained().kernels[0].lanes == 1


def test_bad_fields_are_refused_at_once() -> None:
    with pytest.raises(lanax.PlanError, match="`threads` of a Plan"):
        lanax.use_plan(threads=0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'thread'"):
        lanax.use_plan(thread=1)
    with pytest.raises(TypeError, match=r"`plan` of lanax.use_plan must be a lanax.Plan or None; got int: 3"):
        lanax.use_plan(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"`plan` of lanax.explain must be a lanax.Plan or None; got int: 3"):
        lanax.explain(lanax.vmap(loop), X, plan=3)  # type: ignore[arg-type]


def test_a_thread_has_its_own_context() -> None:
    seen: dict[str, Plan] = {}
    inside = threading.Event()
    done = threading.Event()

    def other() -> None:
        inside.wait(60)
        seen["other"] = resolve(Plan())
        with lanax.use_plan(lanes=2):
            seen["own"] = resolve(Plan())
            np.testing.assert_array_equal(lanax.vmap(loop)(X), want(X))
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with lanax.use_plan(threads=1):
        inside.set()
        assert done.wait(60)
        seen["mine"] = resolve(Plan())
    thread.join()
    assert seen == {"other": Plan(), "own": Plan(lanes=2), "mine": Plan(threads=1)}


def test_a_task_has_its_own_context() -> None:
    """And whatever order tasks leave their contexts in, nothing stays behind."""
    f = jax.jit(lanax.vmap(loop))
    f(X)
    entries = f._cache_size()

    async def task(lanes: int, wait: float) -> Plan:
        with lanax.use_plan(lanes=lanes):
            await asyncio.sleep(wait)
            return resolve(Plan())

    async def both() -> list[Plan]:
        return await asyncio.gather(task(2, 0.02), task(4, 0.01), task(8, 0.03))

    assert asyncio.run(both()) == [Plan(lanes=2), Plan(lanes=4), Plan(lanes=8)]
    assert resolve(Plan()) == Plan()
    f(X)
    assert f._cache_size() == entries


def test_jitted_functions_follow_the_settings() -> None:
    f = jax.jit(lanax.vmap(lambda x: loop(x) + 1))
    traced: list[Plan] = []

    def plan_of_call() -> Plan | None:
        """The plan by which a call is traced; None where it was traced before."""
        before = len(traced)
        np.testing.assert_array_equal(f(X), want(X) + 1)
        return traced[-1] if len(traced) > before else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lanax._api.resolve", lambda own: traced.append(resolve(own)) or traced[-1])
        assert plan_of_call() == Plan()
        with lanax.use_plan(lanes=2):
            assert plan_of_call() == Plan(lanes=2)
            assert plan_of_call() is None
            with lanax.use_plan(threads=1):
                assert plan_of_call() == Plan(lanes=2, threads=1)
        assert plan_of_call() is None
        lanax.config.update("lanes", 4)
        assert plan_of_call() == Plan(lanes=4)
        with lanax.use_plan(lanes=2):
            assert plan_of_call() == Plan(lanes=2)
        lanax.config.update("lanes", None)
        assert plan_of_call() is None


def test_derivatives_run_by_the_plan_of_the_call() -> None:
    with lanax.use_plan(lanes=2):
        text = str(jax.make_jaxpr(jax.grad(lambda x: lanax.vmap(lambda v: v * v * 2)(x).sum()))(X))
    assert text.count("plan=Plan(lanes=2)") >= 2


# ---- config ----------------------------------------------------------------------------------------------------------
def test_config_reads_and_updates() -> None:
    assert (lanax.config.threads, lanax.config.cache_size) == (None, 1 << 30)
    lanax.config.update("threads", 1)
    lanax.config.memory = "2GiB"
    lanax.config.update("dump", ["llvm", "asm"])
    assert (lanax.config.threads, lanax.config.memory, lanax.config.dump) == (1, 2 << 30, ("llvm", "asm"))
    assert "threads=1" in repr(lanax.config)
    assert "memory='2GiB'" in repr(lanax.config)
    assert set(SETTINGS) <= set(dir(lanax.config))


@pytest.mark.parametrize(("name", "value", "message"), [
    ("threads", 0, "lanax.config.threads: `threads` of a Plan is the number of threads"),
    ("route", "gpu", "lanax.config.route: `route` of a Plan must be one of 'auto', 'lanes', 'xla', 'serial'"),
    ("cache", "perhaps", "lanax.config.cache: it is on or off (1, true, yes; 0, false, no); got 'perhaps'."),
    ("cache_size", "1GB", "lanax.config.cache_size: it is a number of bytes"),
    ("log", "loud", "lanax.config.log: it is one of off, warning, info, debug; got 'loud'."),
    ("dump", "llvm,hlo", "lanax.config.dump: it names stages, with commas between them: jaxpr, uniformity, plan, "
                         "llvm, optimised, asm; got 'hlo'."),
    ("thread", 1, "lanax.config has no setting 'thread'; it has route, lanes, threads"),
])
def test_config_refuses(name: str, value: Any, message: str) -> None:
    with pytest.raises(lanax.SettingError, match=re.escape(message)) as caught:
        lanax.config.update(name, value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, lanax.LanaxError)
    assert getattr(lanax.config, name, "none") in ("none", SETTINGS[name].default if name in SETTINGS else "none")


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match=r"lanax.config has no setting 'thread'"):
        lanax.config.thread  # noqa: B018
    with pytest.raises(AttributeError):
        lanax.config.thread = 1
    assert not hasattr(lanax.config, "thread")


# ---- the environment -------------------------------------------------------------------------------------------------
def test_the_environment_gives_every_setting() -> None:
    given = {"LANAX_ROUTE": "lanes", "LANAX_LANES": "8", "LANAX_THREADS": " 2 ", "LANAX_CHUNK": "64",
             "LANAX_MEMORY": "2 GiB", "LANAX_DEVICES": "1", "LANAX_CACHE": "off", "LANAX_CACHE_DIR": "/x/y",
             "LANAX_CACHE_SIZE": "1000", "LANAX_LOG": "INFO", "LANAX_DUMP": "llvm, asm", "LANAX_DUMP_TO": "/d",
             "LANAX_ACCURACY": "fast", "LANAX_PARALLELISM": "8"}
    found = from_environment(given | {"PATH": "/bin", "HOME": "/"})
    assert found == {"route": "lanes", "lanes": 8, "threads": 2, "chunk": 64, "memory": 2 << 30, "devices": 1,
                     "cache": False, "cache_dir": "/x/y", "cache_size": 1000, "log": "info",
                     "dump": ("llvm", "asm"), "dump_to": "/d", "accuracy": "fast", "parallelism": 8}
    assert set(found) == set(SETTINGS)
    assert from_environment(dict.fromkeys(given, "")) == {}


@pytest.mark.parametrize(("variable", "text"), [
    ("LANAX_THREADS", "0"), ("LANAX_THREADS", "two"), ("LANAX_THREADS", "-1"), ("LANAX_THREADS", "1.5"),
    ("LANAX_LANES", "12"), ("LANAX_ROUTE", "gpu"), ("LANAX_ACCURACY", "best"), ("LANAX_CHUNK", "all"),
    ("LANAX_MEMORY", "2GB"),
    ("LANAX_DEVICES", "all"), ("LANAX_PARALLELISM", "0"), ("LANAX_CACHE", "maybe"), ("LANAX_CACHE_SIZE", "-1"),
    ("LANAX_LOG", "3"),
    ("LANAX_DUMP", "hlo"),
])
def test_bad_variables_are_named(variable: str, text: str) -> None:
    with pytest.raises(lanax.SettingError, match=re.escape(f"the environment has {variable}={text!r}: ")):
        from_environment({variable: text})


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(lanax.SettingError, match="has LANAX_ROUTE, LANAX_LANES, which do not go together: route='ser"):
        from_environment({"LANAX_ROUTE": "serial", "LANAX_LANES": "8"})
    lanax.config.update("lanes", 8)
    with pytest.raises(lanax.SettingError, match=r"lanax.config.route: route='serial' runs one example at a time"):
        lanax.config.update("route", "serial")
    assert (lanax.config.route, lanax.config.lanes) == (None, 8)


def test_unknown_variables_are_named() -> None:
    with pytest.warns(UserWarning, match=r"has LANAX_THREAD, which lanax does not know; it knows LANAX_ROUTE"):
        from_environment({"LANAX_THREAD": "1"})


def test_a_process_reads_its_environment() -> None:
    program = """if True:
        import jax, numpy as np, lanax
        print(lanax.config.threads, lanax.explain(lanax.vmap(lambda x: x), np.ones(3)).plan.sources)
    """
    given = {k: v for k, v in os.environ.items() if not k.startswith("LANAX_")} | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", program], env=given | {"LANAX_THREADS": "1"}, capture_output=True,
                          text=True, check=True)
    assert done.stdout.strip() == "1 {'threads': 'LANAX_THREADS'}"


# ---- memory ----------------------------------------------------------------------------------------------------------
def test_memory_bounds_the_examples_that_are_alive() -> None:
    assert Plan().examples_alive(100) is None
    assert Plan(chunk=7).examples_alive(100) == 7
    assert Plan(memory=1000).examples_alive(100) == 10
    assert Plan(memory="1KiB", chunk=7).examples_alive(100) == 7
    assert Plan(memory=1000, chunk=70).examples_alive(100) == 10
    assert Plan(memory=10).examples_alive(100) == 1
    assert Plan(memory=10).examples_alive(0) == 10


def test_a_kernel_has_as_many_threads_as_memory_holds_their_scratch() -> None:
    def sorting(x: Any) -> Any:
        return lax.fori_loop(0, 3, lambda i, v: v[::-1] * 2, lax.sort(x * np.arange(100, dtype=np.float32)))

    mapped = lanax.vmap(sorting, plan=Plan(route="lanes"))
    free = lanax.explain(mapped, LARGE).kernels[0]
    assert free.scratch_bytes > 0
    for k in (1, 2):
        report = lanax.explain(mapped, LARGE, plan=Plan(memory=k * free.scratch_bytes))
        assert report.kernels[0].threads == min(k, free.threads)
    with lanax.use_plan(memory=1):
        np.testing.assert_allclose(mapped(X[:20]), jax.vmap(sorting)(X[:20]))


# ---- log and dump ----------------------------------------------------------------------------------------------------
def test_the_log(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    lanax.config.update("log", "info")
    lanax.vmap(lambda x: loop(x) + 0.875)(X)
    lanax.vmap(lambda x: jax.pure_callback(np.sin, x, x, vmap_method="expand_dims") + loop(x))(X[1:4])
    text = caplog.text
    assert re.search(r"<lambda>: compiled, \d+ bytes \([0-9a-f]{12}\)", text)
    assert re.search(r"<lambda>: not in lanes: `pure_callback` at .*test_settings.py:\d+", text)
    lanax.config.update("log", "off")
    printed = capfd.readouterr().err
    assert "lanax: <lambda>: compiled" in printed
    lanax.vmap(lambda x: loop(x) + 0.75)(X)
    assert capfd.readouterr().err == ""
    assert logging.getLogger("lanax").level == logging.NOTSET


def test_the_log_is_off_for_warnings_too() -> None:
    program = "import lanax; from lanax._config import logger; logger.warning('a warning of ours')"
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stderr == b""


def test_stages_are_dumped_to_files(tmp_path: Path) -> None:
    def dumped(x: Any) -> Any:
        return loop(x) + 0.625

    lanax.config.update("dump", ",".join(STAGE_NAMES))
    lanax.config.update("dump_to", tmp_path / "stages")
    np.testing.assert_array_equal(lanax.vmap(dumped)(X), want(X) + 0.625)
    lanax.config.update("dump", None)
    names = sorted(file.name for file in (tmp_path / "stages").iterdir())
    assert len({name.split(".")[0] for name in names}) == 1
    assert re.fullmatch(r"dumped-[0-9a-f]{12}\.jaxpr\.txt", next(n for n in names if "jaxpr" in n))
    assert [name.split(".", 1)[1] for name in names] == ["jaxpr.txt", "ll", "optimised.ll", "plan.txt", "s",
                                                         "uniformity.txt"]
    texts = {name.split(".", 1)[1]: (tmp_path / "stages" / name).read_text() for name in names}
    assert "while" in texts["jaxpr.txt"]
    assert "lanes=" in texts["plan.txt"]
    assert "kernel" in texts["ll"]
    assert "define" in texts["optimised.ll"]
    assert "kernel:" in texts["s"]


# ---- the table -------------------------------------------------------------------------------------------------------
def test_the_page_has_every_setting_as_it_is() -> None:
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|"))
            for line in page.splitlines() if line.startswith("| `")]
    defaults = {"cache": "on", "cache_size": "1GiB", "log": "`off`", "dump": "none", "dump_to": "`lanax-dump`",
                "cache_dir": "see below"}
    assert rows == [(f"`{s.name}`", "yes" if s.name in FIELDS else "", f"`{s.variable}`",
                     defaults.get(s.name, "chosen"), s.meaning) for s in SETTINGS.values()]
    shown = {"on": True, "1GiB": 1 << 30, "`off`": "off", "none": (), "`lanax-dump`": "lanax-dump", "see below": None,
             "chosen": None}
    assert {s.name: shown[row[3]] for s, row in zip(SETTINGS.values(), rows, strict=True)} == {
        s.name: s.default for s in SETTINGS.values()}


def test_this_machine_is_named() -> None:
    with pytest.raises(lanax.PlanError, match=f"this process may use {host().cores} cores"):
        Plan(threads=0)


def test_new_pages_are_reported():
    f = lanax.vmap(lambda x: jax.numpy.linalg.cholesky(x))
    assert "new pages" not in str(lanax.explain(f, jax.ShapeDtypeStruct((900_000, 3, 3), np.float32)))
    large = lanax.explain(f, jax.ShapeDtypeStruct((1_000_000, 3, 3), np.float32))
    assert "new pages for a result of 34 MiB" in str(large)
