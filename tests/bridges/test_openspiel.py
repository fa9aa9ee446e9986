"""OpenSpiel both ways: its games step by step against our cards and against itself, our games under its algorithms."""

import functools
import re
import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal.core.algorithm import ActOutput
from shoal.core.errors import OptionError, WorldError
from shoal.core.host import HostEnvProxy, SerialHostBatch, check_observations

pyspiel = pytest.importorskip("pyspiel", reason="OpenSpiel is not installed: pip install open_spiel")

from open_spiel.python import policy  # noqa: E402
from open_spiel.python.algorithms import cfr, expected_game_score, exploitability  # noqa: E402

from shoal.bridges.incoming import openspiel  # noqa: E402


def opened(name, **options):
    world = openspiel.make(name, **options)
    assert isinstance(world, HostEnvProxy)
    batch = world.open(1)
    assert isinstance(batch, SerialHostBatch)
    return batch.envs[0], world


def chosen(random, observation):
    return np.array([random.choice(np.flatnonzero(row)) for row in observation["player"].legal], np.int32)


def episode(env, seed, random):
    """What was seen, done and paid in one episode, and OpenSpiel's final state."""
    seen, done, paid = [env.reset(seed)], [], []
    over = False
    while not over:
        done.append(chosen(random, seen[-1]))
        observation, outcome = env.step({"player": done[-1]})
        seen.append(observation)
        paid.append(outcome.reward["player"])
        over = bool(outcome.terminated)
        assert not outcome.truncated
    return seen, done, paid, env.state


@functools.cache
def ours(id):
    world = shoal.make(id)
    step = jax.jit(lambda state, action: world.step(jax.random.key(0), state, {"player": action}, ()))
    return world, step, jax.jit(lambda state: world.observe(state, ())["player"])


def dealt(world, state):
    """Our deal with the cards of a finished game of OpenSpiel's; a card that was not dealt may be any one left."""
    cards = [entry.action for entry in state.full_history() if entry.player == pyspiel.PlayerId.CHANCE]
    deals = jax.vmap(world.deal)(jnp.arange(world.num_deals))
    columns = [*deals.cards.T, *([deals.public] if hasattr(deals, "public") else [])]
    rows = np.stack(columns, axis=1).tolist()
    return world.deal(jnp.int32(next(i for i, row in enumerate(rows) if row[: len(cards)] == cards)))


@pytest.mark.parametrize(
    ("name", "id", "games"), [("kuhn_poker", "cards/kuhn", 20), ("leduc_poker", "cards/leduc", 20)]
)
def test_the_same_deals_and_actions_give_the_same_game_as_ours(name, id, games):
    env, _ = opened(name)
    world, step, look = ours(id)
    random = np.random.default_rng(0)
    for game in range(games):
        seen, done, paid, end = episode(env, game, random)
        state = dealt(world, end)
        for t, theirs in enumerate(seen):
            mine, theirs = look(state), theirs["player"]
            np.testing.assert_array_equal(mine.view, theirs.view)
            np.testing.assert_array_equal(mine.active, theirs.active)
            mask = np.ones(theirs.legal.shape, bool) if mine.legal is None else np.asarray(mine.legal)
            np.testing.assert_array_equal(mask[theirs.active], theirs.legal[theirs.active])
            if t < len(done):
                state, outcome = step(state, jnp.asarray(done[t]))
                np.testing.assert_array_equal(outcome.reward["player"], paid[t])
        assert bool(outcome.terminated)


