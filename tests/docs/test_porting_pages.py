"""The pages about environments and loops of other libraries: what they show runs, and is what the examples are."""

import contextlib
import io
import re
import runpy

import pytest

from .pages import BLOCK, ROOT, anchors, blocks, call, links, read, run, shrink_python

PAGES = ("bridges/rllib.md", "bridges/jaxmarl.md")
EXAMPLES = {
    "from_rllib.py": "bridges/rllib.md",
    "from_jaxmarl.py": "bridges/jaxmarl.md",
    "own_loop.py": "bridges/jaxmarl.md",
    "meet_env.py": "bridges/index.md",
}
OWN = "## An environment of your own in Python\n"


def own_section() -> str:
    """The part of the bridges' page about environments of one's own."""
    return read("bridges/index.md").split(OWN)[1].split("\n## ")[0]


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("shoal.cli.run_results.report_pictures", lambda *args: {})
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_page_shows_the_example_as_it_is(name):
    shown = [found["text"] for found in BLOCK.finditer(read(EXAMPLES[name]))]
    assert (ROOT / "examples" / name).read_text() in shown


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target in links(read(page)):
        path, _, anchor = target.partition("#")
        file = (ROOT / "docs" / page).parent / path if path else ROOT / "docs" / page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file.read_text()), target


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of the libraries
def test_the_page_about_rllib_runs(place):
    run("bridges/rllib.md")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_page_about_jaxmarl_runs(place, monkeypatch):
    jaxmarl = pytest.importorskip("jaxmarl", reason="JaxMARL is not installed: pip install jaxmarl")
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install matplotlib")
    monkeypatch.setattr(jaxmarl, "make", jaxmarl.make)  # the page changes it, and the list of ids
    known = jaxmarl.registration.registered_envs
    before = list(known)
    try:
        run("bridges/jaxmarl.md")
    finally:
        known[:] = before


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # Gymnasium warns of a name that is registered again
def test_an_environment_of_ones_own(place):
    pytest.importorskip("pettingzoo", reason="PettingZoo is not installed: pip install pettingzoo")
    names: dict = {"__name__": "__main__"}
    for block in blocks(own_section()):
        if block.kind == "python":
            exec(compile(shrink_python(block.text), "bridges/index.md", "exec"), names)
            if "class Guess" in block.text:
                (place / "guess.py").write_text(block.text)
        for words in block.commands:
            call([word for word in words if word != "--open"], 0)
    assert (place / "meet.html").stat().st_size > 10_000
    assert (place / "runs" / "guess" / "config.json").exists()


def test_rllibs_environments_keep_pettingzoos_contract():
    """Agents that skip steps, end alone and end together."""
    pytest.importorskip("pettingzoo", reason="PettingZoo is not installed: pip install pettingzoo")

    class Theirs:
        possible_agents = ("a", "b", 7)

        def reset(self, *, seed=None, options=None):
            self.asked, self.steps = [], 0
            return {"a": 0, "b": 0}, {}

        def step(self, action_dict):
            self.asked.append(set(action_dict))
            self.steps += 1
            return {
                1: ({"a": 1, 7: 1}, {"a": 1.0, "b": 2.0}, {"__all__": False}, {"__all__": False}, {}),
                2: ({"b": 2}, {"a": 3.0}, {"a": True, "__all__": False}, {"__all__": False}, {"b": {"x": 1}}),
                3: ({}, {}, {7: True, "__all__": False}, {"__all__": True}, {}),
            }[self.steps]

    theirs = Theirs()
    env = runpy.run_path(str(ROOT / "examples" / "from_rllib.py"))["FromRLlib"](theirs)
    views, infos = env.reset(seed=0)
    assert (views, infos, env.agents) == ({"a": 0, "b": 0}, {"a": {}, "b": {}}, ["a", "b"])
    views, rewards, terminated, truncated, infos = env.step({"a": 0, "b": 0})
    assert views == {"a": 1, "b": 0, 7: 1}
    assert rewards == {"a": 1.0, "b": 2.0, 7: 0.0}
    assert env.agents == ["a", "b", 7]
    views, rewards, terminated, truncated, infos = env.step(dict.fromkeys(env.agents, 0))
    assert terminated == {"a": True, "b": False, 7: False}
    assert (infos["b"], env.agents) == ({"x": 1}, ["b", 7])
    views, rewards, terminated, truncated, infos = env.step(dict.fromkeys(env.agents, 0))
    assert (terminated, truncated) == ({"b": False, 7: True}, {"b": True, 7: False})
    assert views == {"b": 2, 7: 1}
    assert env.agents == []
    assert theirs.asked == [{"a", "b"}, {"a", 7}, {"b"}]


@pytest.mark.slow
def test_own_loop():
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        runpy.run_path(str(ROOT / "examples" / "own_loop.py"), run_name="__main__")
    first, last = (
        [float(number) for number in re.findall(r"-?\d+\.?\d*", part)]
        for part in re.search(r"seeds: \[(.*)\] at first, \[(.*)\] in the end", out.getvalue()).groups()
    )
    assert len(first) == len(last) == 3
    assert min(b - a for a, b in zip(first, last, strict=True)) > 5
