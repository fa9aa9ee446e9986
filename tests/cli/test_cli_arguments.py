import keyword
import types
from pathlib import Path

import pytest

from shoal.algorithms import A2C, PPO
from shoal.cli.arguments import _headline, named_values, scan, whole_number
from shoal.cli.run_options import TrainOptions
from shoal.cli.targets import _learners, _learners_field, identifiers, parse_target
from shoal.core.errors import OptionError, ShoalError, UnknownNameError
from shoal.training.experiment import Experiment, Learner


def parse(*args):
    return parse_target(TrainOptions, args, "shoal train").experiment


@pytest.mark.parametrize(("text", "number"), [("12", 12), ("-3", -3), ("1_000", 1000), ("1e6", 10**6), ("2.5e3", 2500)])
def test_whole_numbers_are_read_as_people_type_them(text, number):
    assert whole_number(text) == number


@pytest.mark.parametrize("text", ["1.5", "many", "nan", "inf", "1e-3", ""])
def test_other_texts_are_not_whole_numbers(text):
    with pytest.raises(ValueError, match="is not a whole number"):
        whole_number(text)


@pytest.mark.parametrize("typed", ["[3,2]", "3,2", "(3,2)", "(3, 2)", "3 2"])
def test_several_numbers_of_an_option_of_a_torso(typed):
    texts = [f"kernel={typed}"] if "," in typed else [f"kernel={typed.split()[0]}", *typed.split()[1:]]
    assert named_values(["heads=4", *texts, "norm=a,b", "scale=0.5"]) == {
        "heads": 4,
        "kernel": [3, 2],
        "norm": "a,b",
        "scale": 0.5,
    }
    assert named_values(["kernel=(3,)", "rate=1e-3,2"]) == {"kernel": [3], "rate": [0.001, 2]}
    with pytest.raises(ValueError, match="'5' is not NAME=VALUE"):
        named_values(["5", *texts])


def test_scan_finds_every_value_of_an_option():
    args = ["--import", "a.py", "--import=b.py", "--imports", "c.py", "--import"]
    assert scan(args, "--import") == ["a.py", "b.py"]


def test_the_first_section_of_a_box_is_the_message():
    drawn = "╭─ Bad ─╮\n│ it is \x1b[1mwrong\x1b[0m, │\n│ really │\n│ ────── │\n│ see --help │\n╰───────╯\n"
    plain = " Bad value \n --------- \n  it is wrong,\n  really\n  -------\n  see --help\n"
    assert _headline(drawn) == _headline(plain) == "it is wrong, really"
    assert _headline("just words\n") == "just words"


def test_a_target_alone_is_its_preset():
    assert parse("mpe/simple_spread") == Experiment.from_dict(parse("mpe/simple_spread").to_dict())
    assert parse("--seed", "7", "mpe/simple_spread").seed == 7


def test_plain_options_change_the_experiment():
    experiment = parse("demo", "--num-envs", "64", "--total-env-steps", "1e6", "--num_seeds", "2", "--randomise")
    assert (experiment.num_envs, experiment.total_env_steps) == (64, 1_000_000)
    assert (experiment.num_seeds, experiment.randomise) == (2, True)


def test_world_options_are_kept_where_they_differ_from_the_defaults():
    experiment = parse("mpe/simple_spread", "--env.num-agents", "5", "--env.local-ratio", "0.5")
    assert experiment.env_options == {"num_agents": 5}


def test_options_of_a_preset_for_its_world_can_be_taken_back():
    assert parse("demo").env_options == {"max_steps": 50}
    assert parse("demo", "--env.max-steps", "25").env_options == {}


def test_algorithm_and_network_options():
    experiment = parse("mpe/simple_spread", "--algo.learning-rate", "0.5", "--algo.network.hidden", "8", "16")
    algorithm = experiment.learners["agent"].algorithm
    assert (algorithm.learning_rate, algorithm.network.hidden) == (0.5, (8, 16))


def test_another_algorithm_keeps_what_suits_the_world():
    before = parse("mpe/simple_spread").learners["agent"].algorithm
    after = parse("mpe/simple_spread", "--algo", "a2c").learners["agent"].algorithm
    assert isinstance(before, PPO)
    assert isinstance(after, A2C)
    assert (after.gamma, after.network) == (before.gamma, before.network)
    assert after.learning_rate == A2C().learning_rate


def test_options_for_all_learners_leave_their_own_values_alone():
    before = parse("reference/tag_continuous_a2c").learners
    after = parse("reference/tag_continuous_a2c", "--algo.gamma", "0.5").learners
    assert {name: learner.algorithm.gamma for name, learner in after.items()} == {"tagger": 0.5, "runner": 0.5}
    rates = [
        {name: learner.algorithm.learning_rate for name, learner in learners.items()} for learners in (before, after)
    ]
    assert rates[0] == rates[1] == {"tagger": 1e-3, "runner": 5e-3}


