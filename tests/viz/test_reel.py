"""Films as files: every format can be read back, panels move in step, and bad input is refused."""

import dataclasses
import sys

import numpy as np
import pytest
from tests.viz.test_raster import path

from shoal.core.errors import OptionError
from shoal.viz import reel as films
from shoal.viz.reel import Look, MissingEncoderError, Panel, Reel, Take, make_film

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'shoal-rl[video]'")
SMALL = Look(size=64, fps=15)


def take(steps, value=1.0):
    """An episode of so many steps, in which an agent goes to the right."""
    places = [[0.2 + 0.05 * t, 0.5] for t in range(steps + 1)]
    return Take(path(places), {"agent": value * np.arange(steps + 1)})


def frames_of(file):
    with Image.open(file) as film:
        found = []
        for i in range(film.n_frames):
            film.seek(i)
            found.append(np.array(film.convert("RGB")))
        return found


@pytest.mark.parametrize("ending", ["gif", "webp"])
def test_pictures_come_back(tmp_path, ending):
    file = tmp_path / f"film.{ending}"
    panels = [Panel("a world", "after 3 updates", [take(4)])]
    assert make_film(file, panels, SMALL) == file
    found, wanted = frames_of(file), Reel(panels, SMALL)
    assert len(wanted) == 4 + 12  # a frame a step, and the last one held for 0.8 s
    assert 5 <= len(found) <= len(wanted), "equal frames may be joined"
    for got, index in ((found[0], 0), (found[2], 2), (found[-1], -1)):
        exact = np.asarray(wanted[len(wanted) - 1 if index < 0 else index])
        assert np.abs(got.astype(int) - exact).mean() < (0 if ending == "webp" else 3) + 1e-9
    assert (found[0] != found[3]).any()


def test_mp4_and_png(tmp_path):
    pytest.importorskip("imageio_ffmpeg", reason="imageio-ffmpeg is not installed: pip install 'shoal-rl[video]'")
    panels = [Panel("a world", "", [take(3)])]
    film = make_film(tmp_path / "film.MP4", panels, SMALL).read_bytes()
    assert film[4:8] == b"ftyp"
    assert b"avc1" in film
    (still,) = frames_of(make_film(tmp_path / "film.png", panels, SMALL))
    np.testing.assert_array_equal(still, np.asarray(Reel(panels, SMALL)[14]))


def test_a_png_of_chosen_moments(tmp_path):
    panels = [Panel("a world", "", [take(4)]), Panel("another", "", [take(2)])]
    look = dataclasses.replace(SMALL, at=(0, 2))
    (strip,) = frames_of(make_film(tmp_path / "film.png", panels, look))
    reel = Reel(panels, SMALL)
    wide = reel.size[0]
    for place, frame in ((0, 0), (strip.shape[1] - wide, 2)):
        np.testing.assert_array_equal(strip[:, place : place + wide], np.asarray(reel[frame]))
    with pytest.raises(OptionError, match="at has step 5, but the episode ends with step 4"):
        make_film(tmp_path / "late.png", panels, dataclasses.replace(SMALL, at=(1, 5)))
    with pytest.raises(OptionError, match=r"at chooses the moments of a .png, not of a .webp"):
        make_film(tmp_path / "film.webp", panels, look)
    with pytest.raises(OptionError, match="at most 16 steps, whole numbers from 0"):
        dataclasses.replace(SMALL, at=(-1,))
    assert [path.name for path in tmp_path.iterdir()] == ["film.png"]


