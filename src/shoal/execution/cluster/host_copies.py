"""Environments of the host in an actor: stepped in Python, decided on in batches by one compiled program."""

from shoal.execution.cluster.rollouts import Share
from shoal.execution.fused import Program


class HostCopies:
    """A share of the copies of a host environment."""

    def __init__(self, program: Program, share: Share):
        self.program, self.share = program, share
