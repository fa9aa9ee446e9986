"""New runs: what a form may say, the command that it stands for, and the processes that are started from it."""

import json
import shlex
import signal
import subprocess
import sys
import time

import pytest
from starlette.testclient import TestClient

from shoal.core.processes import module_command
from shoal.ui import shelf
from shoal.ui.app import make_app
from shoal.ui.form import arguments, choices
from shoal.ui.inventory import read_index
from shoal.ui.launcher import MOST_RUNNING, Launcher
from shoal.ui.started import UNKNOWN, FoundProcess, began_at
from tests.ui.conftest import TOKEN
from tests.ui.folders import make_pbt, make_population, make_run, make_sweep

_BASE = "http://127.0.0.1:8000"
_OWN = {"origin": _BASE}
_WAITING = (sys.executable, "-c", "import sys, time; print(sys.argv[1:], flush=True); time.sleep(300)")
_DEAF = (
    *(sys.executable, "-c"),
    "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('deaf', flush=True); time.sleep(300)",
)

_LEFT_TO_THE_TERMINAL = {
    *("--import", "--import-policies", "--weights", "--freeze", "--wrap"),
    *("--run-dir", "--log", "--mirror", "--json", "--dry-run", "--keep-checkpoints", "--env-workers", "--env-timeout"),
    *("--cluster", "--workers", "--worker-cpus", "--worker-gpus", "--hosts", "--host-index", "--coordinator"),
    *("--recipe", "--actors", "--learners", "--backups", "--max-staleness", "--max-divergence", "--shards", "--queue"),
    *("--task-timeout", "--retries", "--commit-seconds", "--actor-cpus", "--learner-cpus"),
    *("--actor-gpus", "--learner-gpus"),
}
"""Options of commands that make runs that the form has not."""
_RANGE = "learning_rate=1e-4:1e-2"
_FEW = {"--num-envs": "16", "--num-steps": "16", "--total-env-steps": "1024", "--algo.network.hidden": "8 8"}
_SHORT = [
    ("sweep", "control/cartpole", {"--over": f"{_RANGE}:2:log clip_eps=0.1,0.2", **_FEW}, "tuning"),
    ("pbt", "control/cartpole", {"--over": f"{_RANGE}:log", "--members": "4", "--interval": "1", **_FEW}, "tuning"),
    ("evolve", "control/cartpole", {"--strategy": "ga", "--population": "16", "--generations": "2"}, "run"),
    ("psro", "matrix/rock_paper_scissors", {"--oracle": "exact", "--iterations": "2"}, "population"),
    ("league", "psro/rock_paper_scissors", {"--iterations": "2", "--exploit-every": "1", **_FEW}, "population"),
]
"""One short run of each kind but `train`, and the screen that shows it."""


@pytest.fixture
def app(tmp_path):
    """A server over an empty folder; what it starts is ended with the test."""
    app = make_app(tmp_path / "runs", TOKEN)
    app.state.launcher.program = _WAITING
    yield app
    for one in app.state.launcher._started.values():
        one.process.kill()
        one.process.wait()


@pytest.fixture
def client(app):
    return TestClient(app, _BASE, headers={"authorization": f"Bearer {TOKEN}"})


def _post(client, path, body):
    answer = client.post(path, json=body, headers=_OWN)
    assert answer.status_code == 200, answer.text
    return answer.json()


