"""The cluster that a command works on."""

import dataclasses
import functools
from collections.abc import Mapping

from shoal.cluster.transport.launcher import Launcher


@dataclasses.dataclass(frozen=True)
class ClusterConnection:
    """A cluster, joined when it is first asked for: what it cannot do is refused then."""

    address: str  # auto, or where it is
    needs: Mapping[str, float]  # resources
    imports: tuple[str, ...] = ()  # files that workers import

    @functools.cached_property
    def launcher(self) -> Launcher:
        from shoal.cluster.transport.ray_launcher import RayLauncher, setting_for

        return RayLauncher(self.address, self.needs, setting_for(self.imports))

    def __str__(self) -> str:
        return f"on {self.launcher.where}"
