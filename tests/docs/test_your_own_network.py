"""The guide to a network of one's own: what it shows runs, and its torsos are what it says they are."""

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal.networks import Network
from shoal.networks.torsos import Torso
from tests.docs.guides import ROOT, Guide, parse_command

GUIDE = Guide("your-own-network.md")


@pytest.fixture(autouse=True)
def own_file(monkeypatch, tmp_path):
    """The file of the guide lies in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "squares.py").write_text(GUIDE.block("class Squares"))


@pytest.fixture
def names(monkeypatch):
    """What the guide defines, without what it trains."""
    names = {"__name__": "guide"}
    for block in GUIDE.blocks:
        if not re.search(r"^(shoal.train|print.check_algorithm)", block, re.MULTILINE):
            GUIDE.run(names, block)
    GUIDE.run(names, GUIDE.block("class Recent").partition("\n\n\nnetwork =")[0])
    return names


def features(torso, *seen):
    weights = torso.init(jax.random.key(0), *seen)
    return lambda *seen: torso.apply(weights, *seen)


def test_the_listing_is_the_example():
    assert (ROOT / "examples" / "set_attention.py").read_text() in GUIDE.blocks


def test_what_is_not_there_is_not_seen(names):
    seen = {"me": jnp.ones(3), "things": jnp.arange(8.0).reshape(4, 2), "there": jnp.array([1.0, 0.0, 1.0, 0.0])}
    run = features(names["MaskedAttention"](), seen)
    absent, present = (seen | {"things": seen["things"].at[i].add(5.0)} for i in (1, 2))
    np.testing.assert_allclose(run(seen), run(absent), atol=1e-6)
    assert np.abs(run(seen) - run(present)).max() > 1e-3


def test_messages_pass_along_edges_alone(names):
    view = jnp.zeros(4 + 2 * 3).at[4:].set(jnp.array([0.5, 0.0, 9.0, 9.0, 9.5, 9.0]))  # one near, two far
    run = features(names["Graph"](rounds=1), view)
    moved = view.at[6:8].set(jnp.array([9.0, 9.4]))  # a thing far away: the agent's own node does not hear of it
    np.testing.assert_allclose(run(view)[:32], run(moved)[:32], atol=1e-6)
    assert np.abs(run(view)[:32] - run(view.at[4].set(0.6))[:32]).max() > 1e-4


def test_the_past_is_seen_as_far_as_it_says(names):
    torso = names["Recent"](span=3)
    memory = torso.initial_memory()
    run = features(torso, jnp.ones(2), memory)

    def last(views):
        carry = memory
        for view in views:
            out, carry = run(jnp.array(view), carry)
        return out

    views = [[1.0, 2.0], [3.0, 1.0], [2.0, 2.0], [1.0, 1.0]]
    np.testing.assert_allclose(last(views), last([[9.0, 9.0], *views[1:]]), atol=1e-6)
    assert np.abs(last(views) - last([views[0], [9.0, 9.0], *views[2:]])).max() > 1e-3


def test_images_and_numbers_together(names):
    seen = jax.tree.map(lambda box: jnp.ones(box.shape), names["spec"].observation)
    run = features(names["Patches"](), seen)
    assert run(seen).ndim == 1
    for name, view in seen.items():  # it looks at both
        assert np.abs(run(seen) - run(seen | {name: 2 * view})).max() > 1e-3


@pytest.mark.slow
def test_what_the_guide_shows_trains_and_learns(tmp_path):
    names = {"__name__": "guide"}
    printed = [GUIDE.run(names, block) for block in GUIDE.blocks]
    assert "PPO keeps the algorithm contract" in printed[-1]
    assert (tmp_path / "runs" / "squares" / "config.json").exists()


@pytest.mark.parametrize("words", [words for words in GUIDE.commands if "--import" in words], ids=" ".join)
def test_commands_can_be_parsed(words):
    parse_command(words)


class Mine(nn.Module):
    mistake: str = "matrix"

    @nn.compact
    def __call__(self, seen):
        x = nn.Dense(32)(seen["self"])
        return nn.BatchNorm(use_running_average=False)(x) if self.mistake == "statistics" else jnp.stack([x, x, x])


def test_errors_are_shown_as_they_are(names):
    shoal.register_torso("mine")(Mine)
    seen = jax.tree.map(lambda box: jnp.ones(box.shape), names["spec"].observation)
    matrix, statistics = (Network(torso="mine", torso_options={"mistake": one}) for one in ("matrix", "statistics"))
    for said, network in zip(GUIDE.text_block("torso '"), (Network(torso="squares"), matrix, statistics), strict=True):
        with pytest.raises(shoal.ShoalError, match=re.escape(said.removesuffix("..."))):
            Torso(network).init(jax.random.key(0), seen, ())
