"""The services of a training by name, each typed by its class: what a worker calls."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shoal.cluster.transport.service import Service

if TYPE_CHECKING:
    from shoal.cluster.replay.service import ReplayService
    from shoal.cluster.services.coordinator import Coordinator
    from shoal.cluster.services.dataset import Queue
    from shoal.cluster.services.parameters import ParameterService
    from shoal.cluster.workers.group import Rendezvous
    from shoal.cluster.workers.inference import InferenceServer


Handles = Mapping[str, Service[Any]]
"""Services by name, as they travel to a worker."""


class Services:
    """The services that a recipe has started, as one worker calls them. sender: its role, for counting messages.

    Only what the recipe has started is there (`name in services`).
    """

    def __init__(self, handles: Handles, sender: str):
        self._known = {name: service.by(sender) for name, service in handles.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._known

    @property
    def coordinator(self) -> "Service[Coordinator]":
        return self._known["coordinator"]

    @property
    def parameters(self) -> "Service[ParameterService]":
        return self._known["parameters"]

    @property
    def dataset(self) -> "Service[Queue]":
        return self._known["dataset"]

    @property
    def inference(self) -> "Service[InferenceServer]":
        return self._known["inference"]

    @property
    def meeting(self) -> "Service[Rendezvous]":
        return self._known["meeting"]

    @property
    def shards(self) -> "list[Service[ReplayService]]":
        """The shards of the replay, in order."""
        names = [name for name in self._known if name.startswith("replay-")]
        return [self._known[name] for name in sorted(names, key=lambda name: int(name.split("-")[1]))]
