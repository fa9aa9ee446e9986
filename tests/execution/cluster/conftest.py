"""Whole runs on a cluster belong to `make test-all`; the services alone, and what is refused, to `make test`."""

from pathlib import Path

import pytest

QUICK = ("test_services.py", "TestBadInput", "test_advice_by_hand")


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and not any(name in item.nodeid for name in QUICK):
            item.add_marker(pytest.mark.slow)
