"""Files for containers and schedulers: they can be parsed, and the program takes every command in them."""

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from shoal.cli.arguments import parse
from shoal.cli.commands.cluster import StatusOptions
from shoal.cli.commands.train import ResumeOptions, TrainOptions
from shoal.cli.runs import hosts_of
from shoal.cli.targets import parse_target

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs/how-to/cluster-slurm-kubernetes.md").read_text()
SCRIPTS = sorted((DEPLOY / "slurm").glob("*.sbatch"))
VARIABLES = {"RUN": "runs/1", "SLURM_NTASKS": "4", "SLURM_PROCID": "3"}
"""What a script's variables may be when a command is called."""


def shell_commands(text: str) -> list[list[str]]:
    """The calls of `shoal` in shell text, as words, with variables filled in."""
    joined = re.sub(r"\\\n\s*", " ", text)
    lines = [line for line in joined.splitlines() if not line.lstrip().startswith("#")]
    found = [match[1] for line in lines if (match := re.search(r"\bshoal ((?:train|resume|cluster) [^']*)", line))]
    filled = [re.sub(r"\$(\w+)", lambda name: VARIABLES[name[1]], command) for command in found]
    return [shlex.split(command) for command in filled]


def accept(words: list[str]):
    """The options of a command as the program reads them."""
    match words:
        case ["train", *rest]:
            return parse_target(TrainOptions, rest, "shoal train").command
        case ["resume", *rest]:
            return parse(ResumeOptions, rest, "shoal resume")
        case ["cluster", "status", *rest]:
            return parse(StatusOptions, rest, "shoal cluster status")
    raise AssertionError(words)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_slurm_scripts(script, monkeypatch):
    text = script.read_text()
    subprocess.run(["bash", "-n", script], check=True)
    commands = shell_commands(text)
    assert [words[0] for words in commands] == ["resume", "train"]
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "node1:4321")
    for words in commands:
        options = accept(words)
        hosts = hosts_of(options)
        if script.stem == "train-hosts":
            assert (hosts.count, hosts.index) == (4, 3)
        else:
            assert hosts is None
    settings = re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", text, re.MULTILINE)
    assert {"nodes", "time", "signal", "requeue"} <= dict(settings).keys()
    assert text.index("#SBATCH --signal") < text.index("set -e")  # Slurm reads none after the first command


def test_a_command_that_does_not_exist_would_be_noticed():
    (words,) = shell_commands('srun shoal train mpe/simple_spread \\\n  --num-enfs 3 --run-dir "$RUN"')
    assert words[-1] == "runs/1"
    with pytest.raises(Exception, match="num-enfs"):
        accept(words)


def test_the_page():
    commands = shell_commands(PAGE)
    assert [words[0] for words in commands] == ["train", "cluster", "resume"]
    for words in commands:
        accept(words)
    assert {path.name for path in SCRIPTS} <= set(re.findall(r"[\w-]+\.sbatch", PAGE))
    for name in re.findall(r"deploy/[\w./-]+\w", PAGE):
        assert (ROOT / name).exists(), name


def test_the_ray_cluster():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install pyyaml")
    volume, cluster = yaml.safe_load_all((DEPLOY / "kubernetes/raycluster.yaml").read_text())
    assert (volume["kind"], cluster["kind"], cluster["apiVersion"]) == (
        "PersistentVolumeClaim",
        "RayCluster",
        "ray.io/v1",
    )
    assert f"ray.io/cluster={cluster['metadata']['name']}" in PAGE
    assert cluster["spec"]["authOptions"] == {"mode": "token"}
    head, (workers,) = cluster["spec"]["headGroupSpec"], cluster["spec"]["workerGroupSpecs"]
    for group in (head, workers):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in pod["volumes"]}
        assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == volume["metadata"]["name"]
        assert container["volumeMounts"][0]["mountPath"] == "/runs"
    cores = workers["replicas"] * int(workers["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"])
    (train,) = [words for words in shell_commands(PAGE) if words[0] == "train"]
    assert cores > int(train[train.index("--actors") + 1])  # and one for the learner


def test_the_image():
    text = (DEPLOY / "Dockerfile").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.search(r"ARG EXTRAS=(\S+)", text)[1].split(",")) <= extras.keys()
    assert set(re.search(r"(\S+)\) extras=\"\$EXTRAS,", text)[1].split("|")) <= extras.keys()
    assert "'ray[default]'" in text  # KubeRay asks its dashboard whether a node is well
    users = re.findall(r"^USER (\S+)$", text, re.MULTILINE)
    assert users == ["1000"]
    for names in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        assert all((ROOT / name).exists() for name in names.split())
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text()
    copied = {name for names in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE) for name in names.split()}
    assert copied == set(re.findall(r"^!(\S+)$", ignored, re.MULTILINE))


@pytest.mark.parametrize(("accelerator", "code"), [("cpu", 0), ("cuda12", 0), ("rocm", 2)])
def test_the_image_takes_accelerators_by_name(accelerator, code):
    """The part of the build that chooses extras, in a shell."""
    chosen = re.search(r"RUN (case .*?esac)", (DEPLOY / "Dockerfile").read_text(), re.DOTALL)[1]
    script = f"ACCELERATOR={accelerator}; EXTRAS=plot; {chosen} && echo $extras"
    done = subprocess.run([shutil.which("sh"), "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stdout.strip() == {"cpu": "plot", "cuda12": "plot,cuda12", "rocm": ""}[accelerator]
