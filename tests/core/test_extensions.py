"""What others register, or declare by entry points: found by name, refused in words."""

import dataclasses
import json
from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp
import pytest

import shoal
from shoal.algorithms import ALGORITHMS, DQN, PPO, find_name, register_algorithm
from shoal.algorithms.registry import check_registered
from shoal.cluster import training as cluster
from shoal.cluster.plan import ClusterPlan
from shoal.core import extensions
from shoal.core.algorithm import Algorithm
from shoal.core.errors import OptionError, RunError, UnknownNameError
from shoal.core.registry import import_file
from shoal.networks import MemoryTorso, Network, register_torso
from shoal.networks.own_torsos import TORSOS
from shoal.training import serialise
from shoal.training.experiment import Experiment, Learner
from shoal.training.run import create, open_run

KIT = """
import dataclasses
import flax.linen as nn
import shoal

@shoal.register_algorithm("kit_ppo")
@dataclasses.dataclass(frozen=True)
class KitPPO(shoal.PPO):
    \"\"\"PPO of a kit.\"\"\"
    kit_coef: float = 0.5

@shoal.register_torso("kit_torso")
class KitTorso(nn.Module):
    width: int = 8

    @nn.compact
    def __call__(self, seen):
        return nn.Dense(self.width)(seen)
"""


@pytest.fixture
def kit(tmp_path):
    path = tmp_path / "kit.py"
    path.write_text(KIT)
    return path


def experiment(**network):
    learner = Learner(ALGORITHMS["kit_ppo"](kit_coef=0.25, network=Network(**network)))
    return Experiment("control/cartpole", learners={"l": learner})


def forget(monkeypatch):
    for one in (ALGORITHMS, TORSOS):
        monkeypatch.setattr(one, "table", {n: c for n, c in one.table.items() if not n.startswith("kit_")})


def test_an_imported_file_registers_algorithms_and_torsos_that_round_trip(kit):
    import_file(str(kit))
    one = experiment(torso="kit_torso", torso_options={"width": 4})
    data = json.loads(json.dumps(one.to_dict()))
    assert data["learners"]["l"]["algorithm"]["name"] == "kit_ppo"
    assert data["learners"]["l"]["algorithm"]["kit_coef"] == 0.25
    assert data["learners"]["l"]["algorithm"]["network"]["torso_options"] == {"width": 4}
    assert Experiment.from_dict(data) == one
    assert hash(one.learners["l"].algorithm.network) == hash(Network(torso="kit_torso", torso_options={"width": 4}))
    assert find_name("KIT-PPO").use == "PPO of a kit."


def test_folders_from_before_torsos_had_names_are_read():
    data = Experiment("control/cartpole").to_dict()
    network = data["learners"]["learner"]["algorithm"]["network"]
    del network["torso"], network["torso_options"]
    assert Experiment.from_dict(data) == Experiment("control/cartpole")


@pytest.mark.parametrize(("torso", "missing"), [("mlp", "algorithm 'kit_ppo'"), ("kit_torso", "torso 'kit_torso'")])
def test_a_run_says_which_import_it_needs(torso, missing, kit, tmp_path, monkeypatch):
    import_file(str(kit))
    create(tmp_path / "run", experiment(torso=torso))
    assert open_run(tmp_path / "run").experiment == experiment(torso=torso)
    forget(monkeypatch)
    if torso != "mlp":
        monkeypatch.setitem(ALGORITHMS.table, "kit_ppo", PPO)  # it is there, its torso is not
        monkeypatch.setitem(serialise._FAMILIES, Algorithm, lambda name: OwnOptions)
    with pytest.raises(RunError, match=rf"config.json: unknown {missing}.*--import {kit}"):
        open_run(tmp_path / "run")


@dataclasses.dataclass(frozen=True)
class OwnOptions(PPO):
    kit_coef: float = 0.5


@pytest.mark.parametrize("noted", ["a\nb", "x" * 301, 7, None])
def test_what_a_folder_notes_is_shown_only_if_it_is_a_name(noted, kit, tmp_path, monkeypatch):
    import_file(str(kit))
    create(tmp_path / "run", experiment())
    config = tmp_path / "run" / "config.json"
    data = json.loads(config.read_text()) | {"sources": {"algorithm kit_ppo": noted}}
    config.write_text(json.dumps(data))
    forget(monkeypatch)
    with pytest.raises(RunError, match="name the file that registers it: --import FILE") as caught:
        open_run(tmp_path / "run")
    assert len(str(caught.value).splitlines()) == 1


