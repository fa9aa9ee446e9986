"""`shoal compare`: what it prints and writes, and what it refuses."""

import json

import pytest

from shoal.cli.commands.compare import _fitting
from shoal.training.compared_runs import flatten


def make_folder(path, algorithm, values, metric="return"):
    """A run folder whose metric has these values, `[rows][seeds]`, every 10 env steps."""
    learners = {"team": {"algorithm": {"name": algorithm, "gamma": 0.9}}}
    experiment = {"env": "mpe/simple_spread", "learners": learners, "total_env_steps": 10 * len(values)}
    experiment |= {"seed": 0, "num_seeds": len(values[0])}
    (path / "checkpoints").mkdir(parents=True)
    (path / "config.json").write_text(
        json.dumps({"format": 1, "shoal": "0", "kind": "training", "experiment": experiment})
    )
    lines = [{"update": i, "env_steps": 10 * i, metric: row} for i, row in enumerate(values, 1)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def folders(tmp_path):
    return (
        make_folder(tmp_path / "runs" / "a", "ppo", [[1.0, 2.0, 3.0]] * 10),
        make_folder(tmp_path / "runs" / "b", "dqn", [[4.0, 5.0, 2.0]] * 10),
    )


def test_the_table(shoal, folders):
    outcome = shoal("compare", *folders, "--baseline", "ppo")
    assert (outcome.code, outcome.err) == (0, "")
    lines = [line.split("│") for line in outcome.out.splitlines() if "│" in line]
    rows = {cells[1].strip(): [cell.strip() for cell in cells[2:]] for cells in lines}
    assert rows["ppo"][:2] == ["3", "2.00"]
    assert rows["dqn"][0] == "3"
    assert rows["dqn"][-2].startswith(f"{(3 + 3 + 1.5) / 9:.2f} (")  # 2 beats 1 and ties 2
    assert outcome.out.startswith("return: mean over the last tenth of the env steps of each run\nmpe/simple_spread")


def test_a_narrow_terminal_has_fewer_columns_and_whole_figures():
    names = ["run", "seeds", "IQM", "95 % interval", "mean", "median", "worst", "best", "better than ppo"]
    rows = [["mappo", "5", "-24.9", "-25.0 to -24.7", "-24.9", "-24.9", "-25.0", "-24.7", "1.00 (1.00 to 1.00)"]]
    assert _fitting(names, rows, 160) == list(range(9))
    assert [names[i] for i in _fitting(names, rows, 81)] == [*names[:4], "median", "worst", names[-1]]
    assert [names[i] for i in _fitting(names, rows, 80)] == [*names[:4], "worst", names[-1]]
    assert [names[i] for i in _fitting(names, rows, 40)] == [*names[:4], names[-1]]


def test_groups_are_called_what_a_paper_calls_them(shoal, folders, tmp_path):
    words = (
        "--label",
        "ppo=IPPO",
        "--label",
        "dqn=IQL (ε = 0.1)",
        "--baseline",
        "ppo",
        "--out",
        tmp_path / "table.tex",
    )
    outcome = shoal("compare", *folders, *words)
    assert (outcome.code, outcome.err) == (0, "")
    assert "better than IPPO" in outcome.out
    assert "ppo" not in outcome.out.replace(str(tmp_path), "").split("table.tex")[0].replace("IPPO", "")
    assert "IPPO &" in (tmp_path / "table.tex").read_text()


def test_json(shoal, folders):
    outcome = shoal("compare", *folders, "--json", "--by", "run", "--at", "0.1k")
    found = json.loads(outcome.out)
    assert found["panels"]["mpe/simple_spread"]["final"]["a"]["iqm"] == 2.0
    assert found["panels"]["mpe/simple_spread"]["improvement"]["groups"] == ["a", "b"]
    assert found["panels"]["mpe/simple_spread"]["improvement"]["low"][0][0] is None
    assert found["scores"]["score"] == [1.0, 2.0, 3.0, 4.0, 5.0, 2.0]
    assert (found["at"], found["notes"]) == (100, [])


def test_files(shoal, folders, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install matplotlib")
    monkeypatch.chdir(tmp_path)
    for name, start in (("final.csv", b"env,group"), ("t.tex", b"% return"), ("m.json", b'{"mpe": {"simple_spread"')):
        assert shoal("compare", *folders, "--out", name).out.splitlines()[-1] == name
        assert (tmp_path / name).read_bytes().startswith(start)
    shoal("compare", *folders, "--out", "x.svg", "--picture", "final")
    assert b"<svg" in (tmp_path / "x.svg").read_bytes()


def test_one_seed_and_names_that_would_steer_a_terminal(shoal, tmp_path):
    run = make_folder(tmp_path / "a\x1b[31m", "ppo", [[1.0]] * 10)
    outcome = shoal("compare", run, "--by", "run")
    assert outcome.code == 0
    assert "\x1b" not in outcome.out
    assert "n/a" in outcome.out
    assert "one seed only" in outcome.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--metric", "retrun"], "a: unknown metric 'retrun'. Did you mean 'return'?"),
        (["--by", "gama"], "unknown setting 'gama'. Did you mean 'gamma' or"),
        (["--by", "learners"], "'learners' holds several settings; choose one: learners.team.algorithm.gamma"),
        (["--at", "soon"], "--at must be 'end' or a number of env steps, such as 1e6 or 500k, got 'soon'"),
        (["--at", "1M"], "a has a return up to 100 env steps, and cannot be judged at 1,000,000"),
        (["--at", "0"], "at must be 'end' or a whole number of env steps, got 0"),
        (["--baseline", "pqn"], "unknown baseline 'pqn'"),
        (["--label", "pqn=PQN"], "unknown group 'pqn'"),
        (["--label", "ppo=dqn"], "two groups would be called 'dqn'; give each a label of its own"),
        (["--label", "ppo= "], "labels['ppo'] must be a text, got ' '"),
        (["--label", "ppo"], "--label must be GROUP=TEXT, once for a group, as in ppo=IPPO, got 'ppo'"),
        (["--label", "ppo=A", "--label", "ppo=B"], "once for a group, as in ppo=IPPO, got 'ppo=B'"),
        (["--digits", "99"], "digits must be a whole number up to 15, got 99"),
        (["--out", "x.doc"], "x.doc must end in one of .png, .svg, .pdf, .csv, .tex, .md, .json, or be a folder"),
        (["--picture", "final"], "--picture is for the file of --out: add --out, or leave it out"),
        (["--out", "x.png", "--picture", "curve"], "unknown picture 'curve'. Did you mean 'curves'"),
        (["--metrics", "return"], "unknown option --metrics. Did you mean --metric"),
        (["tests/nowhere"], "tests/nowhere is not a run folder: no such folder"),
    ],
)
def test_what_is_refused(shoal, folders, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    outcome = shoal("compare", *folders, *words)
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.out == "" or "--digits" in words
    assert not (tmp_path / "x.png").exists()


def test_no_run_at_all(shoal):
    outcome = shoal("compare")
    assert (outcome.code, outcome.out) == (2, "")
    assert "no run was named, as in `shoal compare runs/a runs/b`" in outcome.err
    assert flatten({"a": {"b": [1, 2]}, "c": None}) == {"a.b": "1,2", "c": "none"}
