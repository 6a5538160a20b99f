"""A run with a checkpoint. Where a file `kill` names one of the processes, that one kills itself in the middle."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from programs import grown, numbers

import lanax
from lanax import distributed
from lanax.distributed import _map

HERE, COUNT, FOLDER, VICTIM = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[4]), int(sys.argv[5])
ROWS, CHUNK = 20_003, 1_000
ran: list[Any] = []
run = _map._Runner.__call__


def runs(self: Any, span: Any) -> Any:
    if HERE == VICTIM and len(ran) == 3 * HERE:
        os.kill(os.getpid(), signal.SIGKILL)
    ran.append(span)
    return run(self, span)


_map._Runner.__call__ = runs  # type: ignore[method-assign]
distributed.initialize(f"127.0.0.1:{sys.argv[3]}", COUNT, HERE, local_device_ids=[2 * HERE, 2 * HERE + 1],
                       initialization_timeout=120, heartbeat_timeout_seconds=16)
assert len(jax.local_devices()) == len(distributed.local_devices()) == 2
x = numbers(ROWS)
try:
    got = distributed.map(grown, x, chunk=CHUNK, checkpoint=FOLDER)
finally:
    Path(FOLDER, f"ran-{HERE}.json").write_text(json.dumps(ran))
for a, b in zip(got, lanax.vmap(grown)(x), strict=True):
    np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
sys.stdout.write("well\n")
