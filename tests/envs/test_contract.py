"""Every world that ships keeps the environment contract."""

import pytest

import shoal
from shoal.testing import check_env

SMALL = {  # options that let episodes end within the steps of the check
    "battle/open": {"num_agents": 4, "map_size": 5, "view_radius": 2, "damage": 6.0, "max_steps": 20},
    "control/acrobot": {"max_steps": 20},
    "control/mountain_car": {"max_steps": 20},
    "control/mountain_car_continuous": {"max_steps": 20},
    "control/pendulum": {"max_steps": 20},
    "matrix/iterated_prisoners_dilemma": {"num_rounds": 20},
    "pong": {"points": 1, "max_steps": 40},
    "swarm/coverage": {"dynamics": "quadrotor", "num_agents": 3, "max_steps": 20},
    "swarm/delivery": {"num_agents": 3, "max_steps": 20, "num_obstacles": 1, "pushes": 0.5},
    "swarm/formation": {"num_agents": 3, "max_steps": 20, "num_obstacles": 1, "message_size": 1, "message_loss": 0.2},
    "swarm/pursuit": {"num_pursuers": 2, "num_evaders": 2, "max_steps": 20, "num_obstacles": 1, "side": 4.0},
    "swarm/rendezvous": {"num_agents": 3, "max_steps": 20, "gusts": 1.0, "sensor_noise": 0.1},
    "tag/grid": {"grid_length": 4, "max_steps": 20},
    "tag/continuous": {"num_taggers": 2, "num_runners": 4, "max_steps": 20, "side": 4.0, "num_neighbours": 3},
}
SLOW = ("battle/open", "swarm/coverage", "swarm/delivery", "swarm/formation", "swarm/pursuit")
SHIPPED = [
    pytest.param(id, marks=pytest.mark.slow) if id in SLOW else id for id in shoal.ids() if not id.startswith("test/")
]


@pytest.mark.parametrize("id", SHIPPED)
def test_check_env(id):
    report = check_env(shoal.make(id, **SMALL.get(id, {})), num_steps=60)
    assert report.ok
    assert not report.warnings
    assert report.num_episodes > 0
