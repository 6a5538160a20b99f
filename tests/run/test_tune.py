"""`lanax.tune`: it finds a plan, checks results, keeps what is given; stored plans are used, and harmless."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanax
from lanax import Plan, _tune
from lanax.__main__ import main
from lanax._runtime import plans
from lanax._suite import timing
from lanax._suite.programs import find

X = np.linspace(0.1, 3.0, 300, dtype=np.float32)
SERIAL = Plan(route="serial")


def grown(x: Any) -> Any:
    return lax.while_loop(lambda v: v < 50, lambda v: v * 1.5 + 1, x)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A cache of the test's own."""
    lanax.config.update("cache_dir", tmp_path)
    yield tmp_path
    plans.clear()
    for name in ("cache", "cache_dir", "threads"):
        lanax.config.update(name, None)


@pytest.fixture
def serial_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times that make one example after another the best plan."""
    monkeypatch.setattr(_tune._Race, "_time", lambda race, runner: runner.times.append(
        1.0 if runner.plan.route == "serial" else 3.0 if runner.report.routes == ("xla",) else 2.0))


@pytest.fixture
def serial_wins(serial_is_fast: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with fewer plans to compile."""
    monkeypatch.setattr(_tune, "_routes_and_lanes", lambda auto: [SERIAL])
    monkeypatch.setattr(_tune, "_threads_and_chunks", lambda best: [])


def tuned(**given: Any) -> lanax.Tuning:
    return lanax.tune(grown, X, **{"seconds": 60.0, "progress": False} | given)


def source(mapped: Any, *args: Any) -> tuple[str | None, str | None]:
    plan = lanax.explain(mapped, *args).plan
    return plan.route, plan.sources.get("route")


# ---- what it tries and finds -----------------------------------------------------------------------------------------
def test_the_fastest_plan_is_found(serial_is_fast: None) -> None:
    found = tuned()
    assert found.plan.route == "serial"
    assert (found.name, found.axis_size, found.complete, found.files) == ("grown", 300, True, ())
    routes = {row.routes for row in found.rows}
    assert routes == {("lanes",), ("xla",), ("serial",)}
    kernels = {row.plan.lanes for row in found.rows if row.plan.route == "lanes"}
    assert len(kernels) >= 2
    assert [row.seconds for row in found.rows] == sorted(row.seconds for row in found.rows)
    auto = next(row for row in found.rows if row.plan == Plan())
    assert (auto.ratio, auto.seconds, auto.difference) == (1.0, 2.0, 0.0)
    assert all(row.difference <= 1e-5 and not row.note for row in found.rows)
    assert "<- best" in str(found)
    assert "automatic: lanes" in str(found)
    np.testing.assert_array_equal(lanax.vmap(grown, plan=found.plan)(X), lanax.vmap(grown)(X))


def test_a_small_gain_is_none(serial_wins: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tune._Race, "_time", lambda race, runner: runner.times.append(
        1.0 if runner.plan == Plan() else 0.99))
    assert tuned().plan == Plan()


def test_what_differs_is_not_taken(serial_is_fast: None, monkeypatch: pytest.MonkeyPatch) -> None:
    real = _tune._compare
    answers: list[Any] = []

    def compare(answer: Any, expected: Any, tolerance: float) -> Any:
        answers.append(answer)
        return real(answer if len(answers) < 3 else answer + 1, expected, tolerance)

    monkeypatch.setattr(_tune, "_compare", compare)
    found = tuned()
    wrong = [row for row in found.rows if row.note]
    assert len(wrong) == len(answers) - 2
    assert "its results differ by" in wrong[0].note
    assert found.plan.route != "serial"


def test_comparing() -> None:
    a = np.array([1.0, np.nan, np.inf, -200.0], np.float32)
    assert _tune._compare(a, a, 0.0) == (0.0, True)
    assert _tune._compare(a, np.where(a == 1, 3, a), 0.1) == (pytest.approx(2 / 3), False)
    assert _tune._compare(np.nan_to_num(a), a, 0.1) == (np.inf, False)
    many = np.zeros(1000, np.int32)
    assert _tune._compare(many, np.where(np.arange(1000) < 10, 5, many), 0.1) == (1.0, True)
    keys = jax.random.split(jax.random.key(0), 3)
    assert _tune._compare((keys, 1j * a[:1]), (keys, 1j * a[:1]), 0.0) == (0.0, True)


