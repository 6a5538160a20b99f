"""Several real processes on this machine: the same bits, clear errors, and nothing hangs."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from programs import run_processes, shown


def test_four_processes_agree() -> None:
    ended = run_processes("agreeing.py", 4)
    assert all(e.code == 0 and e.out.endswith("well\n") for e in ended), shown(ended)
    assert "grown" in ended[0].err  # the bar
    assert not any("grown" in e.err for e in ended[1:])


def test_a_process_is_killed_and_the_run_goes_on(tmp_path: Path) -> None:
    ended = run_processes("killed.py", 3, tmp_path, 1)
    assert ended[1].code == -signal.SIGKILL, shown(ended)
    for e in (ended[0], ended[2]):
        assert e.code == 1, shown(ended)
        assert "DistributedError: lanax.distributed.map: process 1 of 3 (pid" in e.err
        assert "has not been heard of for 8 s" in e.err
    first = [span for i in (0, 2) for span in json.loads((tmp_path / f"ran-{i}.json").read_text())]
    files = [[int(n) for n in f.stem.split("-")[1:]] for f in tmp_path.glob("grown-*/rows-*.lanax")]
    assert len(files) == len(first) + 3
    # The same for process 0, which all others need, at once.
    ended = run_processes("killed.py", 2, tmp_path, 0)
    assert ended[0].code == -signal.SIGKILL, shown(ended)
    assert ended[1].code not in (0, -999), shown(ended)
    assert "process 0 of 2, which all others need (at 127.0.0.1:" in ended[1].err, shown(ended)
    # The run goes on by two processes, whose shares are cut elsewhere.
    files = [[int(n) for n in f.stem.split("-")[1:]] for f in tmp_path.glob("grown-*/rows-*.lanax")]
    ended = run_processes("killed.py", 2, tmp_path, -1)
    assert all(e.code == 0 and e.out.endswith("well\n") for e in ended), shown(ended)
    # What was missing lay in the share of one of them; they have shared it.
    spans = [json.loads((tmp_path / f"ran-{i}.json").read_text()) for i in range(2)]
    assert abs(sum(b - a for a, b in spans[0]) - sum(b - a for a, b in spans[1])) <= 2_000
    rows = [row for some in spans for a, b in some for row in range(a, b)]
    assert len(set(rows)) == len(rows)
    assert set(rows) == set(range(20_003)) - {row for a, b in files for row in range(a, b)}
    assert rows


def test_the_others_do_not_come() -> None:
    ended = run_processes("waiting.py", 1)
    assert (ended[0].code, ended[0].out) == (0, "well\n"), shown(ended)