def test_nothing_is_imported_because_a_folder_names_it(kit, tmp_path, monkeypatch):
    import_file(str(kit))
    create(tmp_path / "run", experiment())
    forget(monkeypatch)
    kit.write_text("raise SystemExit('it was run')")
    for name in ("kit_ppo", "kit:KitPPO", f"{kit}:KitPPO", "os:system"):
        config = tmp_path / "run" / "config.json"
        config.write_text(config.read_text().replace('"name": "kit_ppo"', f'"name": "{name}"'))
        with pytest.raises(RunError, match="unknown algorithm"):
            open_run(tmp_path / "run")


def test_a_file_may_be_imported_again_but_another_may_not_take_its_names(kit, tmp_path):
    import_file(str(kit))
    import_file(str(kit))
    other = tmp_path / "elsewhere" / "kit.py"
    other.parent.mkdir()
    other.write_text(KIT)
    why = f"algorithm name 'kit_ppo' is already taken by {kit}:KitPPO: choose another one for {other}:KitPPO"
    with pytest.raises(OptionError, match=why):
        import_file(str(other))


@pytest.mark.parametrize("name", ["ppo", "mappo", "Kl-PPO", "", 3])
def test_names_that_are_taken_or_no_names_are_refused(name):
    with pytest.raises(OptionError, match=r"already taken by|must be lower-case words, such as 'kl_ppo'"):
        register_algorithm(name)(type("Mine", (PPO,), {}))
    with pytest.raises(OptionError, match=r"already taken by|must be lower-case words, such as 'set_attention'"):
        register_torso("mlp" if name == "ppo" else name if name != "mappo" else "mlp")(Fine)


class Fine(nn.Module):
    def __call__(self, seen):
        return seen


def test_a_class_has_one_name():
    register_algorithm("once")(Registered)
    register_algorithm("once")(Registered)
    with pytest.raises(OptionError, match="Registered is called 'once' already: it cannot be registered as 'twice'"):
        register_algorithm("twice")(Registered)
    check_registered(Registered(), "here")
    newer = register_algorithm("once")(dataclasses.dataclass(frozen=True)(type("Registered", (PPO,), vars(Empty) | {})))
    check_registered(newer(), "here")
    with pytest.raises(OptionError, match=r"of an older class Registered, .* make the algorithm from the new class"):
        check_registered(Registered(), "here")


class Empty:
    __module__ = __name__
    __qualname__ = "Registered"


@dataclasses.dataclass(frozen=True)
class Registered(PPO):
    pass


class Inherits(DQN):
    pass


@dataclasses.dataclass(frozen=True)
class Unregistered(PPO):
    name: ClassVar[str] = "unregistered"


