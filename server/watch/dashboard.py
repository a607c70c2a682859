"""The dashboard of `samara server up`: a thread that serves a run's page and metrics locally."""

import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import uvicorn

from samara.server.watch.page import LOGIN_PATH, RunPage
from samara.shared.network.http.listening import open_tcp, read_token, server_config

TOKEN_FILE = "dashboard.token"
"""File in a run's folder that holds the token of the page."""
_HOST = "127.0.0.1"
_SHUTDOWN_SECONDS = 1


class Dashboard:
    """A context manager that serves a run's page and metrics on loopback only.

    Args:
        run: folder of an existing run.
        port: port; 0 selects a free port.

    Raises:
        ConfigError: if the token's file cannot be used.
        DeviceError: if the port is in use.
    """

    def __init__(self, run: Path, port: int) -> None:
        self.token_file = run / TOKEN_FILE
        self._token = read_token(self.token_file, "token of --dashboard")
        self._listener = open_tcp(_HOST, port, "--dashboard-port")
        self.port: int = self._listener.getsockname()[1]
        app = RunPage(run, self._token, f"samara-{self.port}").app()
        self._server = uvicorn.Server(server_config(app, _SHUTDOWN_SECONDS))
        self._thread = threading.Thread(
            target=self._server.run, args=([self._listener],), name="dashboard", daemon=True
        )

    @property
    def address(self) -> str:
        """The address of the page."""
        return f"http://{_HOST}:{self.port}"

    @property
    def login_address(self) -> str:
        """The address that opens the page in a browser, with the token."""
        return f"{self.address}{LOGIN_PATH}?token={self._token}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._listener.close()
