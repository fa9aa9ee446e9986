"""Every screen of the page, over runs of every kind: for what looks at all of them."""

import shutil
from pathlib import Path

from tests.ui.folders import REPLAY, keep_scene, make_cluster, make_pbt, make_population, make_run, make_sweep

_GOLDEN = Path(__file__).parents[1] / "golden" / "runs"
COMPARED = "#/compare?run=spread_ippo_1&run=spread_ippo_2&run=spread_mappo_1"
"""Runs of two algorithms, compared."""
SCREENS = {
    "runs": "#/runs",
    "grouped": "#/runs?group=env",
    "nothing": "#/runs?q=nothing-has-this-name",
    "run": "#/run/spread_ippo_1",
    "settings": "#/run/spread_ippo_1?tab=settings",
    "files": "#/run/spread_ippo_1?tab=files",
    "commands": "#/run/spread_ippo_1?tab=commands",
    "unreadable": "#/run/broken",
    "compare": COMPARED,
    "to-compare": "#/compare",
    "new": "#/new?target=mpe%2Fsimple_tag&--env.num-good=2",
    "new-evolution": "#/new?kind=evolve&target=control%2Fcartpole&--strategy=ga&--parents=8",
    "new-sweep": "#/new?kind=sweep&target=mpe%2Fsimple_spread",
    "environments": "#/environments",
    "environment": "#/environments/mpe/simple_tag",
}
"""Addresses of screens that need ordinary runs alone: see `make_runs`."""
SPECIAL = {
    "replay": "#/run/watched?tab=replay",
    "population": "#/population/pong_psro",
    "population-exact": "#/population/psro_exact",
    "populations": "#/population",
    "sweep": "#/tuning/rates",
    "pbt": "#/tuning/tuned",
    "tunings": "#/tuning",
    "cluster": "#/cluster/many",
    "clusters": "#/cluster",
}
"""Those of screens that need runs of special kinds: see `make_special_runs`."""


def make_runs(root: Path) -> None:
    """Five runs: of two algorithms, one stopped, one that cannot be read."""
    make_run(root / "spread_ippo_1", level=-32, seed=1, notes={"tags": ["baseline"], "note": "the first"})
    make_run(root / "spread_ippo_2", level=-31, seed=2, num_seeds=5)
    make_run(root / "spread_mappo_1", algorithm="mappo", level=-24, seed=3, learning_rate=1e-3)
    make_run(root / "tag_ippo_1", env="mpe/simple_tag", level=-10, lines=30, total_lines=60, num_seeds=1)
    broken = root / "broken"
    broken.mkdir()
    (broken / "config.json").write_text('{"format": 1, "shoal"')


def make_special_runs(root: Path) -> None:
    """One run of every special kind, and one with scenes and a replay."""
    shutil.copytree(_GOLDEN / "psro_exact", root / "psro_exact")
    make_population(root / "pong_psro")
    make_sweep(root / "rates")
    make_pbt(root / "tuned")
    make_cluster(root / "many")
    watched = make_run(root / "watched", num_seeds=1)
    (watched / "replay.html").write_text(REPLAY)
    for update in (0, 10, 40):
        keep_scene(watched, update)
