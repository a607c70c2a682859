"""The container image: the files in it, and a server with two clients by compose.yaml."""

import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
from helpers import ROOT
from live import attempts

from benchmarks.faults.ports import free_port

SETTINGS = {
    "rounds": 2,
    "steps": 2,
    "queries": 4,
    "batch": 8,
    "personal.rounds": 0,
}
SMALL = f"""services:
  server:
    command: >-
      server up --run /field --name server
      {" ".join(f"--set {key}={value}" for key, value in SETTINGS.items())}
"""
ENGINES = {"docker": ["docker", "compose"], "podman": ["podman-compose"]}


def output_of(*command: str, seconds: int = 600) -> str:
    """Return the output of a command, which must exit with status 0."""
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert ended.returncode == 0, f"{' '.join(command)}\n{ended.stdout}{ended.stderr}"
    return ended.stdout


def fails(*command: str) -> bool:
    """Return whether a command is missing or fails."""
    if shutil.which(command[0]) is None:
        return True
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode != 0


@dataclass(frozen=True)
class Compose:
    """compose.yaml with a project name of its own, and with few rounds."""

    engine: str
    project: str
    small: Path

    def __call__(self, *words: str, seconds: int = 600) -> str:
        files = ("-f", str(ROOT / "compose.yaml"), "-f", str(self.small))
        compose = ENGINES[self.engine]
        return output_of(*compose, "-p", self.project, *files, *words, seconds=seconds)

    def container(self, service: str) -> str:
        labels = {"project": self.project, "service": service}
        chosen = [f"--filter=label=com.docker.compose.{key}={labels[key]}" for key in labels]
        return output_of(self.engine, "ps", "--all", "--quiet", *chosen).split()[0]


@pytest.fixture
def compose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Compose]:
    engine = next((name for name in ENGINES if not fails(name, "info")), None)
    if engine is None:
        pytest.skip("neither docker nor podman runs here")
    if fails(*ENGINES[engine], "version"):
        pytest.skip(f"{' '.join(ENGINES[engine])} is missing")
    if fails(engine, "image", "inspect", "samara"):
        pytest.skip(f"no image: {engine} build -f Containerfile -t samara .")
    monkeypatch.setenv("PORT", str(free_port()))
    monkeypatch.setenv("COMPOSE_IGNORE_ORPHANS", "1")
    (tmp_path / "small.yaml").write_text(SMALL)
    composed = Compose(engine, f"samara-{uuid4().hex[:8]}", tmp_path / "small.yaml")
    try:
        yield composed
    finally:
        composed("down", "--volumes")


@pytest.mark.exhaustive
def test_a_server_and_two_clients_in_containers_end_in_one_digest(compose: Compose) -> None:
    compose("up", "--detach", "--no-build")
    state = ("inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}")
    for service in ("server", "kitchen", "garden"):  # clients hear of the end of the run
        for _ in attempts(f"the end of {service}", 1800):
            if output_of(compose.engine, *state, compose.container(service)) == "exited 0\n":
                break
    printed = compose(
        "run", "--rm", "--no-deps", "-T", "server", "server", "check", "--replay", "/field"
    )
    assert "2 rounds" in printed
    digest = printed.split("ends in ")[1][:10]  # as many digits as a narrow table shows
    for client in ("kitchen", "garden"):
        again = ("run", "--rm", "--no-deps", "-T")
        assert digest in compose(*again, client, "client", "status", "--home", "/client")
        keys = compose(*again, "--entrypoint", "ls", client, "-l", "/client")
        assert "-rw------- 1 samara" in next(x for x in keys.splitlines() if "own.key" in x)
    alone = ("run", "--rm", "--no-deps", "-T", "--entrypoint", "ls", "server", "/field/keys")
    assert sorted(compose(*alone).split()) == ["garden.json", "kitchen.json"]  # no private key


def test_an_image_is_built_from_the_product_alone() -> None:
    lines = (ROOT / ".dockerignore").read_text().split("\n")
    taken = {line[1:] for line in lines if line.startswith("!")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    linked = {path.name for path in (ROOT / "samara").iterdir() if path.is_symlink()}
    assert taken == {"pyproject.toml", "constraints.txt", "samara"} | linked | {
        project["project"]["readme"],
        *project["project"]["license-files"],
    }
    assert "*" in lines
