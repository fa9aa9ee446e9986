"""Films: pictures inside a page that needs nothing else, and episodes of environments that draw themselves."""

import base64
import json
import os
import re
import struct
import types
import zlib
from pathlib import Path

import numpy as np
import pytest

from shoal.core import registry
from shoal.core.errors import OptionError
from shoal.viz import write_film
from shoal.viz.film import LARGEST, png

FILE = str(Path(__file__).parents[1] / "worlds" / "drift.py")


def decoded(data):
    """The picture in a PNG whose rows are stored as they are; checks every part's checksum."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    parts, at = {}, 8
    while at < len(data):
        (size,), name = struct.unpack(">I", data[at : at + 4]), data[at + 4 : at + 8]
        parts[name] = data[at + 8 : at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0] == zlib.crc32(name + parts[name])
        at += 12 + size
    width, height, depth, colour, *rest = struct.unpack(">IIBBBBB", parts[b"IHDR"])
    assert (depth, colour, rest) == (8, 2, [0, 0, 0])
    rows = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, 3)


def payload(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_pictures_come_out_as_they_went_in(tmp_path):
    frames = [np.random.default_rng(i).integers(0, 256, (3, 5, 3), np.uint8) for i in range(2)]
    write_film(tmp_path / "film.html", frames, title="a<b", subtitle="s", fps=10, series={"return": [0.0, 1.5]})
    page = (tmp_path / "film.html").read_text()
    data = payload(page)
    for frame, text in zip(frames, data["frames"], strict=True):
        np.testing.assert_array_equal(decoded(base64.b64decode(text)), frame)
    assert (data["title"], data["fps"], data["series"]) == ("a<b", 10.0, {"return": [0.0, 1.5]})
    assert "<title>a&lt;b</title>" in page
    assert not re.search(r"(src|href)=\"(?!data:)", page)  # nothing from elsewhere
    large = np.zeros((2 * LARGEST, 7, 3), np.uint8)
    write_film(tmp_path / "film.html", [large], title="large")
    assert decoded(base64.b64decode(payload((tmp_path / "film.html").read_text())["frames"][0])).shape == (
        LARGEST,
        4,
        3,
    )


def test_what_is_no_picture_is_refused(tmp_path):
    with pytest.raises(OptionError, match="a picture must be uint8"):
        png(np.zeros((3, 4), np.uint8))
    with pytest.raises(OptionError, match="at least one picture"):
        write_film(tmp_path / "film.html", [], title="none")


def test_an_environment_is_filmed_by_its_own_render(tmp_path, monkeypatch):
    pytest.importorskip("gymnasium", reason="Gymnasium is not installed: pip install gymnasium")
    from shoal.api.pictures import replay
    from shoal.training.experiment import Experiment

    monkeypatch.setattr(registry, "_files", {})
    registry.import_file(FILE)
    setup = Experiment("gymnasium:Drift-v0", {"length": 4}, num_envs=2, num_steps=2).setup
    page, _ = replay(tmp_path / "replay.html", setup, None, update=3, seed=5, filmed=True)
    assert page is not None
    data = payload(page.read_text())
    pictures = [decoded(base64.b64decode(text)) for text in data["frames"]]
    assert [int((picture[0, :, 2] == 200).sum()) for picture in pictures] == [1, 2, 3, 4, 5]  # to the very end
    (returns,) = data["series"].values()
    assert len(returns) == 5
    assert returns == sorted(returns, reverse=True)
    assert data["subtitle"] == "after 3 updates, 12 environment steps"
    page, why = replay(tmp_path / "replay.html", setup, None, update=3)
    assert (page, why) == (None, "gymnasium:Drift-v0 is drawn by its own library: `shoal watch` films it")


def test_what_cannot_be_filmed_says_how():
    pytest.importorskip("gymnasium", reason="Gymnasium is not installed: pip install gymnasium")
    from shoal.training.experiment import Experiment
    from shoal.training.film import film

    setup = Experiment("gymnasium:CartPole-v1", {"vectorisation_mode": "sync"}, num_envs=2, num_steps=2).setup
    with pytest.raises(
        OptionError, match=r"cannot be filmed: it has no render. An environment .* render_mode='rgb_array'"
    ):
        film(setup, None)


@pytest.mark.parametrize(("options", "driver"), [({}, "dummy"), ({"render_mode": "human"}, None)])
def test_filming_needs_neither_sound_nor_screen(monkeypatch, options, driver):
    pytest.importorskip("gymnasium", reason="Gymnasium is not installed: pip install gymnasium")
    from shoal.training import film
    from shoal.training.experiment import Experiment

    for name in ("SDL_AUDIODRIVER", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(film, "_rendering", lambda setup: setup)
    monkeypatch.setattr(film, "assign_policies", lambda *_: (None, None))
    monkeypatch.setattr(film, "HostStepper", lambda setup, *_: types.SimpleNamespace(setup=setup))
    monkeypatch.setattr(film, "_shoot", lambda *_: (os.environ["SDL_AUDIODRIVER"], os.environ.get("SDL_VIDEODRIVER")))
    setup = types.SimpleNamespace(experiment=Experiment("gymnasium:CartPole-v1", options))
    assert film.film(setup, None) == ("dummy", driver)
    assert not {"SDL_AUDIODRIVER", "SDL_VIDEODRIVER"} & set(os.environ)