def _wait(client, condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition(found := client.get("/api/started").json()["started"][0]):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


def test_every_target_has_a_form():
    """Each option has a name in the index; none of them imports, reads or writes another file."""
    for target in read_index()["targets"]:
        found = choices("train", target, {})
        assert [one.flag for one in found][:2] == ["--num-envs", "--num-steps"], target
        flags = {one.flag for one in found}
        assert len(flags) == len(found), target
        assert not flags & {"--import", "--weights", "--run-dir", "--log", "--cluster", "--wrap", "--hosts", "--json"}
    assert "--algo.buffer-size" in {one.flag for one in choices("train", "mpe/simple_spread", {"--algo": "qmix"})}
    off = {one.flag: one.off for one in choices("train", "mpe/simple_tag", {})}
    assert off["--env.continuous"] == "--env.no-continuous"


def test_every_kind_of_run_has_the_options_of_its_command(client):
    """All but those that need other files, other machines, or more than a text."""
    shown = client.get("/api/targets").json()["kinds"]
    assert [kind["name"] for kind in shown] == ["train", "sweep", "pbt", "evolve", "psro", "league"]
    assert {"name": "pbt", "text": "tune hyper-parameters while training"} in shown
    for kind in read_index()["texts"]["kinds"]:
        found = choices(kind, "mpe/simple_tag", {})
        flags = {flag for one in found for flag in (one.flag, one.off) if flag}
        assert len({one.flag for one in found}) == len(found), kind
        assert all(one.text for one in found if not one.flag.startswith(("--env.", "--algo."))), kind
        left = read_index()["options"]["commands"][kind].keys() - flags
        assert left <= _LEFT_TO_THE_TERMINAL, kind
        assert not flags & _LEFT_TO_THE_TERMINAL, kind


@pytest.mark.parametrize(
    ("kind", "there", "missing"),
    [
        ("train", {"--num-seeds", "--scenes", "--eval-every"}, {"--over", "--members", "--strategy", "--oracle"}),
        ("sweep", {"--over", "--random", "--num-seeds", "--scenes"}, {"--members", "--strategy"}),
        ("pbt", {"--over", "--members", "--checkpoint-every"}, {"--random", "--num-seeds"}),
        ("evolve", {"--strategy", "--no-common-starts", "--weight-decay"}, {"--num-envs", "--parents", "--over"}),
        ("psro", {"--oracle", "--meta-solver", "--symmetric"}, {"--num-seeds", "--eval-every", "--exploit-every"}),
        ("league", {"--exploit-every", "--iterations"}, {"--meta-solver", "--oracle"}),
    ],
)
def test_a_kind_of_run_has_no_other_options(kind, there, missing):
    found = choices(kind, "mpe/simple_tag", {})
    flags = {flag for one in found for flag in (one.flag, one.off) if flag}
    assert there <= flags
    assert not missing & flags


def test_what_follows_from_other_options():
    ga = {one.flag: one for one in choices("evolve", "control/cartpole", {"--strategy": "ga"})}
    assert "--parents" in ga
    assert "--weight-decay" not in ga
    assert (ga["--std"].section, ga["--population"].section) == ("Algorithm", "Common options")
    assert [flag for flag, one in ga.items() if one.decides] == ["--strategy", "--algo"]
    assert set(ga["--strategy"].values) == {"open_es", "ars", "ga", "erl"}


def test_what_it_means_to_leave_an_option_empty():
    unset = {one.flag: one.unset for kind in ("pbt", "evolve", "psro") for one in choices(kind, "demo", {})}
    assert unset["--members"] == "default: 32"
    assert unset["--common-starts"] == "default: yes"
    assert unset["--greedy"] == "default: no"
    assert unset["--strategy"] == "default: open_es"
    assert unset["--devices"] == "default"
    assert unset["--seed"] == unset["--algo.clip-eps"] == unset["--env.continuous"] == "as the target has it"


def test_a_form_stands_for_a_command(client, tmp_path):
    options = {"--seed": "-3", "--env.no-continuous": True, "--algo": "mappo", "--algo.network.hidden": "32 16"}
    body = {"target": "mpe/simple_tag", "options": options, "name": "mine"}
    words = shlex.split(_post(client, "/api/command", body)["command"])
    assert words == [
        *("shoal", "train", "mpe/simple_tag", "--seed=-3", "--env.no-continuous", "--algo=mappo"),
        *("--algo.network.hidden", "32", "16", f"--run-dir={tmp_path / 'runs' / 'mine'}"),
    ]
    assert not (tmp_path / "runs").exists(), "nothing was started"


@pytest.mark.parametrize(
    ("kind", "target", "options", "words"),
    [
        (
            "sweep",
            "mpe/simple_spread",
            {"--over": "learning_rate=1e-4:1e-2:8:log  clip_eps=0.1,0.2", "--random": "5"},
            ["--over=learning_rate=1e-4:1e-2:8:log", "--over=clip_eps=0.1,0.2", "--random=5"],
        ),
        (
            "pbt",
            "demo",
            {"--over": "a=0:1; reboot", "--members": "4"},
            ["--over=a=0:1;", "--over=reboot", "--members=4"],
        ),
        (
            "evolve",
            "control/cartpole",
            {"--strategy": "ga", "--parents": "8", "--no-common-starts": True},
            ["--strategy=ga", "--parents=8", "--no-common-starts"],
        ),
        ("psro", "cards/kuhn", {"--oracle": "exact", "--symmetric": True}, ["--oracle=exact", "--symmetric"]),
        ("league", "psro/pong", {"--exploit-every": "2"}, ["--exploit-every=2"]),
    ],
)
def test_a_form_of_each_kind_stands_for_its_command(client, tmp_path, kind, target, options, words):
    body = {"kind": kind, "target": target, "options": options, "name": "mine"}
    typed = shlex.split(_post(client, "/api/command", body)["command"])
    assert typed == ["shoal", kind, target, *words, f"--run-dir={tmp_path / 'runs' / 'mine'}"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "resume"}, "kind must be one of train, sweep, pbt, evolve, psro, league, got 'resume'"),
        ({"kind": "cluster scale"}, "kind must be one of"),
        ({"kind": "--import"}, "kind must be one of"),
        ({"kind": ""}, "kind must be one of"),
        ({"kind": None}, "a kind, which are texts"),
        ({"kind": ["sweep"]}, "a kind, which are texts"),
        ({"options": {"--members": "4"}}, "--members is not an option of shoal train mpe/simple_tag"),
        ({"kind": "league", "options": {"--meta-solver": "nash"}}, "--meta-solver is not an option of shoal league"),
        ({"kind": "psro", "options": {"--import-policies": "run"}}, "--import-policies is not an option"),
        ({"kind": "psro", "options": {"--oracle": "evil:Algorithm"}}, "must be one of exact"),
        ({"kind": "pbt", "options": {"--over": "a=0:1", "--cluster": "auto"}}, "--cluster is not an option"),
        ({"kind": "evolve", "options": {"--workers": "3"}}, "--workers is not an option"),
        ({"kind": "evolve", "options": {"--strategy": "evosax:CMA_ES"}}, "unknown strategy"),
        ({"kind": "evolve", "options": {"--strategy": ["ga"]}}, "unknown strategy"),
        ({"kind": "evolve", "options": {"--strategy": "ars", "--parents": "8"}}, "--parents is not an option"),
        ({"kind": "sweep"}, "shoal sweep needs --over OPTION=VALUES: a float of the algorithm and its values"),
        ({"kind": "pbt", "options": {"--members": "4"}}, "shoal pbt needs --over OPTION=RANGE"),
        ({"kind": "sweep", "options": {"--over": "  "}}, "must be a text"),
        ({"target": "no/such"}, "unknown target"),
        ({"target": "os:system"}, "unknown target"),
        ({"target": "gym:CartPole-v1"}, "unknown target"),
        ({"target": "--import"}, "unknown target"),
        ({"target": None}, "needs a target"),
        ({"options": ["--seed"]}, "options by their names"),
        ({"options": {"--import": "evil.py"}}, "--import is not an option"),
        ({"options": {"--import=evil.py": True}}, "is not an option"),
        ({"options": {"--weights": "a=b"}}, "--weights is not an option"),
        ({"options": {"--run-dir": "/etc"}}, "--run-dir is not an option"),
        ({"options": {"--cluster": "auto"}}, "--cluster is not an option"),
        ({"options": {"seed": "3"}}, "seed is not an option"),
        ({"options": {"--algo": "evil:Algorithm"}}, "unknown algorithm"),
        ({"options": {"--algo": 3}}, "unknown algorithm"),
        ({"options": {"--algo.critic": "evil"}}, "one of own, global"),
        ({"options": {"--env.continuous": "yes"}}, "must be true"),
        ({"options": {"--seed": True}}, "must be a text"),
        ({"options": {"--seed": ""}}, "must be a text"),
        ({"options": {"--seed": "3\0"}}, "must be a text"),
        ({"options": {"--seed": "3\n--import=x"}}, "must be a text"),
        ({"options": {"--seed": "3" * 500}}, "must be a text"),
        ({"name": "../elsewhere"}, "name must be"),
        ({"name": ".hidden"}, "name must be"),
        ({"name": "a/b"}, "name must be"),
        ({"name": 3}, "name must be a text"),
    ],
)
def test_what_a_form_may_not_say(client, tmp_path, change, words):
    body = {"target": "mpe/simple_tag", "options": {}, "name": ""} | change
    answer = client.post("/api/start", json=body, headers=_OWN)
    assert answer.status_code in (400, 404)
    assert words in answer.json()["error"]
    assert _post(client, "/api/command", body) == {"command": None, "problem": answer.json()["error"]}
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("value", ["3 --import evil.py", "3; reboot", "$(reboot)", "--import=evil.py", "-m"])
def test_a_value_is_one_word_and_never_an_option(value):
    assert arguments("train", "demo", {"--seed": value}) == ["train", "demo", f"--seed={value}"]


