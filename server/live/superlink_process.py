"""The process of a run's SuperLink, its child processes, and its control API."""

import hashlib
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from errno import EADDRNOTAVAIL
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from samara.server.live.arrivals import ARRIVALS_VARIABLE
from samara.server.live.busy import explain_http_error
from samara.server.live.flower_processes import (
    DATABASE,
    SERVER_APP,
    SUPEREXEC,
    SUPERLINK,
    end_processes,
    find_programs,
    find_superlinks,
)
from samara.server.live.keys import KEYS_VARIABLE
from samara.server.live.node_registration import request_registration
from samara.server.live.server_port import listening_addresses, note_port
from samara.server.live.superlink import (
    FILTER_PATH,
    LIVE_VARIABLE,
    MAX_BYTES_VARIABLE,
    SECRET_HEADER,
    SECRET_VARIABLE,
)
from samara.shared.errors import SamaraError
from samara.shared.network.certificates import TlsFiles
from samara.shared.network.proxies import DIRECT
from samara.shared.settings.config import RunConfig
from samara.shared.storage.files import make_private_folder, write_secret

if TYPE_CHECKING:
    from samara.shared.flower_compat import ControlHttpClient

SUPERLINK_LOG = "superlink.log"
"""File with the output of the SuperLink, which exists once a SuperLink has been started."""
_START_SECONDS = 180.0
"""Start-up time limit of a SuperLink, in seconds; imports take a minute on a small machine."""
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Node:
    """A SuperNode that is registered with Flower.

    Attributes:
        node: Flower's id of the node.
        public_key: PEM.
        name: name of the node's client.
        online: whether the node is connected.
        was_connected: whether the node is connected or was connected before.
    """

    node: int
    public_key: bytes
    name: str
    online: bool
    was_connected: bool


