"""A tiny world in a file of its own, a way to call the command, and one trained run that tests share."""

import json
import shutil
from typing import Any, NamedTuple

import pytest

from shoal.cli import main
from shoal.core import registry

WORLD = '''
import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from shoal import Circles, Discrete, Env, Group, Observation, Outcome, Scene, register


@register("test/tiny")
@dataclasses.dataclass(frozen=True)
class Tiny(Env):
    """Two hunters and one prey on a line, for four steps."""

    hunters: int = 2  # who hunt
    mode: str = "fine"  # what is wrong with it
    kind: ClassVar[str] = "mixed"

    @property
    def groups(self):
        return {"hunter": Group(self.hunters, Discrete(3)), "prey": Group(1, Discrete(3))}

    def reset(self, key, params):
        return jax.random.uniform(key, (self.hunters + 1,)), jnp.int32(0)

    def step(self, key, state, actions, params):
        place, t = state
        moves = jnp.concatenate([actions["hunter"], actions["prey"]])
        place = place + 0.1 * (moves - 1)
        reward = {"hunter": -jnp.abs(place[:-1] - place[-1]), "prey": jnp.full(1, 2.0)}
        if self.mode == "raises":
            raise KeyError("a bug of the user's")
        if self.mode == "shape":
            reward["prey"] = jnp.ones(5)
        if self.mode == "nan":
            reward["prey"] = jnp.where(t == 2, jnp.nan, reward["prey"])
        if self.mode == "state":
            t = t + 0.5
        return (place, t + 1), Outcome(reward, jnp.bool_(False), t + 1 >= 4)

    def observe(self, state, params):
        place, _ = state
        seen = jnp.stack([place, jnp.broadcast_to(place[-1], place.shape)], -1)
        return {"hunter": Observation(seen[:-1]), "prey": Observation(seen[-1:])}

    def scene(self, state, params):
        place, _ = state
        n = self.hunters + 1
        ones = jnp.ones(n)
        position = jnp.stack([place, 0.5 * ones], -1)
        return Scene(circles=Circles(position, 0.05 * ones, jnp.ones(n, jnp.int32), ones > 0))
'''
SMALL = [
    *("--num-envs", "4", "--num-steps", "8", "--total-env-steps", "96"),
    *("--algo", "a2c", "--algo.network.hidden", "4"),
]
"""Three updates of a network that compiles quickly."""


class Outcome(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    """Worlds that a test imports are forgotten after it."""
    monkeypatch.setattr(registry.WORLDS, "table", dict(registry.WORLDS.table))


@pytest.fixture
def shoal(capsys):
    """Calls the command in this process."""

    def call(*args: object) -> Outcome:
        capsys.readouterr()
        code = main([str(arg) for arg in args])
        said = capsys.readouterr()
        return Outcome(code, said.out, said.err)

    return call


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """A file that registers `test/tiny`."""
    path = tmp_path_factory.mktemp("worlds") / "tiny_world.py"
    path.write_text(WORLD)
    return path


@pytest.fixture(scope="session")
def trained(tmp_path_factory, world):
    """A run of `test/tiny` that must not be changed."""
    path = tmp_path_factory.mktemp("runs") / "trained"
    before = dict(registry.WORLDS.table)
    assert main(["train", "test/tiny", "--import", str(world), "--run-dir", str(path), *SMALL]) == 0
    registry.WORLDS.table.clear()
    registry.WORLDS.table.update(before)
    return path


@pytest.fixture
def run(trained, tmp_path):
    """A copy of the trained run, to be damaged."""
    return shutil.copytree(trained, tmp_path / "run")


def assert_refused(outcome: Outcome, *words: str) -> None:
    """Exit code 2, one readable message, no traceback, nothing on stdout that a program could mistake for a result."""
    assert outcome.code == 2
    assert outcome.err.startswith("error: ")
    assert "Traceback" not in outcome.err
    assert len(outcome.err.strip().splitlines()) <= 2
    for word in words:
        assert word in outcome.err
