"""The host runner: the same weights as the fused one on a world that both can run, and what it refuses."""

import dataclasses
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal.algorithms import DQN, PPO
from shoal.batching.vectorise import Vectorised
from shoal.core import registry
from shoal.core.env import describe
from shoal.core.errors import OptionError, WorldError
from shoal.core.host import HostEnvProxy, HostTimestep, check_observations
from shoal.networks.torsos import Network
from shoal.training import checkpoint, fused, host
from shoal.training.experiment import Experiment, Learner
from shoal.training.run import load_policies
from shoal.training.runner import resume, run

ID = "gymnasium:test"
"""A name that the tests fill in: the library is never asked."""


class Batch:
    """A world of ours as a batch on the host, with the draws of the fused runner."""

    def __init__(self, env, count, seed):
        self.worlds = Vectorised(env, count)
        self.key = jax.random.split(jax.random.key(seed), 3)[0]
        self._reset, self._step = jax.jit(self.worlds.reset), jax.jit(self._stepped)
        self.closed = 0

    @property
    def num_envs(self):
        return self.worlds.num_envs

    def reset(self, seed):
        self.state = self._reset(self.key)
        return filled(jax.device_get(self.state.observation))

    def _stepped(self, state, actions):
        state, outcome, ended = self.worlds.step(state, actions)
        final = self.worlds.observe(ended.params, ended.state, self.num_envs)
        mask = ended.mask
        final = jax.tree.map(
            lambda then, now: jnp.where(mask.reshape(mask.shape + (1,) * (now.ndim - 1)), then, now),
            final,
            state.observation,
        )
        return state, (state.observation, final, outcome)

    def step(self, actions):
        self.state, told = self._step(self.state, actions)
        now, final, outcome = jax.device_get(told)
        return HostTimestep(filled(now), filled(final), outcome)

    def close(self):
        self.closed += 1


def filled(observations):
    """Whoever says who is active says who is present, too."""
    return {
        name: seen.replace(present=np.ones_like(seen.active))
        if seen.active is not None and seen.present is None
        else seen
        for name, seen in observations.items()
    }


def proxy(id, seed=0, **options):
    env = shoal.make(id, **options)
    spec = describe(env)
    seen = next(iter(spec.observations.values()))
    metrics = tuple(jax.eval_shape(lambda: _first_outcome(env)).metrics)
    return HostEnvProxy(
        ID,
        spec.groups,
        env.players,
        lambda count: Batch(env, count, seed),
        masked=seen.legal is not None,
        leaving=seen.active is not None or seen.present is not None,
        metrics=metrics,
    )


def _first_outcome(env):
    params = env.default_params()
    state = env.reset(jax.random.key(0), params)
    actions = {
        name: jax.vmap(group.action.sample)(jax.random.split(jax.random.key(0), group.size))
        for name, group in env.groups.items()
    }
    return env.step(jax.random.key(0), state, actions, params)[1]


@pytest.fixture
def on_host(monkeypatch):
    """Lets the id stand for a world of ours."""

    def put(id, seed=0, **options):
        made = proxy(id, seed, **options)
        monkeypatch.setattr(registry, "_foreign", lambda id, options: made)

    return put


def experiment(env, algorithm, policies=None, **changes):
    sizes = {"num_envs": 8, "num_steps": 8, "total_env_steps": 8 * 8 * 5} | changes
    return Experiment(env, learners={"learner": Learner(algorithm, policies or {})}, **sizes)


PPO_ = PPO(minibatches=2, epochs=2, network=Network(hidden=(16,)))
GRU = dataclasses.replace(PPO_, network=Network(hidden=(16,), recurrent="gru", recurrent_size=8))
REPLAY = DQN(buffer_size=512, batch_size=4, warm_up=64, network=Network(hidden=(16,)))


@pytest.mark.parametrize(
    ("world", "options", "algorithm", "policies"),
    [
        ("mpe/simple_spread", {"max_steps": 5}, PPO_, {}),
        pytest.param("cards/leduc", {}, PPO_, {}, marks=pytest.mark.slow),
        pytest.param(
            *("mpe/simple_tag", {}, GRU, {"a": ("adversary[0]",), "b": ("adversary[1:]",), "c": ("agent",)}),
            marks=pytest.mark.slow,
        ),
        pytest.param("mpe/simple_spread", {"max_steps": 5}, REPLAY, {}, marks=pytest.mark.slow),
    ],
)
def test_learns_as_the_fused_runner_does(on_host, world, options, algorithm, policies):
    try:
        plain = dataclasses.replace(experiment(world, algorithm, policies), env_options=options)
        _ = plain.setup
    except OptionError as error:
        pytest.fail(str(error))
    program = fused.make_fused_program(plain, 1)
    carry, table = program.advance(program.init(), program.counts[5])
    on_host(world, **options)
    hosted = host.make_host_program(experiment(ID, algorithm, policies))
    start = hosted.init()
    after, rows = hosted.compiled(start)(start, 5)
    wanted, got = (jax.device_get(fused.policies_of(c.learners)) for c in (carry, after))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6, rtol=1e-5), wanted, got)
    assert hosted.names == program.names
    np.testing.assert_allclose(rows[:5], table[:5], rtol=2e-4, atol=2e-5)


def test_trains_saves_and_goes_on(on_host, tmp_path):
    on_host("mpe/simple_spread", max_steps=5)
    plan = experiment(ID, PPO_)
    first = run(plan, tmp_path / "run")
    assert first.update == 5
    again = resume(tmp_path / "run")
    jax.tree.map(np.testing.assert_array_equal, first.policies, again.policies)


