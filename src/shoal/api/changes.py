"""Changes of an experiment: another algorithm, options by name, learners that are frozen or start from other runs.

Options are those of the experiment, of the algorithm and of its network; `learner.option` is one learner's alone.
"""

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

from shoal.algorithms import find_name
from shoal.algorithms.names import Named, with_options
from shoal.api.synonyms import meant_by
from shoal.core.algorithm import Algorithm, Replays
from shoal.core.errors import (
    AlgorithmError,
    OptionError,
    ShoalError,
    require,
    unknown_name,
)
from shoal.core.origin import trust
from shoal.core.zoo import find_run
from shoal.envs.wrappers import innermost
from shoal.networks import Network
from shoal.testing.structure import in_words
from shoal.training.experiment import Experiment, Learner, make_world

NOT_OPTIONS = ("env", "env_options", "wrappers", "learners", "origin")
"""Fields of an experiment that other options stand for."""
KEPT = ("gamma", "critic", "normalise_views", "normalise_values")
KEPT_NETWORK = ("hidden", "recurrent", "recurrent_size", "filters", "dtype", "torso", "torso_options")
"""Fields that another algorithm and its network take over from the preset's: they suit the world."""
TEAM = "team"
"""Name of the learner that takes the place of several."""
REPLAY_SIZES = {"num_envs": 64, "num_steps": 5}
"""At most so many copies and steps between updates for a learner with a replay: it learns little by little."""


def change_algorithm(experiment: Experiment, algorithm: str | Algorithm | type[Algorithm]) -> Experiment:
    """The experiment with all its learners changed to another algorithm, by its name or as it is."""
    kinds = "a name such as 'mappo', or an algorithm such as shoal.PPO()"
    if isinstance(algorithm, type) and issubclass(algorithm, Algorithm):
        algorithm = algorithm()
    require(isinstance(algorithm, str | Algorithm), "shoal", "algorithm", algorithm, kinds)
    if isinstance(algorithm, str):
        found = find_name(algorithm)
        cls = found.cls
        new = {name: _adapt(learner.algorithm, found) for name, learner in experiment.learners.items()}
        learners = _together(_with_algorithms(experiment, new), experiment, found)
    else:
        cls = type(algorithm)
        learners = _with_algorithms(experiment, dict.fromkeys(experiment.learners, algorithm))
    others = any(type(learner.algorithm) is not cls for learner in experiment.learners.values())
    replays = issubclass(cls, Replays) and others
    sizes = {name: min(getattr(experiment, name), most) for name, most in REPLAY_SIZES.items()} if replays else {}
    return experiment.replace(learners=learners, **sizes)


def _with_algorithms(experiment: Experiment, algorithms: Mapping[str, Algorithm]) -> dict[str, Learner]:
    learners = experiment.learners
    return {name: dataclasses.replace(learners[name], algorithm=new) for name, new in algorithms.items()}


def _adapt(old: Algorithm, found: Named) -> Algorithm:
    """The algorithm of that name, with those options of the one it replaces that suit the world."""
    cls = found.cls
    before = {field.name: getattr(old, field.name) for field in dataclasses.fields(old) if field.init}  # pyright: ignore[reportArgumentType]
    if issubclass(cls, type(old)):  # one of your own has all the options of its parent
        return _build(cls, before, found.options)
    known = {field.name for field in dataclasses.fields(cls)}
    kept = {name: before[name] for name in KEPT if name in before and name in known}
    if kept.get("critic") not in get_args(get_type_hints(cls).get("critic")):
        kept.pop("critic", None)  # the other algorithm has no such critic
    options = dict(found.options)
    if isinstance(before.get("network"), Network) and get_type_hints(cls).get("network") is Network:
        options = {f"network.{name}": getattr(before["network"], name) for name in KEPT_NETWORK} | options
    return _build(cls, kept, options)


def _build(cls: type[Any], options: Mapping[str, Any], more: Mapping[str, Any]) -> Algorithm:
    """An algorithm with options, then more of them; what goes wrong in its own code is put down to it."""
    try:
        return with_options(cls(**options), more)
    except ShoalError:
        raise
    except Exception as error:  # the user's code may raise anything
        raise AlgorithmError(f"algorithm {cls.name!r}: {in_words(error, 'building it')}") from error


def _together(learners: dict[str, Learner], experiment: Experiment, found: Named) -> dict[str, Learner]:
    """One learner in place of several, where an algorithm is about the whole team, or about everybody.

    A mixer pays all agents of its learner alike, so it never gets those who compete. Learners that do not learn, or
    start from weights of their own, stay apart.
    """
    apart = any(learner.frozen or learner.weights or not learner.policies for learner in learners.values())
    if len(learners) == 1 or apart or not found.together:
        return learners
    if found.together == "team" and make_world(experiment).kind != "cooperative":
        return learners
    policies = {name: seats for learner in learners.values() for name, seats in learner.policies.items()}
    return {TEAM: dataclasses.replace(next(iter(learners.values())), policies=policies)}


def change_options(
    experiment: Experiment, options: Mapping[str, Any], owner: str, others: Iterable[str] = ()
) -> Experiment:
    """The experiment with other values of these options; unknown ones are refused with the nearest known."""
    own = [field.name for field in dataclasses.fields(Experiment) if field.name not in NOT_OPTIONS]
    hints = get_type_hints(Experiment)
    plain = {name: as_whole(hints[name], value) for name, value in options.items() if name in own}
    changes: dict[str, dict[str, Any]] = {}  # by learner, all at once: some options fit only together
    for name, value in options.items():
        places = {} if name in own else _places(experiment.learners, name)
        for learner, option in places.items():
            changes.setdefault(learner, {})[option] = value
        if name not in own and not places:
            every = (option for learner in experiment.learners.values() for option in _options(learner.algorithm))
            raise _unknown(name, value, [*own, *others, *every], experiment, owner)
    changed = {name: _with_options(experiment.learners[name], given) for name, given in changes.items()}
    return experiment.replace(learners={**experiment.learners, **changed}, **plain)


