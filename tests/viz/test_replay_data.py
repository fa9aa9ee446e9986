"""What `write_replay` puts into the page: decoded again and compared, without a browser."""

import base64
import errno
import json
import os
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.core.errors import OptionError, RunError
from shoal.core.types import Circles, Labels, Lines, Polygons, Scene
from shoal.viz import write_replay

_NASTY = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1> @data@ &lt; é\u2028"


def _payload(path) -> dict[str, Any]:
    found = re.findall(r'<script type="application/json" id="data">(.*?)</script>', path.read_text("utf-8"), re.DOTALL)
    assert len(found) == 1
    return json.loads(found[0])


def _decode(array: dict[str, Any], length: int) -> np.ndarray:
    raw, shape = base64.b64decode(array["data"]), array["shape"]
    match array["type"]:
        case "u16":
            codes = np.frombuffer(raw, "<u2").reshape(shape)
            values = np.where(codes == 65535, np.nan, array["offset"] + array["scale"] * codes)
        case "u8":
            values = np.frombuffer(raw, np.uint8).reshape(shape)
        case "f32":
            values = np.frombuffer(raw, "<f4").reshape(shape)
        case "bits":
            values = np.unpackbits(np.frombuffer(raw, np.uint8))[: np.prod(shape)].reshape(shape).astype(bool)
    return np.broadcast_to(values, (length, *shape[1:]))


def _swarm(length: int, count: int, seed: int = 0, **changes) -> Scene:
    random = np.random.default_rng(seed)
    fields = {
        "position": np.cumsum(random.normal(0, 0.1, (length, count, 2)), axis=0) + random.uniform(0, 20, (count, 2)),
        "radius": np.full((length, count), 0.3),
        "colour": np.tile(np.arange(count) % 8, (length, 1)),
        "visible": random.random((length, count)) > 0.1,
        "heading": random.uniform(-7, 7, (length, count)),
        "names": tuple(f"fish {i}" for i in range(count)),
    }
    return Scene(bounds=(0.0, 0.0, 20.0, 20.0), circles=Circles(**(fields | changes)))


def test_circles_come_back(tmp_path):
    scene = _swarm(50, 7)
    circles = scene.circles
    assert circles is not None
    write_replay(tmp_path / "replay.html", scene, title="swarm")
    data = _payload(tmp_path / "replay.html")
    stored = {name: _decode(data["circles"][name], 50) for name in ("points", "visible", "colour", "radius", "heading")}
    visible = np.asarray(circles.visible)
    np.testing.assert_array_equal(stored["visible"], visible)
    np.testing.assert_array_equal(stored["colour"], circles.colour)
    span = np.ptp(np.asarray(circles.position)[visible])
    np.testing.assert_allclose(stored["points"][:, :, 0][visible], circles.position[visible], atol=0.51 * span / 65534)
    np.testing.assert_allclose(stored["radius"][visible], 0.3, atol=1e-7)
    turn = (stored["heading"] - circles.heading)[visible]
    np.testing.assert_allclose(np.cos(turn), 1.0, atol=1e-8)
    assert data["circles"]["names"] == list(circles.names)
    assert data["length"] == 50
    assert data["bounds"] == [0.0, 0.0, 20.0, 20.0]


