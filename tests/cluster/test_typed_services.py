"""Calls to services are checked by pyright as calls of the class itself are."""

import json
import os
import shutil
import subprocess
import sys

import pytest

CALLS = """
from shoal.cluster.services.coordinator import Coordinator
from shoal.cluster.services.dataset import Item, Queue
from shoal.cluster.services.directory import Services
from shoal.cluster.transport.service import Service

def use(queue: Service[Queue], services: Services, item: Item) -> None:
    good: bool = queue.retry.push(item, 1.0)
    fine: list[Item] = queue.submit(Queue.take, 4, timeout=1.0).result()
    also: int = services.coordinator.retry_until(lambda: False).hello("actor-0")
    queue.once.pusch(item)  # wrong
    queue.retry.push("item")  # wrong
    queue.submit(Queue.take)  # wrong
    queue.submit(Coordinator.hello, "actor-0")  # wrong
    services.coordinator.once.hello()  # wrong
"""


@pytest.mark.slow
def test_pyright_knows_methods_arguments_and_answers(tmp_path):
    beside = os.path.dirname(sys.executable)  # `make` does not put it into the PATH
    pyright = shutil.which("pyright", path=beside) or pytest.skip("pyright is not installed")
    path = tmp_path / "calls.py"
    path.write_text(CALLS)
    command = [pyright, "--pythonpath", sys.executable, "--outputjson", path]
    told = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
    found = {1 + one["range"]["start"]["line"] for one in told["generalDiagnostics"] if one["severity"] == "error"}
    assert found == {number for number, line in enumerate(CALLS.splitlines(), 1) if "# wrong" in line}, told
