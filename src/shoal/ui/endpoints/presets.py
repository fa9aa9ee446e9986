"""Presets for a run's environment, to show in which settings it differs."""

import functools
import json
import os
import subprocess
import sys
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shoal.core.errors import ShoalError
from shoal.ui.endpoints.answers import answer, catalogue_of, run_of

SECONDS = 60
"""After which another process that imports JAX is given up."""


def show_presets(request: Request) -> Response:
    """Name and settings of each preset of the environment of a run."""
    return answer({"presets": _presets(catalogue_of(request).entry(run_of(request)).env)})


@functools.lru_cache(64)
def _presets(env: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "shoal.ui.preset_settings", env]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}  # no accelerator is touched for a list of settings
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, env=environment, check=True)
    except (subprocess.SubprocessError, OSError) as error:
        raise ShoalError("the presets could not be read: run `shoal presets` to see why") from error
    return json.loads(done.stdout)


ROUTES = [Route("/api/presets", show_presets)]