def test_an_option_for_all_learners_may_be_what_one_of_them_has_already():
    typed = ("--algo.learning_rate=1e-3", "--algo.no-anneal", "--algo.network.hidden", "8")
    learners = parse("reference/tag_continuous_a2c", *typed).learners
    for name in ("tagger", "runner"):
        algorithm = learners[name].algorithm
        assert (algorithm.learning_rate, algorithm.anneal, algorithm.network.hidden) == (1e-3, False, (8,))


def test_options_of_one_learner_win_over_those_for_all():
    learners = parse(
        *("demo", "--learners.agent.algorithm.learning-rate", "0.25", "--algo.learning-rate", "0.5"),
        *("--learners.agent.frozen", "--learners.adversary.weights", "elsewhere"),
    ).learners
    assert learners["adversary"].algorithm.learning_rate == 0.5
    assert learners["agent"].algorithm.learning_rate == 0.25
    assert (learners["adversary"].frozen, learners["agent"].frozen) == (False, True)
    assert (learners["adversary"].weights, learners["agent"].weights) == (str(Path("elsewhere").absolute()), None)


def test_sharing_follows_the_number_of_agents():
    learners = parse("mpe/simple_tag", "--sharing", "none", "--env.num-adversaries", "2").learners
    assert list(learners["adversary"].policies) == ["adversary_0", "adversary_1"]
    assert list(parse("tag/grid", "--sharing", "all").learners) == ["shared"]
    assert list(parse("reference/tag_grid_a2c", "--sharing", "group").learners) == ["tagger", "runner"]


def test_freeze_and_weights_name_learners():
    learners = parse("tag/grid", "--freeze", "runner", "--weights", "runner=runs/a=b").learners
    assert learners["runner"].frozen
    assert not learners["tagger"].frozen
    assert learners["runner"].weights == str(Path("runs/a=b").absolute())
    assert parse("mpe/simple_spread", "--weights", "runs/x").learners["agent"].weights == str(Path("runs/x").absolute())


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["mpe/simple_spred"], "Did you mean 'mpe/simple_spread'"),
        (["grid"], "tag/grid"),
        (["demo", "--algo", "pppo"], "unknown algorithm 'pppo'. Did you mean 'ppo' or"),
        (["demo", "--algo.lerning-rate", "1"], "Did you mean --algo.learning-rate?"),
        (["demo", "--learning_rate", "1"], "Did you mean --algo.learning-rate?"),
        (["demo", "--num-env", "1"], "--num-envs"),
        (["demo", "--env.num-god", "1"], "Did you mean --env.num-good?"),
        (["demo", "--zzz"], "unknown option --zzz"),
        (["demo", "--algo", "dqn", "--algo.clip-eps", "1"], "All options: `shoal train demo --algo dqn --help`"),
        (["demo", "--algo.learning-rate", "inf"], "learning_rate must be at least 0 and finite, got inf"),
        (["demo", "stray"], "unexpected argument 'stray'"),
        (["demo", "--algo.learning-rate", "fast"], "--algo.learning-rate: 'fast' is not a number"),
        (["demo", "--algo.learning-rate", "-1"], "learning_rate must be at least 0"),
        (["demo", "--seed"], "Missing value for argument '--seed'"),
        (["demo", "--seed", "1.5"], "'1.5' is not a whole number"),
        (["demo", "--sharing", "some"], "'group', 'all', 'none'"),
        (["demo", "--freeze", "agnt"], "Did you mean 'agent'?"),
        (["demo", "--weights", "agent"], "NAME=RUN"),
        (["mpe/simple_spread", "--freeze", "agent"], "nothing would be trained"),
        (["reference/tag_grid_a2c", "--freeze", "runner"], "--sharing group"),
        (["--seed", "1"], "which world or preset?"),
        ([], "which world or preset?"),
    ],
)
def test_wrong_arguments_are_explained(args, words):
    with pytest.raises(ShoalError) as caught:
        parse(*args)
    assert isinstance(caught.value, OptionError | UnknownNameError)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_learners_of_any_names_have_options_of_their_own():
    names = ["a b", "a_b", "a-b", "a_b_2", "__init__", "", "1st", "for", "agent", "ﬁsh", "fish"]
    fields = identifiers(names)
    assert list(fields) == names
    assert len(set(fields.values())) == len(names)
    assert all(text.isidentifier() and not keyword.iskeyword(text) and text[0] != "_" for text in fields.values())
    assert (fields["a b"], fields["a_b"], fields["1st"], fields["agent"]) == ("a_b", "a_b_2", "learner_1st", "agent")
    experiment = Experiment("pong", learners={name: Learner(frozen=name == "1st") for name in names})
    _, _, options = _learners_field(experiment)
    assert _learners(experiment, types.SimpleNamespace(learners=options, algorithm=PPO()), []) == experiment.learners
