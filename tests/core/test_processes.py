"""Programs of this package in processes of their own, started in a folder that was made to do harm."""

import re
import subprocess
from pathlib import Path

from shoal.core.processes import module_command

_SOURCE = Path(__file__).parents[2] / "src" / "shoal"
_HARM = "open('ran', 'w').close()\n"


def test_nothing_of_the_current_folder_is_imported(tmp_path):
    for name in ("json.py", "argparse.py", "time.py"):
        (tmp_path / name).write_text(_HARM)
    done = subprocess.run(module_command("json.tool", "--help"), cwd=tmp_path, capture_output=True, check=False)
    assert not (tmp_path / "ran").exists()
    assert done.returncode == 0, done.stderr
    assert b"--indent" in done.stdout


def test_there_is_one_way_to_start_a_program_of_this_package():
    """Elsewhere, only Ray is told of a program, which it starts isolated (`-I`)."""
    found = {path.relative_to(_SOURCE).as_posix() for path in _SOURCE.rglob("*.py") if _starts_python(path)}
    assert found == {"core/processes.py", "cluster/transport/ray_join.py"}
    assert '[sys.executable, "-I"' in (_SOURCE / "cluster" / "transport" / "ray_join.py").read_text("utf-8")


def _starts_python(path: Path) -> bool:
    return re.search(r"\bsys\.executable\b", path.read_text("utf-8")) is not None
