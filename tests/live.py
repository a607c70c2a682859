"""Live parts on loopback: Flower's SuperLink with a run, clients that join it, apps of tests."""

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)
from helpers import ROOT

from benchmarks.faults.ports import free_address
from samara.server.live.bundle import build_bundle
from samara.shared.flower_compat import (
    ControlHttpClient,
    Fab,
    ListRunsRequest,
    RegisterNodeRequest,
    RuntimeVersionHttpInterceptor,
    StartRunRequest,
    fab_to_proto,
    user_config_to_proto,
)
from samara.shared.network.certificates import TlsFiles
from samara.shared.settings.config import RunConfig

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONPATH": str(ROOT),
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
}
ONE_SMALL_STEP: dict[str, Any] = {
    "objective": "cross-entropy",
    "steps": 1,
    "queries": 2,
    "batch": 4,
    "learning-rate": 0.01,
    "personal.rounds": 0,
    "evaluate.every": 0,
}
"""Settings of rounds that take almost no time, without any measurement."""
_SECONDS = 120.0
_POLL = 0.2


@contextmanager
def serve_app(app: Any, tls: TlsFiles | None = None) -> Iterator[str]:
    """Serve an app from a thread of this process, by TLS if files are given; yield host:port."""
    certificate, key = (str(tls.certificate), str(tls.key)) if tls else (None, None)
    settings = uvicorn.Config(
        app, "127.0.0.1", 0, ws="none", lifespan="off", log_level="error", access_log=False,
        ssl_certfile=certificate, ssl_keyfile=key,
    )  # fmt: skip
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
            assert thread.is_alive()
        yield f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def make_certificate(folder: Path, days_ahead: int = 0) -> Path:
    """Make a self-signed certificate for 127.0.0.1, with its key in the same file.

    It is valid for two days, around the time that is a given number of days ahead.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    alternative = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    now, day = datetime.now(UTC) + timedelta(days=days_ahead), timedelta(days=1)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now - day, now + day)
        .add_extension(alternative, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / "server.pem"
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.write_bytes(secret + signed.public_bytes(Encoding.PEM))
    return file


class SuperLink:
    """Flower's SuperLink process over TLS, to which only registered keys connect."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.address = free_address()
        self._folder, self.certificate = folder, make_certificate(folder)
        pem = str(self.certificate)
        with (folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *("flower-superlink", "--port", self.address.split(":")[1]),
                    *("--ssl-certfile", pem, "--ssl-keyfile", pem, "--ssl-ca-certfile", pem),
                    "--enable-supernode-auth",
                ],
                cwd=folder,
                env={**os.environ, **QUIET, "FLWR_HOME": str(folder)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def register(self, key: Path) -> None:
        """Register the public half of a private key."""
        public = load_ssh_private_key(key.read_bytes(), None).public_key()
        pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        with self._control() as control:
            control.RegisterNode(RegisterNodeRequest(public_key=pem, name=key.stem))

    def start_run(self, config: RunConfig) -> int:
        """Start a run and return Flower's id of it."""
        data = build_bundle(config)
        fab = Fab(hashlib.sha256(data).hexdigest(), data, {})
        request = StartRunRequest(
            fab=fab_to_proto(fab), override_config=user_config_to_proto(config.sent())
        )
        for _ in attempts("the SuperLink to answer"):
            assert self.process.poll() is None, self.log_tail()
            try:
                with self._control() as control:
                    return int(control.StartRun(request).run_id)
            except httpx.TransportError:
                continue
        raise AssertionError

    def is_finished(self, run: int) -> bool:
        with self._control() as control:
            status = control.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
        return bool(status.status == "finished")

    def log_tail(self) -> str:
        return (self._folder / "log").read_text()[-4000:]

    @contextmanager
    def _control(self) -> Iterator[ControlHttpClient]:
        client = ControlHttpClient.from_server_address(
            self.address,
            insecure=False,
            root_certificates=self.certificate.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )
        try:
            yield client
        finally:
            client.close()


def attempts(what: str, seconds: float = _SECONDS) -> Iterator[None]:
    """Yield once per poll until the caller stops; raise AssertionError after a timeout."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(_POLL)
    raise AssertionError(f"waited {seconds:.0f} s for {what}")


def terminate(process: "subprocess.Popen[bytes]") -> int:
    """Terminate a process and return its exit status."""
    if process.poll() is None:
        process.terminate()
    try:
        return process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        raise


def start_client(
    superlink: SuperLink, key: Path, folder: Path, *options: str
) -> "subprocess.Popen[bytes]":
    """Start `samara client up`, and write its output to a file beside its folder."""
    with folder.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "samara", "client", "up", "--name", folder.name),
                *("--superlink", superlink.address, "--certs", str(superlink.certificate)),
                *("--key", str(key), "--home", str(folder), *options),
            ],
            cwd=folder.parent,
            env={**os.environ, **QUIET},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def rounds_of(run: Path) -> list[dict[str, Any]]:
    """The rounds so far of a run, which may be in progress."""
    file = run / "metrics.jsonl"
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [event for event in map(json.loads, lines) if event["event"] == "round"]