@pytest.mark.parametrize(
    ("name", "options", "size", "shape"),
    [
        ("tic_tac_toe", {}, 2, (3, 3, 3)),
        ("goofspiel(num_cards=4)", {}, 2, None),
        ("matrix_rps", {}, 2, None),
        ("kuhn_poker(players=3)", {}, 3, (17,)),
        ("kuhn_poker", {"players": 3}, 3, (17,)),
        ("markov_soccer", {"horizon": 12}, 2, None),
    ],
)
def test_step_by_step_against_openspiel(name, options, size, shape):
    env, world = opened(name, **options)
    group = world.groups["player"]
    assert group.size == size == len(world.players)
    assert shape is None or group.observation.shape == shape
    simultaneous = env.game.get_type().dynamics == pyspiel.GameType.Dynamics.SIMULTANEOUS
    assert group.movers == (None if simultaneous else 1)
    parameters = {**pyspiel.game_parameters_from_string(name), **options}
    game = pyspiel.load_game(parameters.pop("name"), parameters)
    random = np.random.default_rng(1)
    for seed in range(4):
        raw, before = game.new_initial_state(), np.zeros(size)
        observation, outcome = env.reset(seed), None
        check_observations(world, jax.tree.map(lambda leaf: leaf[None], observation))
        while True:
            while raw.is_chance_node():
                raw.apply_action(env.state.full_history()[len(raw.full_history())].action)
            compare(raw, observation["player"], size)
            if outcome is not None:
                np.testing.assert_allclose(outcome.reward["player"], np.array(raw.returns()) - before, atol=1e-6)
                assert outcome.terminated == raw.is_terminal()
            before = np.array(raw.returns())
            if raw.is_terminal():
                break
            actions = chosen(random, observation)
            observation, outcome = env.step({"player": actions})
            if raw.is_simultaneous_node():
                raw.apply_actions(actions.tolist())
            else:
                raw.apply_action(int(actions[raw.current_player()]))


def compare(raw, seen, size):
    informed = raw.get_game().get_type().provides_information_state_tensor
    for player in range(size):
        tensor = raw.information_state_tensor(player) if informed else raw.observation_tensor(player)
        view = np.moveaxis(seen.view[player], -1, 0) if seen.view[player].ndim == 3 else seen.view[player]
        np.testing.assert_array_equal(view.ravel(), np.array(tensor, np.float32))
        moves = not raw.is_terminal() and (raw.is_simultaneous_node() or raw.current_player() == player)
        assert seen.active[player] == moves
        assert not moves or np.flatnonzero(seen.legal[player]).tolist() == raw.legal_actions(player)
        assert seen.legal[player].any()
        assert seen.present[player]


def test_chance_is_drawn_by_its_probabilities_and_repeated_by_a_seed():
    env, _ = opened("kuhn_poker")

    def deals(seed, count):
        drawn = []
        for i in range(count):
            env.reset(seed if i == 0 else None)
            drawn.append(tuple(env.state.history()))
        return drawn

    drawn = deals(3, 1200)
    counts = [drawn.count(deal) for deal in sorted(set(drawn))]
    assert len(counts) == 6
    assert np.abs(np.array(counts) - 200).max() < 5 * np.sqrt(200)
    assert deals(3, 20) == drawn[:20] != deals(4, 20)


def test_a_game_with_chance_of_its_own_is_repeated_by_a_seed():
    env, _ = opened("negotiation")
    first, again, other = (env.reset(seed)["player"].view for seed in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("leduc_pocker", "Did you mean 'leduc_poker'"),
        ("kuhn_poker(players=99)", "cannot load it"),
        ("nfg_game", "cannot load it"),
        ("coin_game", "neither an information state tensor nor an observation tensor"),
        ("mfg_garnet", "mean field"),
        (
            "misere",
            "Missing parameter game. It takes the parameters game, such as 'openspiel:misere(game=kuhn_poker())'",
        ),
        ("repeated_poker", "It takes the parameters blind_schedule"),
    ],
)
def test_games_that_cannot_be_mapped_are_refused(name, says):
    with pytest.raises(OptionError, match="openspiel:") as caught:
        openspiel.make(name)
    assert says in str(caught.value)