def test_evaluates_as_many_episodes_as_asked(on_host):
    on_host("mpe/simple_spread", max_steps=5)
    found = shoal.evaluate(experiment(ID, PPO_).setup, None, episodes=19, seed=1)  # which knows where they are
    assert found.episodes == 19
    assert set(found.lengths) == {5}
    assert found.mean_return["agent"] < 0


@pytest.fixture
def batches(on_host, monkeypatch):
    """Every batch that is opened."""
    on_host("mpe/simple_spread", max_steps=5)
    opened = []

    class Kept(Batch):
        def __init__(self, *args):
            super().__init__(*args)
            opened.append(self)

    monkeypatch.setitem(globals(), "Batch", Kept)
    return opened


def test_environments_are_closed_when_training_ends(batches, tmp_path):
    run(experiment(ID, PPO_), tmp_path / "run")
    assert [batch.closed for batch in batches] == [1]
    resume(tmp_path / "run", total_env_steps=8 * 8 * 6)
    host.evaluate(experiment(ID, PPO_).setup, None, episodes=3)
    assert [batch.closed for batch in batches] == [1, 1, 1]


PLAYS = {
    "train": lambda folder: run(experiment(ID, PPO_), folder),
    "evaluate": lambda folder: host.evaluate(experiment(ID, PPO_).setup, None, episodes=100),
}


@pytest.mark.parametrize("raised", [ZeroDivisionError, KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("played", ["train", "evaluate"])
def test_whatever_an_environment_raises_is_named_and_all_are_closed(batches, monkeypatch, raised, played):
    def step(self, actions):
        raise raised("in the middle of a step")

    monkeypatch.setattr(Batch, "step", step)
    with pytest.raises(WorldError, match=f"{ID}, step 1: step raised {raised.__name__}: in the middle of a step"):
        PLAYS[played](None)
    assert [batch.closed for batch in batches] == [1]


@pytest.mark.usefixtures("terminal_signals")
@pytest.mark.parametrize("played", ["train", "evaluate"])
def test_a_ctrl_c_of_the_users_stays_one(batches, monkeypatch, tmp_path, played):
    """In training the second one, while an environment is being stepped; what was learnt before is saved."""
    inner, steps = Batch.step, []

    def step(self, actions):
        steps.append(1)
        if len(steps) == 20:  # in the third update
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        return inner(self, actions)

    monkeypatch.setattr(Batch, "step", step)
    with pytest.raises(KeyboardInterrupt):
        PLAYS[played](tmp_path / "run")
    assert [batch.closed for batch in batches] == [1]
    if played == "train":
        assert checkpoint.read_meta(checkpoint.latest(tmp_path / "run" / "checkpoints"))["update"] == 2


def test_what_was_learnt_before_an_environment_raised_is_saved(batches, monkeypatch, tmp_path):
    """It equals what an undisturbed run of as many updates learns, and the error says how to go on."""
    inner, steps = Batch.step, []

    def step(self, actions):
        steps.append(1)
        if len(steps) == 28:  # in the fourth update of eight steps
            raise ValueError("a wheel came off")
        return inner(self, actions)

    with monkeypatch.context() as patch:
        patch.setattr(Batch, "step", step)
        said = (
            rf"step 28: step raised ValueError: a wheel came off\. .* after 3 updates; .* shoal resume {tmp_path}/run$"
        )
        with pytest.raises(WorldError, match=said):
            run(experiment(ID, PPO_), tmp_path / "run")
    _, policies, meta = load_policies(tmp_path / "run")
    assert meta["update"] == 3
    plan = experiment(ID, PPO_)
    half = run(dataclasses.replace(plan, total_env_steps=8 * 8 * 3))
    jax.tree.map(np.testing.assert_array_equal, policies, half.policies)
    assert resume(tmp_path / "run").update == 5


def test_environments_are_closed_after_a_first_interrupt(batches):
    """Ctrl-C ends training after the call that is being made; what was learnt is kept."""
    plan = experiment(ID, PPO_, total_env_steps=8 * 8 * 5000)
    result = run(plan, listener=lambda progress: signal.raise_signal(signal.SIGINT) if progress.update == 1 else None)
    assert result.interrupted
    assert [batch.closed for batch in batches] == [1]


def test_what_cannot_be_closed_costs_no_training(batches, monkeypatch):
    monkeypatch.setattr(Batch, "close", lambda self: 1 / 0)
    with pytest.warns(RuntimeWarning, match="gymnasium:test: its close raised ZeroDivisionError"):
        assert run(experiment(ID, PPO_)).update == 5


def test_what_is_refused(on_host):
    on_host("mpe/simple_spread")
    with pytest.raises(OptionError, match="gymnasium:test runs on the host, in Python"):
        fused.make_fused_program(experiment(ID, PPO_))
    with pytest.raises(OptionError, match="num_seeds must be 1, got 2"):
        host.make_host_program(experiment(ID, PPO_, num_seeds=2))
    made = shoal.make(ID)
    seen = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), made.blank().observation)
    check_observations(made, seen)
    wrong = {"agent": seen["agent"].replace(view=seen["agent"].view[..., :-1])}
    with pytest.raises(WorldError, match=r"gymnasium:test: \['agent'\].view is .* was declared"):
        check_observations(made, wrong)


@pytest.mark.parametrize(
    ("id", "said"),
    [("gym:CartPole-v1", "unknown library 'gym'"), ("gymnasium:", "which environment? For instance gymnasium:")],
)
def test_ids_of_other_libraries(id, said):
    with pytest.raises(OptionError) as error:
        shoal.make(id)
    assert said in str(error.value)
