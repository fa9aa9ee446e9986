"""Presets for a run's environment, to show in which settings it differs."""

import functools
import json
import os
import subprocess
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shoal.core.errors import ShoalError
from shoal.core.processes import module_command
from shoal.ui.endpoints.answers import answer, catalogue_of, run_of

SECONDS = 60
"""After which another process that imports JAX is given up."""


def show_presets(request: Request) -> Response:
    """Name and settings of each preset of the environment of a run."""
    env = catalogue_of(request).entry(run_of(request)).env
    found = [{key: one[key] for key in ("name", "experiment")} for one in read_presets() if one["env"] == env]
    return answer({"presets": found})


@functools.cache
def read_presets() -> list[dict[str, Any]]:
    """All presets, from another process, since the classes that they are built from need JAX."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}  # no accelerator is touched for a list of settings
    try:
        command = module_command("shoal.ui.preset_settings")
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, env=environment, check=True)
    except (subprocess.SubprocessError, OSError) as error:
        raise ShoalError("the presets could not be read: run `shoal presets` to see why") from error
    return json.loads(done.stdout)


ROUTES = [Route("/api/presets", show_presets)]