def test_a_name_and_an_option_must_not_contradict_each_other():
    with pytest.raises(OptionError, match=r"openspiel:kuhn_poker\(players=3\): players must be 3, as the name has it"):
        openspiel.make("kuhn_poker(players=3)", players=4)
    assert len(openspiel.make("kuhn_poker(players=3)", players=3).players) == 3
    assert openspiel.make("misere(game=kuhn_poker())").groups["player"].size == 2


def test_an_illegal_action_and_a_step_too_many_are_named():
    env, _ = opened("tic_tac_toe")
    env.reset(0)
    env.step({"player": np.array([4, 0])})
    with pytest.raises(WorldError, match=r"openspiel:tic_tac_toe: player 1 took the action 4 at step 1, where \[0, 1,"):
        env.step({"player": np.array([0, 4])})
    for mine, theirs in ((0, 1), (8, 2)):
        env.step({"player": np.array([9, theirs])})
        _, outcome = env.step({"player": np.array([mine, 9])})
    assert outcome.terminated
    assert outcome.reward["player"].tolist() == [1, -1]
    with pytest.raises(WorldError, match="after the end"):
        env.step({"player": np.array([0, 0])})


def test_their_exploitability_and_cfr_on_our_kuhn():
    game = openspiel.as_game("cards/kuhn")
    assert str(game) == "shoal_cards_kuhn()"
    assert (game.max_game_length(), game.min_utility(), game.max_utility(), game.utility_sum()) == (3, -2, 2, 0)
    assert exploitability.nash_conv(game, policy.UniformRandomPolicy(game)) == pytest.approx(0.916667, abs=1e-6)
    solver = cfr.CFRSolver(game)
    for _ in range(150):
        solver.evaluate_and_update_policy()
    average = solver.average_policy()
    value = expected_game_score.policy_value(game.new_initial_state(), [average, average])
    np.testing.assert_allclose(value, [-1 / 18, 1 / 18], atol=2e-3)
    assert exploitability.nash_conv(game, average) < 0.03


@pytest.mark.parametrize("id", ["cards/kuhn", "matrix/rock_paper_scissors", "matrix/iterated_prisoners_dilemma"])
def test_their_playthroughs_of_our_games(id):
    pyspiel.random_sim_test(openspiel.as_game(id), 3, True, False)


def test_a_world_with_chance_in_its_steps_has_seeds_for_deals():
    game = openspiel.as_game("control/cartpole", num_seeds=3)
    assert game.get_type().chance_mode == pyspiel.GameType.ChanceMode.EXPLICIT_STOCHASTIC
    assert not game.get_type().provides_information_state_tensor
    starts = []
    for seed in range(3):
        state = game.new_initial_state()
        assert len(state.chance_outcomes()) == 3
        state.apply_action(seed)
        starts.append(state.observation_tensor(0))
    assert len(set(map(tuple, starts))) == 3
    pyspiel.random_sim_test(game, 2, True, False)


def test_there_and_back_again():
    """Our Kuhn as OpenSpiel's game as our environment: the same views as OpenSpiel's own."""
    env = openspiel.OpenSpiel(openspiel.as_game("cards/kuhn"), "openspiel:shoal_cards_kuhn")
    world, _, look = ours("cards/kuhn")
    seen, _, paid, end = episode(env, 0, np.random.default_rng(0))
    np.testing.assert_array_equal(seen[0]["player"].view, look(world.deal(jnp.int32(end.history()[0]))).view)
    assert np.abs(paid[-1]).max() in (1, 2)


def test_worlds_that_cannot_be_games_are_refused():
    with pytest.raises(
        OptionError, match=r"control/pendulum cannot be an OpenSpiel game: the actions of 'agent' are Box"
    ):
        openspiel.as_game("control/pendulum")
    with pytest.raises(OptionError, match="num_seeds must be at least 1"):
        openspiel.as_game("control/cartpole", num_seeds=0)


class Counting:
    """An algorithm that remembers how often it moved in this game, and takes the first legal action."""

    def initial_memory(self, params):
        return jnp.int32(0)

    def act(self, params, observation, memory, key, explore):
        assert observation.legal.shape == (2,)
        return ActOutput(jnp.where(memory == 0, params, 1 - params), memory + 1)


