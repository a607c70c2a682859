"""Flower's simulation on an existing Ray cluster of two nodes in separate network namespaces.

The second node has a separate folder for Ray's sockets, and a separate cache.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from helpers import files_of
from namespaces import SERVER_ADDRESS, Network, network

from benchmarks.faults.live_run import ROOT
from benchmarks.scale.mixed_run import EVERYBODY, MODEL, TASK, write_messages
from samara.shared.results.result import read_result

pytest.importorskip("ray", reason="the extra samara-fl[ray] is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.exhaustive,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces take root"),
]

CLUSTER, OTHER = f"{SERVER_ADDRESS}:6379", "10.204.0.2"
SCENARIO = "field.toml"
RAY = str(Path(sys.executable).with_name("ray"))
SETTINGS = {
    "rounds": 3,
    "steps": 2,
    "queries": 4,
    "batch": 8,
    "threads": 1,
    "personal.rounds": 2,
    "evaluate.limit": 20,
}


class Cluster:
    """Two Ray nodes with a CPU each."""

    def __init__(self, folder: Path, net: Network, gpus: int) -> None:
        self.folder, self._net, self._gpus = folder, net, gpus
        self._nodes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start both nodes, and wait until each knows the other."""
        (self.folder / SCENARIO).write_text("[data]\nclients = 4\n")
        own = self.folder / "ray"
        own.mkdir()
        head = ["--head", "--port", "6379", "--node-ip-address", SERVER_ADDRESS]
        head += ["--temp-dir", str(own), "--include-dashboard", "false"]
        self._start(self._net.server, head)
        self._wait_for(1)
        other = ["--address", CLUSTER, "--node-ip-address", OTHER]
        private = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs none {own} && exec "$@"', "sh"]
        self._start([*self._net.client(0), *private], other)
        self._wait_for(2)

    def _start(self, behind: Sequence[str], options: Sequence[str]) -> None:
        known = ["--block", "--num-cpus", "1", "--num-gpus", str(self._gpus)]
        with (self.folder / "ray.said").open("ab") as said:
            self._nodes.append(
                subprocess.Popen(
                    [*behind, RAY, "start", *known, "--disable-usage-stats", *options],
                    env={**os.environ, "XDG_CACHE_HOME": str(self.folder / f"{len(self._nodes)}")},
                    stdout=said,
                    stderr=said,
                    start_new_session=True,
                )
            )

    def _wait_for(self, count: int) -> None:
        """Wait until a number of nodes are alive."""
        code = f"import ray; ray.init({CLUSTER!r}, log_to_driver=False); print(len(ray.nodes()))"
        for _ in range(60):
            told = subprocess.run(
                [*self._net.server, sys.executable, "-c", code], capture_output=True, check=False
            )
            if told.stdout.strip() == str(count).encode():
                return
            time.sleep(1)
        raise AssertionError((self.folder / "ray.said").read_text()[-3000:])

    def simulate(self, out: str, **more: Any) -> tuple[int, str, dict[str, float]]:
        """Run `samara simulate` to its end.

        Returns:
            Exit status, output, and the CPU seconds of clients by node.
        """
        command = [sys.executable, "-m", "samara", "simulate", SCENARIO, "--engine", "flower"]
        command += ["--out", out]
        for key, value in {**SETTINGS, **more}.items():
            command += ["--set", f"{key}={value}"]
        said = self.folder / f"{out}.said"
        with said.open("wb") as output:
            run = subprocess.Popen(
                [*self._net.server, *command],
                env={**os.environ, "RAY_ADDRESS": CLUSTER, "PYTHONPATH": str(ROOT)},
                cwd=self.folder,
                stdout=output,
                stderr=output,
            )
        seconds: dict[int, tuple[str, float]] = {}
        while run.poll() is None:
            for process in psutil.process_iter(["cmdline"]):
                if "ray::ClientAppActor" in " ".join(process.info["cmdline"] or []):
                    seconds |= cpu_seconds(process)
            time.sleep(0.5)
        by_node: dict[str, float] = {}
        for node, spent in seconds.values():
            by_node[node] = by_node.get(node, 0.0) + spent
        return run.returncode, said.read_text(), by_node

    def end(self) -> None:
        """End both nodes with all their processes."""
        for node in self._nodes:
            family = psutil.Process(node.pid).children(recursive=True)
            node.terminate()
            psutil.wait_procs(family, 30)
            for process in family:
                if process.is_running():
                    process.kill()
            node.wait()


def cpu_seconds(process: psutil.Process) -> dict[int, tuple[str, float]]:
    """Return the network namespace of a process, and its CPU seconds; nothing after its end."""
    try:
        namespace = os.readlink(f"/proc/{process.pid}/ns/net")
        return {process.pid: (namespace, process.cpu_times().user)}
    except (psutil.NoSuchProcess, FileNotFoundError):
        return {}


@contextmanager
def cluster_of_two(gpus: int = 0) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="w") as folder, network(1) as net:
        cluster = Cluster(Path(folder), net, gpus)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.end()


def test_two_nodes_reach_the_digest_of_one_process() -> None:
    with cluster_of_two() as cluster:
        status, printed, seconds = cluster.simulate("there")
        assert status == 0, printed[-4000:]
        assert len(seconds) == 2, seconds
        assert min(seconds.values()) > 1, seconds
        command = [sys.executable, "-m", "samara", "simulate", SCENARIO, "--out", "here"]
        for key, value in SETTINGS.items():
            command += ["--set", f"{key}={value}"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run(command, cwd=cluster.folder, env=environment, check=True)
        there, here = (read_result(cluster.folder / name) for name in ("there", "here"))
        assert there["final_digest"] == here["final_digest"]
        for client in range(4):
            own = Path("clients") / str(client) / "personal.ledger"
            assert files_of(cluster.folder / "there" / own) == files_of(
                cluster.folder / "here" / own
            )
        print(f"digest {here['final_digest']}, CPU seconds of clients by node: {seconds}")


def test_a_cluster_without_room_or_files_is_refused_before_the_first_round() -> None:
    with cluster_of_two() as cluster:
        data = write_messages(cluster.folder, 0)[EVERYBODY]
        hidden = shutil.copytree(data, cluster.folder / "ray" / "data")
        settings_of = {"model.path": MODEL, "task": TASK, "data.path": str(hidden)}
        for settings, message in (
            ({"model.torch-device": "cuda"}, "no node of the Ray cluster has room for a client"),
            (settings_of, f"node {OTHER} of the Ray cluster lacks {hidden}"),
        ):
            status, printed, _ = cluster.simulate("out", **settings)
            assert status == 1
            assert message in " ".join(printed.split())
            assert "Traceback" not in printed
            assert not (cluster.folder / "out").exists()
