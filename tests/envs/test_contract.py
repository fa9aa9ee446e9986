"""Every world that ships keeps the environment contract."""

import pytest

import shoal
from shoal.testing import check_env

SMALL = {  # options that let episodes end within the steps of the check
    "tag/grid": {"grid_length": 4, "max_steps": 20},
    "tag/continuous": {"num_taggers": 2, "num_runners": 4, "max_steps": 20, "side": 4.0, "num_neighbours": 3},
}
SHIPPED = [id for id in shoal.ids() if not id.startswith("test/")]


@pytest.mark.parametrize("id", SHIPPED)
def test_check_env(id):
    report = check_env(shoal.make(id, **SMALL.get(id, {})), num_steps=60)
    assert report.ok
    assert not report.warnings
    assert report.num_episodes > 0
