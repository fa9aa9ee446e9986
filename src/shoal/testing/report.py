"""The findings of a check of a world or an algorithm, in words."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or (`is_warning`) that may be.

    kind: a short name of the fault, the same for all worlds. where: method, group and leaf. what: what was wrong.
    fix: what to do.
    """

    kind: str
    where: str
    what: str
    fix: str
    is_warning: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.what}.\n     {self.fix}."


@dataclasses.dataclass(frozen=True)
class Report:
    """The findings about a world, and how much of it was played to find them (summed over copies).

    Or about an algorithm: `contract` says which contract was looked at, and `done` what was tried.
    """

    world: str
    findings: tuple[Finding, ...]
    num_steps: int = 0
    num_episodes: int = 0
    contract: str = "environment"
    done: tuple[str, ...] = ()

    @property
    def problems(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if not finding.is_warning)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.is_warning)

    @property
    def ok(self) -> bool:
        """No problems; warnings do not count."""
        return not self.problems

    def __str__(self) -> str:
        played = f"{self.num_steps} steps and {self.num_episodes} whole episodes were played"
        tried = f"tried: {'; '.join(self.done) or 'nothing yet'}" if self.contract != "environment" else played
        if self.ok:
            lines = [f"{self.world} keeps the {self.contract} contract ({tried})."]
        else:
            count = len(self.problems)
            many = f"{count} problem{'s' * (count > 1)}"
            lines = [f"{self.world} breaks the {self.contract} contract, {many} ({tried}):"]
        lines += [f"  {number}. {finding}" for number, finding in enumerate(self.problems, 1)]
        lines += [f"  Warning: {finding}" for finding in self.warnings]
        return "\n".join(lines)


class Findings:
    """Collects findings during a check. Of each kind at each place only the first is kept."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Finding] = {}

    def add(self, kind: str, where: str, what: str, fix: str, is_warning: bool = False) -> None:
        self._found.setdefault((kind, where), Finding(kind, where, what, fix, is_warning))

    def has(self, *kinds: str) -> bool:
        """Whether anything of these kinds was found."""
        return any(kind in kinds for kind, _ in self._found)

    def all(self) -> tuple[Finding, ...]:
        return tuple(self._found.values())
