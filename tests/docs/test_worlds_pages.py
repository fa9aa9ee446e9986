"""The pages of the worlds say what the code says."""

import importlib.util
from pathlib import Path

import pytest

import shoal

ROOT = Path(__file__).parents[2]
SHIPPED = [id for id in shoal.ids() if not id.startswith("test/")]


@pytest.fixture(scope="module")
def builder():
    spec = importlib.util.spec_from_file_location("build_worlds", ROOT / "docs" / "build_worlds.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("id", SHIPPED)
def test_each_world_has_a_page_and_a_film(builder, id):
    file = builder.FOLDER / f"{builder.slug(id)}.md"
    assert file.read_text() == builder.page(id), "run python docs/build_worlds.py"
    film = (builder.FOLDER / "images" / f"{builder.slug(id)}.webp").read_bytes()
    assert (film[:4], film[8:12], b"ANIM" in film[:64]) == (b"RIFF", b"WEBP", True), "run ... --films " + id
    assert len(film) <= builder.LARGEST
    for heading in ("**Rules.**", "**Observation", "**Reward", "**End", "**Source"):
        assert heading in file.read_text(), f"the module's docstring has no {heading}"


def test_the_list_names_every_world_and_its_speed(builder):
    text = (builder.FOLDER / "README.md").read_text()
    assert text == builder.index(), "run python docs/build_worlds.py"
    rows = [line for line in text.splitlines() if line.startswith("| <img")]
    assert len(rows) == len(SHIPPED)
    for row in rows:
        cpu, gpu = (cell.strip() for cell in row.split("|")[-3:-1])
        assert cpu, row
        assert gpu, row


def test_nothing_else_lies_there(builder):
    slugs = {builder.slug(id) for id in SHIPPED}
    families = {"swarm_family"}
    assert {file.stem for file in builder.FOLDER.glob("*.md")} == slugs | families | {"README"}
    assert {file.stem for file in (builder.FOLDER / "images").iterdir()} == slugs


def test_the_page_of_a_family(builder):
    text = (builder.FOLDER / "swarm_family.md").read_text()
    assert text == builder.family("shoal.envs.swarm"), "run python docs/build_worlds.py"
    assert "(swarm_family.md)" in (builder.FOLDER / "swarm_pursuit.md").read_text()
