"""A process alone: without a cluster, with others that do not come, and under Slurm with some of its devices."""

from __future__ import annotations

import os
import sys

import jax
import numpy as np
import pytest
from programs import free_port, grown, numbers

import lanax
from lanax import distributed

with pytest.raises(ValueError, match=r"can be left out only under Slurm, Open MPI, Kubernetes or on a TPU"):
    distributed.initialize()
words = r"process 0 has waited 2 s for the others \(3 processes at 127.0.0.1:"
with pytest.raises(lanax.DistributedError, match=words):
    distributed.initialize(f"127.0.0.1:{sys.argv[3]}", 3, 0, initialization_timeout=2)

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
with pytest.raises(ValueError, match=r"`local_device_ids` .* has 4, and the settings .* make 4 devices"):
    distributed.initialize("127.0.0.1:1234", 1, 0, [1, 4])
# Under Slurm, as far as JAX can tell.
os.environ |= {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "1", "SLURM_PROCID": "0",
               "SLURM_LOCALID": "0", "JAX_COORDINATOR_PORT": str(free_port())}
distributed.initialize(local_device_ids=[1, 3])
with pytest.raises(lanax.DistributedError, match="this is process 0 of 1 at localhost:"):
    distributed.initialize()
assert distributed.local_devices() == [jax.devices()[1], jax.devices()[3]]
for got, want in zip(distributed.map(grown, numbers(1003)), lanax.vmap(grown)(numbers(1003)), strict=True):
    np.testing.assert_array_equal(np.asarray(got), np.asarray(want))
sys.stdout.write("well\n")