def test_panels_move_in_step_and_wait_for_each_other():
    short, long = Panel("short", "", [take(2), take(2)]), Panel("long", "", [take(5), take(1)])
    reel = Reel([short, long], SMALL)
    assert [time for take, time in reel.times if take == 0][:7] == [0, 1, 2, 3, 4, 5, 5]
    assert max(time for take, time in reel.times if take == 1) == 2
    assert reel.size[0] > 2 * 64
    assert not any(side % 2 for side in reel.size)
    left = slice(0, reel.size[0] // 2 - 5)
    pictures = [np.asarray(reel[i]) for i in (1, 2, 3, 4)]
    assert (pictures[0][:, left] != pictures[1][:, left]).any()
    np.testing.assert_array_equal(pictures[2][:, left], pictures[3][:, left])  # it is over, and waits
    assert (pictures[2] != pictures[3]).any()
    assert Reel([short] * 4, SMALL).size[1] > 1.8 * Reel([short], SMALL).size[1], "four are two above two"


def test_speed_and_frames_a_second():
    def count(**look):
        return len(Reel([Panel("", "", [take(12)])], Look(size=64, **look)))

    assert count(fps=30) == 24 + 24
    assert count(fps=30, speed=0.5) == 48 + 24
    assert count(fps=30, speed=2) == 12 + 24
    assert count(fps=15) == 12 + 12


def test_returns_and_titles_are_written():
    small = {"size": 240, "fps": 15}
    one, other = (np.asarray(Reel([Panel("world", "", [take(3, value)])], Look(**small))[3]) for value in (1.0, 2.0))
    changed = np.nonzero((one != other).any(-1))
    assert changed[0].min() > 240, "the return is below the arena"
    assert changed[1].min() > 180, "on the right"
    bare = np.asarray(Reel([Panel("world", "", [take(3)])], Look(bare=True, **small))[3])
    assert bare.shape[0] < 256 < one.shape[0]
    title = np.asarray(Reel([Panel(300 * "x", "<b>\n", [take(3)])], Look(**small))[3])
    assert title.shape == one.shape


def test_pictures_of_environments_that_draw_themselves(tmp_path):
    frames = [np.full((20, 40, 3), 60 * i, np.uint8) for i in range(4)]
    reel = Reel([Panel("theirs", "", [Take(frames)])], Look(size=80, fps=15, bare=True))
    assert reel.size == (80, 40)
    assert [int(np.asarray(reel[i]).mean()) for i in range(4)] == [0, 60, 120, 180]
    assert len(frames_of(make_film(tmp_path / "film.webp", [Panel("", "", [Take(frames)])], SMALL))) >= 4


def test_few_colours_keep_those_of_the_theme(tmp_path):
    panels = [Panel("", "", [take(4)])]
    colours = {tuple(pixel) for frame in frames_of(make_film(tmp_path / "f.webp", panels, Look(64, 15, colours=24)))
               for pixel in frame.reshape(-1, 3)}  # fmt: skip
    assert len(colours) <= 24
    theme = films.THEMES["light"]
    assert {theme.arena, theme.palette[4]} <= colours


@pytest.mark.parametrize(
    ("name", "panels", "look", "words"),
    [
        ("x.avi", [Panel("", "", [take(1)])], {}, r"one that ends with .gif \(GIF\)"),
        ("x.gif", [], {}, "panels must be at least one"),
        ("x.gif", [Panel("", "", [])], {}, "takes must be as many in every panel"),
        ("x.gif", [Panel("", "", [take(1)]), Panel("", "", [take(1)] * 2)], {}, "as many in every panel"),
        ("x.gif", [Panel("", "", [take(12)])], {"fps": 100, "speed": 0.001}, "more than a film has"),
        ("x.gif", [Panel("", "", [Take([])])], {}, "at least one picture"),
    ],
)
def test_what_is_no_film(tmp_path, name, panels, look, words):
    with pytest.raises(OptionError, match=words):
        make_film(tmp_path / name, panels, Look(**look))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "look",
    [{"size": 10}, {"size": 480.0}, {"fps": 0}, {"fps": float("nan")}, {"speed": -1}, {"theme": "x"}, {"colours": 1}],
)
def test_what_is_no_look(look):
    with pytest.raises(OptionError, match=next(iter(look))):
        Look(**look)


def test_missing_encoder_is_said_by_name(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(MissingEncoderError, match=r"need imageio-ffmpeg: pip install 'shoal-rl\[video\]'"):
        make_film(tmp_path / "film.mp4", [Panel("", "", [take(1)])])
    film = make_film(tmp_path / "film.gif", [Panel("", "", [take(1)])], SMALL)
    assert film.read_bytes()[:3] == b"GIF"