@pytest.mark.parametrize(
    ("algorithm", "why"),
    [
        (
            Inherits(),
            r"Inherits, which is not registered and inherits the name 'dqn' of DQN.*\(\"inherits\"\)",
        ),
        (Unregistered(), "Unregistered, which is not registered: it could not be restored from a run folder"),
    ],
)
def test_a_run_folder_holds_no_class_under_its_parents_name(algorithm, why, tmp_path):
    one = Experiment("control/cartpole", learners={"l": Learner(algorithm)})
    with pytest.raises(OptionError, match=why):
        shoal.train(one, tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Members(Algorithm):
    def init(self, key, spec): ...
    def act(self, params, observation, memory, key, explore): ...


class NotDecorated(PPO):
    extra: float = 1.0


@dataclasses.dataclass(frozen=True)
class NoDefault(PPO):
    extra: float = dataclasses.field(kw_only=True)


@dataclasses.dataclass(frozen=True)
class NotStorable(PPO):
    activation: type = float


@pytest.mark.parametrize(
    ("cls", "why"),
    [
        (Members, "it lacks update, value: see"),
        (NotDecorated, "its options are not visible: write `@dataclasses.dataclass"),
        (NoDefault, "its option extra has no default"),
        (NotStorable, "its option activation is a <class 'type'>, which a run folder cannot store"),
        (Fine, "it must be a class derived from shoal.core.algorithm.Algorithm"),
        (lambda: None, "it must be a class derived from"),
    ],
)
def test_an_algorithm_that_is_none_is_told_what_to_fix(cls, why):
    with pytest.raises(OptionError, match=f"the algorithm 'mine' .*{why}"):
        register_algorithm("mine")(cls)
    assert "mine" not in ALGORITHMS


class NoCall(nn.Module):
    pass


class Needs(nn.Module):
    width: int

    def __call__(self, seen):
        return jnp.ones(self.width)


class NoMemory(MemoryTorso):
    def __call__(self, seen, memory):
        return seen, memory


class Twoarguments(nn.Module):
    def __call__(self, seen, memory):
        return seen


@pytest.mark.parametrize(
    ("cls", "why"),
    [
        (NoCall, r"its method must be `__call__\(self, seen\)`"),
        (Needs, "its option width has no default"),
        (NoMemory, r"it lacks initial_memory\(\)"),
        (Twoarguments, "One that has a memory derives from shoal.networks.MemoryTorso"),
        (PPO, "it must be a class derived from flax.linen.Module"),
    ],
)
def test_a_torso_that_is_none_is_told_what_to_fix(cls, why):
    with pytest.raises(OptionError, match=f"the torso 'mine' .*{why}"):
        register_torso("mine")(cls)


def package(tmp_path, monkeypatch, name, code, points):
    """An installed package, as far as entry points are concerned."""
    (tmp_path / f"{name}.py").write_text(code)
    info = tmp_path / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_installed_packages_declare_algorithms_and_torsos(tmp_path, monkeypatch):
    points = "[shoal.algorithms]\nkit_ppo = own_kit_a:KitPPO\nbroken = own_kit_a:Nowhere\nppo = own_kit_a:KitPPO\n"
    package(tmp_path, monkeypatch, "own_kit_a", KIT, points + "[shoal.torsos]\nkit_torso = own_kit_a:KitTorso\n")
    assert "kit_ppo" in ALGORITHMS
    assert ALGORITHMS["ppo"] is PPO
    one = experiment(torso="kit_torso")
    assert Experiment.from_dict(one.to_dict()) == one
    assert extensions.sources()["algorithm kit_ppo"] == "package own_kit_a"
    said = extensions.problems()
    assert len(said) == 2, said
    assert "the algorithm 'broken' of the package own_kit_a (own_kit_a:Nowhere) cannot be imported: Attr" in said[0]
    assert "the algorithm 'ppo' of the package own_kit_a (own_kit_a:KitPPO) is not used: the name is taken" in said[1]
    with pytest.raises(OptionError, match=r"'broken' of the package own_kit_a .* cannot be imported"):
        find_name("broken")
    with pytest.raises(OptionError, match="'broken' is already taken by own_kit_a:Nowhere"):
        register_algorithm("broken")(type("Mine", (PPO,), {}))


def test_what_cannot_be_imported_stands_in_nobodys_way(tmp_path, monkeypatch):
    points = "[shoal.algorithms]\nbroken = own_kit_d:Nowhere\n[shoal.torsos]\nbroken = own_kit_d:Nowhere\n"
    package(tmp_path, monkeypatch, "own_kit_d", "raise ImportError('gone')", points)
    assert Network(torso="mlp").torso == "mlp"
    assert find_name("ppo").cls is PPO
    with pytest.raises(OptionError, match=r"the recipe a3c needs an algorithm that implements .*Choose --algo a2c, or"):
        cluster.check(Experiment("control/cartpole"), ClusterPlan("a3c"))
    with pytest.raises(OptionError, match=r"the torso 'broken' of the package own_kit_d .* ImportError: gone"):
        Network(torso="broken")


def test_two_packages_of_one_name_are_told_apart(tmp_path, monkeypatch):
    for name in ("own_kit_b", "own_kit_c"):
        package(tmp_path, monkeypatch, name, KIT, f"[shoal.algorithms]\nkit_ppo = {name}:KitPPO\n")
    with pytest.raises(OptionError, match="'kit_ppo' is declared by own_kit_b and own_kit_c: uninstall one of them"):
        find_name("kit_ppo")


def test_what_a_script_registers_is_sent_to_other_processes():
    cls = dataclasses.dataclass(frozen=True)(type("Scripted", (PPO,), {"__module__": "__main__"}))
    register_algorithm("scripted")(cls)
    assert extensions.from_script() == {"algorithm": {"scripted": cls}}
    del ALGORITHMS.table["scripted"]
    extensions.adopt({"algorithm": {"scripted": cls}})
    assert ALGORITHMS["scripted"] is cls


def test_unknown_names_are_unknown():
    with pytest.raises(UnknownNameError, match="unknown torso 'set_atention'"):
        Network(torso="set_atention")
    with pytest.raises(UnknownNameError, match=r"unknown algorithm 'klppo'. Did you mean"):
        find_name("klppo")


def test_classes_of_the_package_are_registered_without_a_look_at_others(monkeypatch):
    """To find entry points takes longer than all else that `import shoal` does."""

    def declared(registry):
        raise AssertionError("entry points were looked for")

    monkeypatch.setattr(extensions.Registry, "declared", declared)
    ALGORITHMS.register("own", "shoal.algorithms.ppo:PPO")
    assert ALGORITHMS.table["own"] == "shoal.algorithms.ppo:PPO"


def test_a_file_finds_what_lies_beside_it(tmp_path):
    (tmp_path / "beside_the_kit.py").write_text("NAME = 'test/beside'\n")
    (tmp_path / "json.py").write_text("raise AssertionError('installed modules come first')\n")
    file = tmp_path / "kit.py"
    file.write_text(
        "import json\n\nimport beside_the_kit\n\nassert beside_the_kit.NAME == 'test/beside'\njson.dumps([])\n"
    )
    import_file(str(file))
