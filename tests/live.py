"""Real processes on loopback: Flower's SuperLink with a run, and clients that join it."""

import hashlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from flwr.cli.build import build_fab_from_files
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import ListRunsRequest, StartRunRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from shared.config import RunConfig

ROOT = Path(__file__).parents[1]
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONPATH": str(ROOT),
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
}
_SECONDS = 120.0
_POLL = 0.2


def bundle() -> bytes:
    """The app as a SuperLink ships it."""
    files: dict[str, bytes | Path] = {"pyproject.toml": ROOT / "pyproject.toml"}
    for package in ("server", "client", "shared"):
        for path in sorted((ROOT / package).rglob("*")):
            if path.suffix in {".py", ".toml"}:
                files[path.relative_to(ROOT).as_posix()] = path
    data: bytes = build_fab_from_files(files)[0]
    return data


class SuperLink:
    """Flower's server process, without TLS."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self._folder = folder
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(
                ["flower-superlink", "--insecure", "--port", self.address.split(":")[1]],
                cwd=self._folder,
                env={**os.environ, **QUIET, "FLWR_HOME": str(self._folder)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def begin(self, config: RunConfig) -> int:
        """Start a run."""
        data = bundle()
        fab = Fab(hashlib.sha256(data).hexdigest(), data, {})
        request = StartRunRequest(
            fab=fab_to_proto(fab), override_config=user_config_to_proto(config.flat())
        )
        for _ in patience("the SuperLink to answer"):
            assert self.process.poll() is None, self.said()
            try:
                with self._control() as control:
                    return int(control.StartRun(request).run_id)
            except httpx.TransportError:
                continue
        raise AssertionError

    def finished(self, run: int) -> bool:
        with self._control() as control:
            status = control.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
        return bool(status.status == "finished")

    def said(self) -> str:
        return (self._folder / "log").read_text()[-4000:]

    @contextmanager
    def _control(self) -> Iterator[ControlHttpClient]:
        client = ControlHttpClient.from_server_address(
            self.address,
            insecure=True,
            root_certificates=None,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )
        try:
            yield client
        finally:
            client.close()


def patience(what: str, seconds: float = _SECONDS) -> Iterator[None]:
    """Iterate until the caller has what it waits for; an error after so many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(_POLL)
    raise AssertionError(f"waited {seconds:.0f} s for {what}")


def end(process: "subprocess.Popen[bytes]") -> int:
    """Ask a process to end, and see that it does."""
    if process.poll() is None:
        process.terminate()
    try:
        return process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        raise


def client_up(superlink: str, folder: Path, *options: str) -> "subprocess.Popen[bytes]":
    """Start `samara client up`, its output in a file beside its folder."""
    log = folder.with_suffix(".log").open("ab")
    with log:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "samara", "client", "up", "--insecure"),
                *("--superlink", superlink, "--name", folder.name, "--home", str(folder)),
                *options,
            ],
            cwd=folder.parent,
            env={**os.environ, **QUIET},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