def test_given_fields_stay(serial_is_fast: None) -> None:
    with lanax.use_plan(threads=1):
        assert not any(row.plan.threads for row in tuned().rows)
    found = lanax.tune(lanax.vmap(grown, plan=Plan(lanes=4)), X, seconds=60, progress=False)
    assert {row.plan.lanes for row in found.rows} <= {None, 4}
    assert "serial" not in {row.plan.route for row in found.rows}
    found = lanax.tune(lanax.vmap(grown, plan=Plan(route="xla")), X, seconds=60, progress=False)
    assert [row.plan for row in found.rows] == [Plan()]


def test_what_may_be_tuned(capfd: pytest.CaptureFixture[str]) -> None:
    matrix = jnp.ones((4, 40))
    fun = lambda v, w: jnp.cumsum(v) * w  # noqa: E731
    for mapped, axes in ((fun, (1, None)), (lanax.vmap(fun, (1, None)), 0), (jax.jit(lanax.vmap(fun, (1, None))), 0)):
        found = lanax.tune(mapped, matrix, 2.0, in_axes=axes, seconds=0.0)
        assert found.axis_size == 40
        assert found.rows[0].runs >= 1
        assert not found.complete
    assert capfd.readouterr().out == ""
    with pytest.raises(ValueError, match="at least one non-None value in in_axes"):
        lanax.tune(fun, matrix, 2.0, in_axes=None)


# ---- stored plans ----------------------------------------------------------------------------------------------------
def test_a_stored_plan_is_used_where_the_plan_is_open(serial_wins: None, folder: Path) -> None:
    mapped = lanax.vmap(grown)
    jitted = jax.jit(mapped)
    before = np.asarray(jitted(X))
    found = tuned(store=True)
    assert [file.parent for file in found.files] == [folder]
    assert source(mapped, X) == ("serial", "lanax.tune")
    assert "route=serial (lanax.tune)" in str(lanax.explain(mapped, X))
    np.testing.assert_array_equal(mapped(X), before)
    assert lanax.explain(lambda x: jitted(x), X).kernels[0].lanes == 1  # what was jitted is traced anew
    assert source(mapped, X[:299]) == ("serial", "lanax.tune")
    for other in ((mapped, X[:100]), (lanax.vmap(lambda x: grown(x) + 1), X), (mapped, X.astype(np.float16))):
        assert source(*other) == (None, None)
    # A nearer source counts, and what it was not measured beside does not.
    assert source(lanax.vmap(grown, plan=Plan(route="lanes")), X) == ("lanes", "the call")
    with lanax.use_plan(threads=1):
        assert source(mapped, X) == (None, None)
    lanax.config.update("cache", False)
    assert source(mapped, X) == (None, None)


def test_a_plan_is_found_for_what_it_was_measured_beside(serial_wins: None, folder: Path) -> None:
    with lanax.use_plan(threads=1):
        tuned(store=True)
        assert source(lanax.vmap(grown), X) == ("serial", "lanax.tune")
        assert lanax.explain(lanax.vmap(grown), X).plan.sources["threads"] == "use_plan"
    assert source(lanax.vmap(grown), X) == (None, None)