def test_several_values_are_never_an_option():
    words = ["--over=--import=evil.py", "--over=-m", "--over=3"]
    assert arguments("sweep", "demo", {"--over": "--import=evil.py -m 3"}) == ["sweep", "demo", *words]


def test_starting_needs_token_origin_and_json(app, client, tmp_path):
    stranger = TestClient(app, _BASE)
    body = {"target": "demo", "options": {}}
    for path in ("/api/start", "/api/stop", "/api/command"):
        assert stranger.post(path, json=body, headers=_OWN).status_code == 403
        assert client.post(path, json=body).status_code == 403
        assert client.post(path, json=body, headers={"origin": "http://evil.example"}).status_code == 403
        text = {**_OWN, "content-type": "text/plain"}
        assert client.post(path, content=json.dumps(body), headers=text).status_code == 415
        assert client.get(path).status_code == 405
    assert not (tmp_path / "runs").exists()


def test_a_training_is_started_followed_and_stopped(app, client, tmp_path):
    started = _post(client, "/api/start", {"target": "demo", "options": {"--seed": "3 x"}, "name": "mine"})
    assert (started["name"], started["status"]) == ("mine", "running")
    found = _wait(client, lambda one: one["tail"])
    folder = tmp_path / "runs" / "mine"
    assert found["tail"].strip() == str(["train", "demo", "--seed=3 x", f"--run-dir={folder}"])
    assert (tmp_path / "runs" / "mine.log").read_text() == found["tail"]
    process = app.state.launcher._started["mine"].process
    again = client.post("/api/start", json={"target": "demo", "name": "mine"}, headers=_OWN)
    assert "choose another name" in again.json()["error"]
    _post(client, "/api/stop", {"name": "mine"})
    assert _wait(client, lambda one: one["status"] != "running")["status"] == "stopped"
    assert process.returncode == -signal.SIGINT
    assert _post(client, "/api/stop", {"name": "mine"})["status"] == "stopped", "nothing is left to be stopped"
    assert client.post("/api/stop", json={"name": "other"}, headers=_OWN).status_code == 404
    assert client.post("/api/stop", json={}, headers=_OWN).status_code == 404


