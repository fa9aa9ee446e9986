"""Population-based training (Jaderberg et al. 2017) around any algorithm: the host's side, and run folders.

Members learn side by side in one program, in which bad ones become copies of good ones with slightly different
hyper-parameters (see `program`). A run of it is a run folder like any other, with one more entry in `config.json`;
its checkpoints hold the policies of the best member where other runs hold theirs, so that `shoal eval` and
`shoal watch` play them. From Python:

    from shoal import presets
    from shoal.populations.pbt.run import PBT, Range, pbt

    plan = PBT(presets.get("mpe/simple_spread"), {"learning_rate": Range(1e-4, 1e-2, log=True)}, members=16)
    result = pbt(plan, "runs/mine")
    print(result.member, result.scores[result.member], result.values["learning_rate"][result.member])
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.populations.pbt.plan import PBT
from shoal.populations.pbt.program import PBTProgram, make_pbt_program
from shoal.training.loop import Listener, Loop, TrainingResult, resume_program
from shoal.training.run import RunFolder, create, open_run
from shoal.training.run_kinds import PBT as ENTRY
from shoal.training.run_kinds import open_entry
from shoal.training.sweep_plan import Range

__all__ = ["PBT", "PBTResult", "Range", "make_pbt_program", "open_pbt", "pbt", "resume_pbt"]


Spread = Callable[[PBTProgram], PBTProgram]


@dataclasses.dataclass(frozen=True)
class PBTResult(TrainingResult):
    """How it ended. `policies` are those of `member`, the best one; `scores` and `values` are of all members.

    A score is the mean return since the last comparison, None if the member has failed or no episode of it has ended.
    """

    member: int = 0
    scores: tuple[float | None, ...] = ()
    values: dict[str, list[float]] = dataclasses.field(default_factory=dict)


def pbt(
    plan: PBT,
    run_dir: str | Path | None = None,
    *,
    devices: int | None = None,
    listener: Listener | None = None,
    checkpoint_seconds: float = 60.0,
    spread: Spread | None = None,
) -> PBTResult:
    """Trains a population from the start; with a `run_dir`, metrics and checkpoints are kept there.

    spread: makes of the program one whose updates are made elsewhere.
    """
    program = make_pbt_program(plan, devices)
    program = spread(program) if spread else program
    state = program.begin()  # before the folder is made: weights of other runs may be missing
    run = create(Path(run_dir), plan.experiment, ENTRY, plan.to_dict()) if run_dir is not None else None
    return _result(Loop(program, run, listener, checkpoint_seconds).run(state, None))


def resume_pbt(
    run_dir: str | Path,
    *,
    devices: int | None = None,
    listener: Listener | None = None,
    checkpoint_seconds: float = 60.0,
    spread: Spread | None = None,
) -> PBTResult:
    """Continues a run from its newest checkpoint, to the same bits as if it had never stopped.

    It runs on as many devices as before, if they are there; on another number it agrees to rounding only, and warns.
    """
    run, plan = open_pbt(Path(run_dir))

    def rebuilt(devices: int | None) -> PBTProgram:
        return spread(make_pbt_program(plan, devices)) if spread else make_pbt_program(plan, devices)

    return _result(resume_program(run, rebuilt, devices, listener, checkpoint_seconds))


def _result(ended: tuple[TrainingResult, dict[str, Any]]) -> PBTResult:
    return PBTResult(**vars(ended[0]), **ended[1])


def open_pbt(path: Path) -> tuple[RunFolder, PBT]:
    """An existing run of population-based training."""
    run = open_run(path)
    return run, open_entry(path, ENTRY, lambda data: PBT.from_dict(run.experiment, data))
