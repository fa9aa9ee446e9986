"""Cores as devices."""

import os
import subprocess
import sys

import pytest

from shoal.training.devices import num_cores


@pytest.mark.skipif(num_cores() < 2, reason="with one core there is nothing to tell")
@pytest.mark.parametrize(("chosen", "told"), [({}, True), ({"JAX_NUM_CPU_DEVICES": "1"}, False)])
def test_idle_cores_are_told(chosen, told):
    """In a process of its own, in which JAX was used first."""
    code = "import jax.numpy as jnp; jnp.zeros(3); from shoal.training.devices import warn_of_idle_cores as w; w()"
    environment = {key: value for key, value in os.environ.items() if key not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, env=environment | chosen, capture_output=True, text=True, check=True)
    assert ("JAX was used before Shoal" in done.stderr) == told
