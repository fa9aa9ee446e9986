"""Folders of every kind of run, which all tests here copy."""

import pytest

from tests.hostile.templates import KINDS


@pytest.fixture(scope="session")
def templates(tmp_path_factory):
    """Makes each kind of folder when it is first asked for."""
    root, made = tmp_path_factory.mktemp("templates"), {}

    def template(kind):
        if kind not in made:
            made[kind] = KINDS[kind](root / kind)
        return made[kind]

    return template
