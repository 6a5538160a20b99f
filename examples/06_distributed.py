"""One batch over several processes, here on this machine: `lanax.distributed`, and a run that goes on after a stop.

On many machines each one starts this program with the address of the first: `06_distributed.py ADDRESS COUNT NUMBER`.
Under Slurm, Open MPI or Kubernetes `lanax.distributed.initialize()` finds them out.
"""

import os
import socket
import subprocess
import sys
import tempfile

import jax
import numpy as np

import lanax


def lifetime(x):
    """How long a point stays before it has grown beyond 50, and where it is then."""
    return jax.lax.while_loop(lambda v: v[0] < 50, lambda v: (v[0] * 1.001 + x, v[1] + 1), (x, 0))


def run(address, count, number, rows, folder):
    """What each process does."""
    lanax.distributed.initialize(address, count, number)
    x = np.linspace(0.01, 4.0, rows, dtype=np.float32)

    # Every process has the whole batch, runs its share of it, and gets all results.
    place, steps = lanax.distributed.map(lifetime, x, checkpoint=folder, progress=True)

    # Every process makes its own rows, and keeps the results of them.
    mine = lanax.distributed.share(rows)
    own = lanax.distributed.map(lifetime, x[mine.start:mine.stop], inputs="local", gather=False)
    np.testing.assert_array_equal(own[0], place[mine.start:mine.stop])

    # The bits are those of one process.
    alone = lanax.vmap(lifetime)(x)
    np.testing.assert_array_equal(place, alone[0])
    np.testing.assert_array_equal(steps, alone[1])
    print(f"process {number} of {count}: rows {mine.start} to {mine.stop - 1} of {rows} were its own; "
          f"{int(steps.sum())} steps in all", flush=True)


def main(rows=100_003, count=2):
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, address, str(count)]
        env = os.environ | {"JAX_PLATFORMS": "cpu"}
        processes = [subprocess.Popen([*command, str(i), str(rows), folder], env=env, stdout=subprocess.PIPE, text=True)
                     for i in range(count)]
        try:
            for process in processes:
                print(process.communicate(timeout=600)[0], end="")
                assert process.returncode == 0
        finally:
            for process in processes:
                process.kill()


if __name__ == "__main__":
    if len(sys.argv) > 3:
        given = dict(enumerate(sys.argv))
        run(given[1], int(given[2]), int(given[3]), int(given.get(4, 100_003)), given.get(5))
    else:
        main()