@pytest.mark.parametrize(
    ("kind", "make", "screen"),
    [
        ("train", make_run, "run"),
        ("sweep", make_sweep, "tuning"),
        ("pbt", make_pbt, "tuning"),
        ("psro", make_population, "population"),
        ("league", make_population, "population"),
    ],
)
def test_what_was_started_opens_on_its_screen(client, tmp_path, monkeypatch, kind, make, screen):
    monkeypatch.setattr(shelf, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(shelf, "MOST_SHARE", 1.0)
    needed = {"--over": "learning_rate=1e-4:1e-2"} if kind in ("sweep", "pbt") else {}
    _post(client, "/api/start", {"kind": kind, "target": "demo", "options": needed, "name": "mine"})
    (found,) = client.get("/api/started").json()["started"]
    assert found["command"].startswith(f"shoal {kind} demo ")
    assert found["screen"] == "run", "its folder is not there yet"
    make(tmp_path / "runs" / "mine")
    assert _wait(client, lambda one: one["screen"] == screen)["status"] == "running"


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "target", "options", "screen"), _SHORT)
def test_every_kind_is_run(app, client, tmp_path, kind, target, options, screen):
    """The commands themselves take what the form says."""
    app.state.launcher.program = module_command("shoal")
    _post(client, "/api/start", {"kind": kind, "target": target, "options": options, "name": "mine"})
    found = _wait(client, lambda one: one["status"] != "running", seconds=240)
    assert found["status"] == "finished", found["tail"]
    assert _wait(client, lambda one: one["screen"] == screen)
    address = {"run": "/api/run", "tuning": "/api/tuning", "population": "/api/population"}[screen]
    shown = client.get(address, params={"run": "mine"})
    assert shown.status_code == 200, shown.text
    assert shown.json()["entry"]["status"] == "finished"


def test_a_training_that_does_not_listen_is_ended(app, client):
    app.state.launcher.program = _DEAF
    _post(client, "/api/start", {"target": "demo", "options": {}})
    _wait(client, lambda one: one["tail"])
    name = client.get("/api/started").json()["started"][0]["name"]
    assert _post(client, "/api/stop", {"name": name})["stopping"] is True
    _post(client, "/api/stop", {"name": name})
    assert _wait(client, lambda one: one["status"] != "running")["code"] == -signal.SIGTERM