def test_bots_play_by_functions_and_by_policies():
    """Player 0 passes first, then bets; player 1 always bets; so every game is pass, bet, bet, for two chips."""
    game = pyspiel.load_game("kuhn_poker")
    bots = [
        openspiel.policy_bot(game, 0, Counting(), jnp.int32(0)),
        openspiel.bot(game, 1, lambda view, legal: np.array([0.0, 3.0]) * legal),
    ]
    for seed in range(4):
        state = game.new_initial_state()
        won = pyspiel.evaluate_bots(state, bots, seed)
        assert state.history()[2:] == [0, 1, 1]
        assert sorted(won) == [-2, 2]
    with pytest.raises(OptionError, match="player must be a seat of the game, 0 to 1, got 2"):
        openspiel.bot(game, 2, lambda view, legal: legal)
    state = game.new_initial_state()
    state.apply_action(0)
    state.apply_action(1)
    with pytest.raises(OptionError, match="a chance for every action"):
        openspiel.bot(game, 0, lambda view, legal: np.zeros(2)).step(state)
    for wrong in ([1.0], 1.0, [1.0, 0.0, 0.0]):
        with pytest.raises(OptionError, match="what decide returns must be a chance for each of 2 actions"):
            openspiel.bot(game, 0, lambda view, legal, wrong=wrong: wrong).step(state)
    for other in (openspiel.bot(game, 1, lambda view, legal: legal), bots[0]):
        if other is bots[0]:
            state.apply_action(0)
        with pytest.raises(OptionError, match=r"in the seat of player (1|0), but player (0|1) is to move"):
            other.step(state)


def test_an_illegal_action_in_a_game_of_ours_is_refused():
    state = openspiel.as_game("cards/leduc").new_initial_state()
    with pytest.raises(OptionError, match=r"cards/leduc: the action of chance after \[\] must be 0 to"):
        state.apply_action(10**6)
    state.apply_action(0)
    with pytest.raises(
        OptionError, match=r"cards/leduc: the action of player 0 after \[0\] must be one of \[1, 2\], got 0"
    ):
        state.apply_action(0)
    state.apply_action(1)
    assert state.history() == [0, 1]
    both = openspiel.as_game("matrix/rock_paper_scissors").new_initial_state()
    with pytest.raises(OptionError, match=r"the action of player 1 .* must be one of \[0, 1, 2\], got 3"):
        both.apply_actions([0, 3])


def test_the_code_of_the_page(capsys):
    text = (Path(__file__).parents[2] / "docs" / "bridges" / "openspiel.md").read_text()
    names = {}
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(code, "openspiel.md", "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    assert "movers=1" in printed[0]
    assert float(printed[1]) == pytest.approx(0.916667, abs=1e-6)
    assert sum(map(float, printed[-1].strip("[]").split(","))) == 0


@pytest.mark.slow
def test_their_exploitability_on_our_leduc():
    game, theirs = openspiel.as_game("cards/leduc"), pyspiel.load_game("leduc_poker")
    mine = exploitability.nash_conv(game, policy.UniformRandomPolicy(game))
    assert mine == pytest.approx(4.747222, abs=1e-6)
    assert mine == pytest.approx(exploitability.nash_conv(theirs, policy.UniformRandomPolicy(theirs)), abs=1e-9)
    pyspiel.random_sim_test(game, 5, True, False)


@pytest.mark.slow
def test_the_example():
    """The trained policy wins from a network that knows nothing; what one wins the others lose."""
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    path = Path(__file__).parents[2] / "examples" / "openspiel_match.py"
    won = runpy.run_path(str(path))["main"](total_env_steps=40_000, num_games=1500)
    assert sum(won.values()) == pytest.approx(0, abs=1e-9)
    assert won["Shoal policy"] > won["PyTorch network"]