class SuperLinkProcess:
    """A SuperLink in a separate process, with its database and log in a folder."""

    def __init__(
        self,
        folder: Path,
        host: str,
        port: int,
        tls: TlsFiles | None,
        max_bytes: int,
        keys: Path | None = None,
    ) -> None:
        """Prepare a SuperLink; `start` starts it.

        Args:
            folder: folder of the SuperLink's database and log.
            host: address to listen on.
            port: port of all three APIs.
            tls: certificate of the server; None serves plain text.
            max_bytes: maximum size of a client's request, in bytes.
            keys: folder of the client keys; None lets any client join.
        """
        self.folder, self._host, self._port, self._tls = folder, host, port, tls
        self._keys, self._max_bytes = keys, max_bytes
        self._database = folder / DATABASE
        self._secret_file = folder / "control.secret"
        self._process: subprocess.Popen[bytes] | None = None
        self._certificate_time = 0

    @property
    def log_file(self) -> Path:
        """The file with the output of the SuperLink and its processes."""
        return self.folder / SUPERLINK_LOG

    @property
    def address(self) -> str:
        """The addresses on which the SuperLink listens, and whether it uses TLS, as text."""
        addresses = ", ".join(listening_addresses(self._host, self._port))
        return f"{addresses} ({'TLS' if self._tls else 'plain text'})"

    def start(self) -> None:
        """Stop an earlier SuperLink of this folder, start a new one, and wait until it serves.

        Raises:
            SamaraError: if the SuperLink does not start, for example because the port is in use.
                The SuperLink's database is then deleted.
        """
        make_private_folder(self.folder)
        self.stop()
        self._check_port()
        note_port(self.folder, self._port)
        write_secret(self._secret_file, secrets.token_hex(32).encode())
        for file in self.folder.glob(f"{self._database.name}*"):
            file.chmod(0o600)  # an earlier version may have created the file
        self._certificate_time = self._read_certificate_time()
        with self.log_file.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", SUPERLINK, *self._arguments()],
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        end = time.monotonic() + _START_SECONDS
        while not self._is_serving():
            if self._process.poll() is not None or time.monotonic() > end:
                self.reset()  # the next start could not use an incomplete database
                raise SamaraError(
                    f"Flower's SuperLink did not start on {self._host}:{self._port}: "
                    f"{self._last_log_line()}; see {self.log_file}"
                )
            time.sleep(_POLL_SECONDS)

    def _check_port(self) -> None:
        """Check that the address is free, so that no other server answers there.

        Raises:
            SamaraError: if the address is in use, or does not belong to this machine.
        """
        try:
            [(family, *_, address), *_] = socket.getaddrinfo(
                self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            with socket.socket(family) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            is_of_others = isinstance(error, socket.gaierror) or error.errno == EADDRNOTAVAIL
            remedy = (
                "give an address of this machine as --host, or leave out --host to listen on all "
                "addresses"
                if is_of_others
                else "end the process that uses this address, or give another --port or --host"
            )
            raise SamaraError(
                f"{self._host}:{self._port}: cannot be opened: {error.strerror}; {remedy}"
            ) from error

    def missing_process(self) -> str:
        """Return the name of a required process that is not running; empty if all are running."""
        if self._process is None or self._process.poll() is not None:
            return "Flower's SuperLink"
        return "" if self._has_child(SUPEREXEC) else "Flower's SuperExec"

    def has_new_certificate(self) -> bool:
        """Return whether the certificate's file has changed since the SuperLink read it."""
        return self._read_certificate_time() != self._certificate_time

    def has_server_app(self) -> bool:
        """Return whether the process of a ServerApp is running."""
        return self._has_child(SERVER_APP)

    def stop(self) -> None:
        """Stop the SuperLink and its child processes, including processes of an earlier command."""
        roots = find_superlinks(self.folder)
        family = [*roots, *find_programs(self.folder, SUPEREXEC, SERVER_APP)]
        for process in roots:
            try:
                family += process.children(recursive=True)
            except psutil.NoSuchProcess:
                continue
        end_processes(family)
        if self._process is not None:
            self._process.wait()
            self._process = None

    def reset(self) -> None:
        """Stop all processes, and delete Flower's nodes, runs and messages.

        Flower's database contains times until which a node, message or task is valid. These times
        are wrong after a change of the system clock. If the clock was set back by an hour, Flower
        may refuse a node's key for an hour. A Samara run does not need the database.
        """
        self.stop()
        for file in self.folder.glob(f"{self._database.name}*"):
            file.unlink()

    def start_run(self, config: RunConfig, bundle: bytes) -> int:
        """Stop all runs, start a run with this app bundle, and return Flower's id of the new run.

        An earlier ServerApp that still runs is ended first, because it has the ledger open.

        Raises:
            SamaraError: if Flower refuses the run or does not answer.
        """
        from samara.shared.flower_compat import (
            Fab,
            StartRunRequest,
            fab_to_proto,
            user_config_to_proto,
        )

        self.stop_runs()
        end_processes(find_programs(self.folder, SERVER_APP))
        request = StartRunRequest(
            fab=fab_to_proto(Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})),
            override_config=user_config_to_proto(config.sent()),
        )
        with self._control() as control:
            return int(control.StartRun(request).run_id)

    def stop_runs(self) -> None:
        """Stop all runs that are not finished."""
        from samara.shared.flower_compat import ListRunsRequest, StopRunRequest

        with self._control() as control:
            for run in control.ListRuns(ListRunsRequest()).run_dict.values():
                if run.status.status != "finished":
                    control.StopRun(StopRunRequest(run_id=run.run_id))

    def run_status(self, run: int) -> tuple[str, str]:
        """Return a run's status (pending, starting, running or finished) and its outcome."""
        from samara.shared.flower_compat import ListRunsRequest

        with self._control() as control:
            status = control.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
        return status.status, status.details

    def list_nodes(self) -> list[Node]:
        """Return the registered SuperNodes."""
        from samara.shared.flower_compat import ListNodesRequest

        with self._control() as control:
            nodes = control.ListNodes(ListNodesRequest()).nodes_info
        return [
            Node(
                node.node_id,
                node.public_key,
                node.name,
                node.status == "online",
                node.status in ("online", "offline"),
            )
            for node in nodes
            if node.status != "unregistered"
        ]

    def register(self, names: Mapping[str, str]) -> None:
        """Register keys with the SuperLink, so that their holders may connect.

        Args:
            names: names of the nodes by public key (PEM).

        Raises:
            SamaraError: if the SuperLink refuses a key or does not answer.
        """
        authority = self._tls.authority if self._tls else None
        secret = {SECRET_HEADER: self._secret_file.read_text()}
        request_registration(f"127.0.0.1:{self._port}", authority, secret, names)

    def unregister(self, nodes: Iterable[int]) -> None:
        """Disconnect SuperNodes and refuse their keys."""
        from samara.shared.flower_compat import UnregisterNodeRequest

        with self._control() as control:
            for node in nodes:
                control.UnregisterNode(UnregisterNodeRequest(node_id=node))

    @contextmanager
    def _control(self) -> Iterator["ControlHttpClient"]:
        """Connect to the control API.

        Raises:
            SamaraError: if the SuperLink refuses a request.
            NoAnswerError: if the SuperLink does not answer in time.
        """
        import httpx

        from samara.shared.flower_compat import ControlHttpClient, RuntimeVersionHttpInterceptor

        client = ControlHttpClient.from_server_address(
            f"127.0.0.1:{self._port}",
            insecure=self._tls is None,
            root_certificates=self._tls.authority.read_bytes() if self._tls else None,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="flwr CLI"),
                _SecretInterceptor(self._secret_file.read_text()),
            ],
        )
        try:
            yield client
        except httpx.HTTPError as error:
            raise explain_http_error(error) from error
        finally:
            client.close()

    def _has_child(self, name: str) -> bool:
        """Return whether a descendant of the SuperLink has this name in its command line."""
        assert self._process is not None, "start must be called first"
        try:
            family = psutil.Process(self._process.pid).children(recursive=True)
            return any(name in " ".join(process.cmdline()) for process in family)
        except psutil.NoSuchProcess:
            return False

    def _is_serving(self) -> bool:
        """Return whether the SuperLink's access filter answers."""
        import httpx

        scheme = "https" if self._tls else "http"
        url = f"{scheme}://127.0.0.1:{self._port}{FILTER_PATH}"
        try:
            return httpx.get(url, verify=False, timeout=5.0, trust_env=False).status_code == 204
        except httpx.HTTPError:
            return False

    def _arguments(self) -> list[str]:
        """Return the arguments of the SuperLink, ``--``, and the arguments of its SuperExec."""
        superexec = ["--runtime-api-address", f"127.0.0.1:{self._port}"]
        superexec += ["--superexec-auth-secret-file", str(self._secret_file)]
        superexec += (
            ["--root-certificates", str(self._tls.authority)] if self._tls else ["--insecure"]
        )
        return [*self._superlink_arguments(), "--", *superexec]

    def _superlink_arguments(self) -> list[str]:
        arguments = ["--host", self._host, "--port", str(self._port)]
        arguments += ["--database", str(self._database)]
        arguments += ["--disable-runtime-dependency-installation", "--isolation", "process"]
        arguments += ["--superexec-auth-secret-file", str(self._secret_file)]
        if self._tls is None:
            return [*arguments, "--insecure"]
        return [
            *arguments,
            *("--ssl-certfile", str(self._tls.certificate)),
            *("--ssl-keyfile", str(self._tls.key)),
            *("--ssl-ca-certfile", str(self._tls.authority)),
            "--enable-supernode-auth",
        ]

    def _environment(self) -> dict[str, str]:
        return (
            os.environ
            | {
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
                "PYTHONPATH": _absolute(os.environ.get("PYTHONPATH", "")),
                "FLWR_HOME": str(self.folder),
                LIVE_VARIABLE: "1",
                MAX_BYTES_VARIABLE: str(self._max_bytes),
                SECRET_VARIABLE: str(self._secret_file),
                ARRIVALS_VARIABLE: str(self.folder.absolute() / "arrivals"),
                "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
                "FLWR_DISABLE_UPDATE_CHECK": "1",
                "FLWR_TELEMETRY_ENABLED": "0",
                "FLWR_LOG_LEVEL": "WARNING",
            }
            | DIRECT
            | ({KEYS_VARIABLE: str(self._keys)} if self._keys else {})
        )

    def _read_certificate_time(self) -> int:
        """Return the modification time of the certificate's file in nanoseconds.

        If the file is missing, return its last known time.
        """
        try:
            return self._tls.certificate.stat().st_mtime_ns if self._tls else 0
        except FileNotFoundError:  # the operator is replacing the file
            return self._certificate_time

    def _last_log_line(self) -> str:
        lines = self.log_file.read_text(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else "the SuperLink printed nothing"


def _absolute(path: str) -> str:
    """Make a module search path absolute, for a process with another working folder."""
    return os.pathsep.join(map(os.path.abspath, path.split(os.pathsep))) if path else ""


class _SecretInterceptor:
    """Adds the secret of the control API to each request."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def intercept(self, context: Any, call_next: Any) -> Any:
        """Send a request with the secret."""
        context.request.headers[SECRET_HEADER] = self._secret
        return call_next(context)