def test_a_training_that_fails_says_so(app, client):
    app.state.launcher.program = (sys.executable, "-c", "import sys; sys.exit('no such world')")
    _post(client, "/api/start", {"target": "demo", "options": {}})
    found = _wait(client, lambda one: one["status"] != "running")
    assert (found["status"], found["code"], found["tail"].strip()) == ("failed", 1, "no such world")


def test_a_later_server_stops_what_an_earlier_one_started(app, client, tmp_path):
    _post(client, "/api/start", {"target": "demo", "options": {"--seed": "3"}, "name": "mine"})
    before = _wait(client, lambda one: one["tail"])
    later = make_app(tmp_path / "runs", TOKEN)
    there = TestClient(later, _BASE, headers={"authorization": f"Bearer {TOKEN}"})
    assert there.get("/api/started").json()["started"] == [before]
    found = later.state.launcher._started["mine"].process
    process = app.state.launcher._started["mine"].process
    assert (type(found), found.pid) == (FoundProcess, process.pid)
    assert there.post("/api/stop", json={"name": "mine"}, headers=_OWN).status_code == 200
    assert process.wait(20) == -signal.SIGINT
    ended = _wait(there, lambda one: one["status"] != "running")
    assert (ended["status"], ended["code"]) == ("stopped", None)
    assert make_app(tmp_path / "runs", TOKEN).state.launcher.plain() == [], "it has ended: there is nothing to stop"
    assert make_app(tmp_path / "others", TOKEN).state.launcher.plain() == []


def test_who_was_asked_to_end_by_an_earlier_server_is_ended_by_a_later_one(app, client, tmp_path):
    app.state.launcher.program = _DEAF
    _post(client, "/api/start", {"target": "demo", "name": "mine"})
    _wait(client, lambda one: one["tail"])
    _post(client, "/api/stop", {"name": "mine"})
    later = Launcher(tmp_path / "runs")
    assert later.plain()[0]["stopping"] is True
    later.stop("mine")
    assert app.state.launcher._started["mine"].process.wait(20) == -signal.SIGTERM


@pytest.mark.parametrize(
    "change",
    [
        {"began": 12345},  # the number belongs to another process by now
        {"boot": "another"},
        {"pid": 1},
        {"pid": -1},
        {"pid": "all"},
        {"words": "reboot"},
        {"since": None},
        None,
    ],
)
def test_no_other_process_is_taken_for_a_training(app, client, tmp_path, change):
    """And what lies in the folder of the runs has no say in it."""
    _post(client, "/api/start", {"target": "demo", "name": "mine"})
    launcher = app.state.launcher
    file = launcher._memory._file("mine")
    facts = json.loads(file.read_text())
    assert not file.is_relative_to(tmp_path / "runs")
    assert file.parent.stat().st_mode & 0o077 == 0
    for place in (tmp_path / "runs", tmp_path / "runs" / "mine"):
        place.mkdir(exist_ok=True)
        (place / "mine.json").write_text(json.dumps(facts))
    file.write_text("{" if change is None else json.dumps(facts | change))
    assert Launcher(tmp_path / "runs").plain() == []
    assert not file.exists()
    assert launcher.plain()[0]["status"] == "running"


def test_a_process_that_ends_is_not_signalled(tmp_path):
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as process:
        began = began_at(process.pid)
        assert began is not None
        found = FoundProcess(process.pid, began)
        assert found.poll() is None
        with pytest.raises(ProcessLookupError):
            FoundProcess(process.pid, began + 1)
    found.send_signal(signal.SIGTERM)
    assert found.poll() == UNKNOWN
    assert began_at(process.pid) is None
    with pytest.raises(ProcessLookupError):
        FoundProcess(process.pid, began)


def test_names_are_free_and_logs_are_not_overwritten(tmp_path):
    launcher = Launcher(tmp_path)
    first = launcher._name("mpe/simple", "")
    assert first.startswith("mpe_simple-")
    (tmp_path / f"{first}.log").symlink_to(tmp_path / "elsewhere")
    assert launcher._name("mpe/simple", "") not in (first, "")


def test_not_too_many_run_at_a_time(app, client, monkeypatch):
    monkeypatch.setattr("shoal.ui.launcher.MOST_RUNNING", 1)
    assert MOST_RUNNING > 1
    _post(client, "/api/start", {"target": "demo", "options": {}})
    answer = client.post("/api/start", json={"target": "demo", "options": {}}, headers=_OWN)
    assert "1 trainings run already" in answer.json()["error"]