def _places(learners: Mapping[str, Learner], name: str) -> dict[str, str]:
    """The learners that a name is about, and what the option is called there: `network.hidden`, by `hidden` too."""
    where, _, option = name.rpartition(".")
    among, option = ({where: learners[where]}, option) if where in learners else (learners, name)
    known = {learner: _options(one.algorithm) for learner, one in among.items()}
    return {learner: options[option] for learner, options in known.items() if option in options}


def _options(algorithm: Any) -> dict[str, str]:
    """The options of an algorithm by name, those of its network with and without the prefix; what they are there."""
    own = {field.name: field.name for field in dataclasses.fields(algorithm) if field.name != "network"}
    if not any(field.name == "network" for field in dataclasses.fields(algorithm)):
        return own
    inner = [field.name for field in dataclasses.fields(algorithm.network)]
    dotted = {f"network.{name}": f"network.{name}" for name in inner}
    return {name: f"network.{name}" for name in inner} | dotted | own | {"network": "network"}


def _with_options(learner: Learner, options: Mapping[str, Any]) -> Learner:
    algorithm: Any = learner.algorithm
    if "network" in options:
        algorithm = dataclasses.replace(algorithm, network=options["network"])
    whole = {}
    for option, value in options.items():
        if option != "network":
            holder = algorithm.network if option.startswith("network.") else algorithm
            whole[option] = as_whole(get_type_hints(type(holder))[option.removeprefix("network.")], value)
    return dataclasses.replace(learner, algorithm=with_options(algorithm, whole))


def _unknown(name: str, value: Any, known: Sequence[str], experiment: Experiment, owner: str) -> OptionError:
    """Where an option is not known: it may be the world's, or called otherwise in other libraries, or misspelt."""
    world = innermost(make_world(experiment))
    if dataclasses.is_dataclass(world) and name in [field.name for field in dataclasses.fields(world)]:
        return OptionError(
            f"{owner}: {name} is an option of {experiment.env}, not of the training: write env={{{name!r}: {value!r}}}"
        )
    by_dashes = {option.replace("_", "-"): option for option in known}
    near = meant_by(name.replace("_", "-").lower(), by_dashes) or difflib.get_close_matches(name, known, 3, 0.6)
    plain = list(dict.fromkeys(option.removeprefix("network.") for option in near))
    hint = f"Did you mean {' or '.join(map(repr, plain))}?" if plain else f"Known: {', '.join(sorted(set(known)))}."
    return OptionError(f"{owner}: unknown option {name!r}. {hint}")


def take(config: Any, options: dict[str, Any], leave: Sequence[str] = ()) -> dict[str, Any]:
    """Takes what is a field of a dataclass out of `options`, whole numbers as such."""
    hints, leave = get_type_hints(config), (*leave, "experiment", "over")
    names = [field.name for field in dataclasses.fields(config) if field.name not in leave and field.name in options]
    return {name: as_whole(hints[name], options.pop(name)) for name in names}


def as_whole(hint: Any, value: Any) -> Any:
    """A whole number written as a float, 2e6, where whole numbers are wanted; all else stays as it is."""
    wanted = {hint, *get_args(hint)}
    return int(value) if int in wanted and float not in wanted and _is_whole(value) else value


def _is_whole(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()


def freeze_learners(experiment: Experiment, names: Sequence[str], option: str) -> Experiment:
    """The experiment with these learners frozen. option: what a user calls it, for errors."""
    learners = dict(experiment.learners)
    for text in names:
        name = _learner_named(text, learners, option)
        learners[name] = dataclasses.replace(learners[name], frozen=True)
    if all(learner.frozen for learner in learners.values()):
        raise OptionError("every learner is frozen: nothing would be trained. Leave one to learn.")
    return experiment.replace(learners=learners)


def give_weights(experiment: Experiment, runs: Mapping[str, str | Path] | str | Path, option: str) -> Experiment:
    """The experiment with learners that start from the weights of these runs; a path alone is for the only learner."""
    learners = dict(experiment.learners)
    if isinstance(runs, str | Path):
        if len(learners) > 1:
            raise OptionError(f"{option}: whose? Name the learner: {', '.join(learners)}")
        runs = dict.fromkeys(learners, runs)
    for text, run in runs.items():
        name, place = _learner_named(text, learners, option), str(find_run(run))
        trust(place)
        learners[name] = dataclasses.replace(learners[name], weights=place)
    return experiment.replace(learners=learners)


def _learner_named(text: str, learners: dict[str, Learner], option: str) -> str:
    """The learner that a user means by its name or by the name of its only policy."""
    if text in learners:
        return text
    for name, learner in learners.items():
        if text not in {seat.partition("[")[0] for seats in learner.policies.values() for seat in seats}:
            continue
        if len(learner.policies) == 1 and len(next(iter(learner.policies.values()))) == 1:
            return name
        raise OptionError(
            f"{option} {text}: the learner {name!r} plays others too. Name it instead, or add --sharing group."
        )
    raise OptionError(f"{option}: {unknown_name('learner', text, learners)}")
