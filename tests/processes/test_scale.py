"""`python -m lanax bench --scale`, on few devices and processes; and the figures that it makes of what it measures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lanax.__main__ import main
from lanax._suite import scale, scale_report
from lanax._suite.scale import Measured


def test_bench_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(scale, "DEVICES", (2,))
    monkeypatch.setattr(scale, "PROCESSES", (2,))
    monkeypatch.setattr(scale_report, "efficiencies", lambda *_: dict.fromkeys(KEYS, 0.5))
    file = tmp_path / "scale.json"
    assert main(["bench", "--scale", "--quick", "kepler", "--json", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "2 devices" in shown
    assert "an efficiency of" in shown
    rows = json.loads(file.read_text())["scale"]
    assert [(r["kind"], r["count"], r["moved"]) for r in rows] == [
        ("devices", 2, 0), ("processes", 2, 4 * 20_000)]
    assert all(r["name"] == "kepler" and min(r["fixed"], r["growing"], r["overhead"]) > 0 for r in rows)
    assert rows[1]["gathered"] > 0


KEYS = ("fixed", "growing", "fixed_of_cores", "growing_of_cores")


def test_efficiency(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale_report, "host", lambda: type("Host", (), {"cores": 2}))
    one = Measured("devices", 1, 8.0, 2.0, None, 0.1, 0)
    four = Measured("devices", 4, 4.0, 4.0, None, 0.1, 0)
    other = Measured("processes", 1, 1.0, 1.0, 1.0, 0.1, 0)
    assert scale_report.efficiencies(four, [other, one, four]) == {
        "fixed": 0.5, "growing": 0.5, "fixed_of_cores": 1.0, "growing_of_cores": 1.0}
    assert set(scale_report.efficiencies(one, [one]).values()) == {1.0}


def test_a_process_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "DEVICES", (1,))
    monkeypatch.setenv("LANAX_CHUNK", "-1")
    assert main(["bench", "--scale", "--quick", "kepler"]) == 1