def test_stored_plans_do_not_count_while_tuning_and_are_replaced(serial_wins: None, folder: Path,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    tuned(store=True)
    again = tuned(store=True)
    assert next(row for row in again.rows if row.plan == Plan()).routes == ("lanes",)
    monkeypatch.setattr(_tune._Race, "_time", lambda race, runner: runner.times.append(1.0))
    assert tuned(store=True).files == ()
    assert source(lanax.vmap(grown), X) == (None, None)


def test_clearing(serial_wins: None, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tuned(store=True)
    jitted = jax.jit(lanax.vmap(grown))
    jitted(X)
    assert main(["cache", "clear"]) == 0
    assert "and 1 plans of lanax.tune" in capsys.readouterr().out
    assert not list(folder.glob("*.json"))
    assert source(lanax.vmap(grown), X) == (None, None)


@pytest.mark.parametrize("change", [
    lambda text: "", lambda text: text[:-9], lambda text: "[]", lambda text: "\x00\xff",
    lambda text: text.replace('"form": 1', '"form": 2'), lambda text: text.replace('"key": "', '"key": "0'),
    lambda text: text.replace("serial", "fast"), lambda text: text.replace('"route"', '"memory"'),
    lambda text: text.replace('"route": "serial"', '"lanes": 1000'),
    lambda text: text.replace('"serial"', '["serial"]'), lambda text: text + " " * 70_000,
], ids=["empty", "short", "a list", "no text", "form", "key", "route", "field", "lanes", "type", "long"])
def test_damaged_files_are_ignored_and_removed(serial_wins: None, folder: Path, change: Any) -> None:
    [file] = tuned(store=True).files
    file.write_text(change(file.read_text()))
    plans._forget(folder)
    assert source(lanax.vmap(grown), X) == (None, None)
    assert not file.exists()


def test_files_that_others_may_write_are_ignored(serial_wins: None, folder: Path) -> None:
    [file] = tuned(store=True).files
    file.chmod(0o666)
    plans._forget(folder)
    assert source(lanax.vmap(grown), X) == (None, None)
    assert file.exists()


def test_without_a_folder_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr("lanax._runtime.cache.folder", no_home)
    assert source(lanax.vmap(grown), X) == (None, None)


def test_what_is_stored_says_a_plan_and_nothing_else(serial_wins: None, folder: Path) -> None:
    [file] = tuned(store=True).files
    assert json.loads(file.read_text()) == {"form": 1, "key": file.name.split(".")[0], "name": "grown",
                                            "plan": {"route": "serial"}}


def test_cut_programs(serial_wins: None, folder: Path) -> None:
    """Each piece finds the plan."""
    def fun(x: Any) -> Any:
        y = grown(x)
        jax.debug.callback(lambda _: None, y)
        return grown(y * 0.001) + y

    few = X[:5]
    found = lanax.tune(fun, few, seconds=60, progress=False, store=True)
    assert len(found.files) == 2
    assert [kernel.lanes for kernel in lanax.explain(lanax.vmap(fun), few).kernels] == [1, 1]
    np.testing.assert_allclose(lanax.vmap(fun)(few), jax.vmap(fun)(few), rtol=1e-6)


PROGRAM = """
import json, sys
import numpy as np
from jax import lax
import lanax

def grown(x):
    return lax.while_loop(lambda v: v < 50, lambda v: v * 1.5 + 1, x)

print(lanax.explain(lanax.vmap(grown), np.ones(300, np.float32)).plan.sources)
"""


def test_another_process_finds_it(serial_wins: None, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned(store=True)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("LANAX_CACHE_DIR", str(folder))
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{'route': 'lanax.tune'}"


# ---- the command line ------------------------------------------------------------------------------------------------
def test_the_command(serial_wins: None, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                     capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tuned_module.py").write_text(
        "import jax.numpy as jnp\ndef scaled(v, w, b): return jnp.cumsum(v) * w + b\ndef data(): return jnp.ones(5)\n")
    monkeypatch.chdir(tmp_path)
    given = ["tune", "tuned_module:scaled", "--arg", "float32[5, 40]", "--arg", "2.5", "--arg", "tuned_module:data",
             "--in-axes", "1,none,none", "--seconds", "60"]
    assert main([*given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["name"], found["axis_size"], found["plan"]) == ("scaled", 40, {"route": "serial"})
    assert [row["plan"] for row in found["rows"]] == [{"route": "serial"}, {}]
    assert main([*given, "--store"]) == 0
    assert "best: Plan(route='serial')" in capsys.readouterr().out
    assert len(list(folder.glob("*.plan.json"))) == 1
    assert main(["tune", "tuned_module:scaled", "--arg", "3", "--in-axes", "none"]) == 1


def test_a_bad_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "json:loads"]) == 2
    assert "name a function and its arguments" in capsys.readouterr().err


def test_checking_plans_of_the_suite(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lanax._commands.bench.QUICK_BUDGET", 0.0)
    file = tmp_path / "checks.json"
    assert main(["bench", "--plan-check", "--quick", "--json", str(file), "saxpy", "matmul4"]) == 0
    saxpy, matmul = json.loads(file.read_text())["plan_checks"]
    assert {"auto", "jax.vmap", "lanes", "serial"} <= {*saxpy["seconds"]}
    assert "xla" not in saxpy["seconds"]  # it is the automatic plan
    assert "xla" in matmul["seconds"]
    assert matmul["seconds"][matmul["best"]] == min(matmul["seconds"].values())
    assert matmul["ratio"] == matmul["seconds"]["auto"] / matmul["seconds"][matmul["best"]]
    shown = capsys.readouterr().out
    assert "= auto" in shown
    assert "more than 5% slower than the best: " in shown
    assert lanax.config.cache


def test_the_suite_compiles_what_is_on_disk(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """So that the times to compile are those."""
    case = find(["saxpy"])[0].make(50)
    for _ in range(2):
        with timing.nothing_stored():
            caplog.clear()
            with caplog.at_level("INFO", logger="lanax"):
                jax.clear_caches()
                timing._compile(lambda f, axes: lanax.vmap(f, axes, plan=Plan(route="lanes", lanes=2)), case)
        assert "found on disk" not in caplog.text
    assert not list(folder.glob("*.lanax"))
