"""`shoal watch`: films of one run, of several side by side, and the page of how a run learnt."""

import json
import re

import pytest

from shoal.cli.commands.watch import name_films
from shoal.training.scene_files import read_scene, read_scenes
from tests.cli.conftest import SMALL, assert_refused

pytest.importorskip("PIL", reason="Pillow is not installed: pip install 'shoal-rl[video]'")


def test_films_of_one_run_and_of_two(shoal, world, run, trained, tmp_path):
    small = ["--import", world, "--size", "64", "--fps", "15"]
    outcome = shoal("watch", run, "--webp", "--episodes", "2", *small)
    assert outcome.code == 0, outcome.err
    assert "film.webp" in outcome.out
    alone = (run / "film.webp").read_bytes()
    assert (alone[:4], alone[8:12]) == (b"RIFF", b"WEBP")
    film = tmp_path / "both.gif"
    told = shoal(
        "watch", run, trained, "--gif", film, "--opponent", "prey=random", "--theme", "dark", "--json", *small
    ).json
    assert told["films"] == [str(film)]
    assert told["updates"] == [3, 3]
    width, height = (int.from_bytes(film.read_bytes()[i : i + 2], "little") for i in (6, 8))
    assert width > 2 * 64
    assert width > height


def test_names_of_films():
    assert name_films(["run", "--webp"]) == ["run", "--webp="]
    assert name_films(["--webp", "run", "--gif", "x.GIF"]) == ["--webp=", "run", "--gif", "x.GIF"]
    assert name_films(["run", "--mp4=x.mp4", "--size", "64"]) == ["run", "--mp4=x.mp4", "--size", "64"]


def test_what_is_no_film_is_refused(shoal, world, trained, tmp_path):
    def watch(*args):
        return shoal("watch", trained, "--import", world, *args)

    assert_refused(watch("--webp", tmp_path / "x.gif"), "a file that ends with .webp")
    assert_refused(watch("--size", "64"), "--size is for films", "--webp")
    assert_refused(watch(trained), "a second run", "is for films")
    assert_refused(watch("--webp", "--open"), "--open is for the page")
    assert_refused(watch("--webp", "--size", "3"), "from 64 to 4096, got 3")
    assert_refused(watch("--webp", "--episodes", "0"), "episodes must be a whole number from 1")
    assert_refused(watch("--history"), "has kept no scenes", "they take longer than 20 s", "--scenes")
    assert_refused(watch("--history", "--explore"), "leave out --explore")
    assert not list(tmp_path.iterdir())


KINDS = {
    "sweep": (["--over", "learning-rate=1e-3,1e-2", "--measure", "return/hunter", *SMALL], "point "),
    "pbt": (
        [
            "--over",
            "learning-rate=1e-3:1e-2",
            "--members",
            "2",
            "--interval",
            "1",
            "--measure",
            "return/hunter",
            *SMALL,
        ],
        "member ",
    ),
    "evolve": (["--population", "2", "--generations", "3", "--evolve", "hunter"], ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("command", KINDS)
def test_scenes_of_many_that_train_side_by_side_are_a_page(shoal, world, tmp_path, command):
    """Also of a sweep, of whose points no single one can be watched otherwise."""
    args, label = KINDS[command]
    told = ["--import", world, "--run-dir", tmp_path / "run"]
    outcome = shoal(command, "test/tiny", *told, "--scenes", "3", *args)
    assert outcome.code == 0, outcome.err
    told = shoal("watch", tmp_path / "run", "--import", world, "--history", "--json").json
    assert told["points"] == 3
    points = [read_scene(point.path) for point in read_scenes(tmp_path / "run")]
    assert all(point["label"].startswith(label) for point in points)
    assert points[-1]["label"].count("(best)") == bool(label)


def test_scenes_of_a_run_are_a_page(shoal, world, tmp_path):
    folder = tmp_path / "run"
    assert shoal("train", "test/tiny", "--import", world, "--run-dir", folder, "--scenes", "3", *SMALL).code == 0
    told = shoal("watch", folder, "--import", world, "--history", "--json").json
    assert told == {"history": str(folder / "history.html"), "points": 3}
    text = (folder / "history.html").read_text()
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])
    assert [point["update"] for point in data["points"]] == [0, 1, 3]
    assert len(data["curve"]["steps"]) == 3
    (folder / "scenes" / "0000000001-32.json").write_text('{"format": 1}')
    assert_refused(shoal("watch", folder, "--import", world, "--history"), "0000000001-32.json is no scene of a run")