def test_scene_of_a_vmapped_world_comes_back(tmp_path):
    def scene(x: jax.Array) -> Scene:
        one = jnp.ones(1, bool)
        here, wall = jnp.stack([x, 0.5 * x])[None], jnp.array([[[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]])
        return Scene(
            polygons=Polygons(points=wall, colour=jnp.array([5]), visible=one),
            lines=Lines(start=here, end=here + 1.0, colour=jnp.array([9]), visible=one),
            circles=Circles(position=here, radius=jnp.array([0.1]), colour=jnp.array([1]), visible=x[None] < 2.5),
            labels=Labels(position=here, visible=one, text=("here",)),
        )

    write_replay(tmp_path / "replay.html", jax.vmap(scene)(jnp.arange(4.0)), title="all kinds")
    data = _payload(tmp_path / "replay.html")
    assert data["polygons"]["points"]["shape"] == [1, 1, 3, 2]  # it never changes, so it is stored once
    np.testing.assert_allclose(_decode(data["polygons"]["points"], 4)[3, 0], [[0, 0], [1, 0], [0, 1]], atol=1e-4)
    np.testing.assert_allclose(_decode(data["lines"]["points"], 4)[2, 0], [[2, 1], [3, 2]], atol=1e-4)
    assert _decode(data["lines"]["colour"], 4)[0, 0] == 1  # 9 starts over after the palette's 8
    np.testing.assert_allclose(_decode(data["circles"]["points"], 4)[:3, 0, 0, 0], [0, 1, 2], atol=1e-4)
    assert _decode(data["circles"]["visible"], 4)[:, 0].tolist() == [True, True, True, False]
    assert data["circles"]["heading"] is None
    assert data["circles"]["names"] == [""]
    assert data["labels"]["text"] == ["here"]


def test_series_and_episode_ends_come_back(tmp_path):
    values = np.array([0.0, np.nan, -1.5])
    ends = np.array([False, True, False])
    write_replay(tmp_path / "r.html", _swarm(3, 1), title="t", series={"return": values}, episode_ends=ends)
    data = _payload(tmp_path / "r.html")
    assert data["series"][0]["name"] == "return"
    np.testing.assert_array_equal(_decode(data["series"][0]["values"], 3), values)
    assert data["ends"] == [1]


def test_hidden_and_missing_positions_do_not_coarsen_the_others(tmp_path):
    position = np.array([[[1.0, 2.0], [1e9, -1e9], [np.nan, 3.0]]])
    visible = np.array([[True, False, True]])
    scene = _swarm(1, 3, position=position, visible=visible, heading=None)
    write_replay(tmp_path / "r.html", scene, title="t")
    points = _decode(_payload(tmp_path / "r.html")["circles"]["points"], 1)[0, :, 0]
    np.testing.assert_allclose(points[0], [1.0, 2.0], atol=1e-4)
    assert np.isnan(points[1]).all()
    assert np.isnan(points[2, 0])


def test_a_runaway_stays_within_sixteen_worlds(tmp_path):
    position = np.array([[[1.0, 2.0], [1e9, 2.0]]])
    scene = _swarm(1, 2, position=position, visible=np.ones((1, 2), bool))
    write_replay(tmp_path / "r.html", scene, title="t")
    points = _decode(_payload(tmp_path / "r.html")["circles"]["points"], 1)[0, :, 0]
    np.testing.assert_allclose(points, [[1.0, 2.0], [340.0, 2.0]], atol=6e-3)


def test_text_cannot_leave_its_place(tmp_path):
    path = tmp_path / "r.html"
    label = Labels(position=np.zeros((2, 1, 2)), visible=np.ones((2, 1), bool), text=(_NASTY,))
    scene = _swarm(2, 1, names=(_NASTY,)).replace(labels=label)
    write_replay(path, scene, title=_NASTY, subtitle=_NASTY, series={_NASTY: np.zeros(2)})
    page = path.read_text("utf-8")
    plain = tmp_path / "plain.html"
    write_replay(plain, _swarm(2, 1), title="plain")
    for tag in ("<script", "</script", "<img"):
        assert page.count(tag) == plain.read_text("utf-8").count(tag)
    data = _payload(path)
    texts = [data["title"], data["subtitle"], data["circles"]["names"][0], data["labels"]["text"][0]]
    assert texts == [_NASTY] * 4
    assert data["series"][0]["name"] == _NASTY


def test_page_refers_to_nothing_outside(tmp_path):
    write_replay(tmp_path / "r.html", _swarm(2, 1), title="t")
    page = (tmp_path / "r.html").read_text("utf-8")
    addresses = set(re.findall(r"""https?://[^\s"'<>)]+""", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a namespace, never fetched
    assert all(link.startswith("data:") for link in re.findall(r"""(?:src|href)=["']([^"']*)""", page))


def test_110_agents_for_500_frames_stay_small(tmp_path):
    write_replay(tmp_path / "r.html", _swarm(500, 110), title="t", series={"a": np.zeros(500), "b": np.zeros(500)})
    assert (tmp_path / "r.html").stat().st_size < 1_000_000


def test_a_failed_write_harms_nothing(tmp_path, monkeypatch):
    path = tmp_path / "r.html"
    path.write_text("old")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RunError, match=r"r\.html: No space left"):
            write_replay(path, _swarm(2, 1), title="t")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["r.html"]
    with pytest.raises(RunError, match="No such file or directory"):
        write_replay(tmp_path / "missing" / "r.html", _swarm(2, 1), title="t")


@pytest.mark.parametrize(
    ("scene", "options", "message"),
    [
        (Scene(), {}, "define `scene"),
        (_swarm(4, 2), {"fps": 0.0}, "fps must be a number greater than 0, got 0.0"),
        (_swarm(4, 2).replace(bounds=(1.0, 0.0, 1.0, 2.0)), {}, "bounds"),
        (_swarm(4, 2, radius=np.ones(2)), {}, r"circles.radius must be \(4, 2\), got \(2,\)"),
        (_swarm(4, 2, visible=np.ones(2, bool)), {}, "visible"),
        (_swarm(4, 2, names=("a", "b", "c")), {}, "at most 2 names, got 3"),
        (_swarm(4, 2), {"series": {"a": np.zeros(3)}}, r"series\['a'\] must be \(4,\), got \(3,\)"),
        (_swarm(4, 2), {"episode_ends": np.array([3])}, r"bool\[4\], one flag per frame, got 'int64\[1\]'"),
    ],
)
def test_bad_input_is_named(tmp_path, scene, options, message):
    with pytest.raises(OptionError, match=message):
        write_replay(tmp_path / "r.html", scene, title="t", **options)
    assert os.listdir(tmp_path) == []
