"""An engine that runs ServerApp and ClientApp in the processes of Flower's simulation (Ray).

Ray starts on this machine, unless `RAY_ADDRESS` names a cluster of several machines.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from samara.client.app import app as client_app
from samara.client.protocol.simulated_client import simulated_data
from samara.server.app import serve
from samara.shared.errors import SamaraError
from samara.shared.settings.config import RunConfig
from samara.shared.settings.setting import Scalar
from samara.simulations.engines.ray_cluster import (
    check_nodes,
    check_room,
    client_resources,
    connect,
    needed_paths,
)
from samara.simulations.finished import hold_inputs
from samara.simulations.passes import PassesInReplies, PassMeter


class _Configured(ClientApp):
    """A client app that holds the run config, because Flower's simulation does not pass it on.

    Args:
        run_config: settings of the clients.
        directory: working directory on every node, to which paths are relative.
    """

    def __init__(self, run_config: dict[str, Scalar], directory: Path) -> None:
        super().__init__()
        self._run_config = run_config
        self._directory = directory

    def __call__(self, message: Message, context: Context) -> Message:
        os.chdir(self._directory)
        configured = Context(
            run_id=context.run_id,
            node_id=context.node_id,
            node_config=context.node_config,
            state=context.state,
            run_config=self._run_config,
        )
        reply = client_app(message, configured)
        with suppress(SamaraError):  # no data: the reply is a refusal, for which no rows count
            PassesInReplies.add(reply, simulated_data(configured))
        return reply


def simulate_with_flower(
    config: RunConfig, threads: int, folder: Path, known: Mapping[str, Any]
) -> Path:
    """Train with Flower's simulation engine, and return the run's folder.

    Args:
        config: settings of the run.
        threads: number of threads, and of CPUs, of each client.
        folder: folder of the run.
        known: additional fields of the result, as in `serve`.

    Raises:
        SamaraError: if Ray is not installed, the cluster has no room for a client or lacks files,
            or the run cannot start or continue.
    """
    try:
        import ray
    except ImportError as error:
        raise SamaraError(
            "--engine flower needs Ray; install it with: pip install 'samara-fl[ray]'"
        ) from error
    of_client = config.model_copy(update={"threads": threads})
    resources = client_resources(of_client)
    connect()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        nodes = ray.nodes()  # type: ignore[no-untyped-call]
        check_room(nodes, resources)
        check_nodes(nodes, needed_paths(config, folder))
        hold_inputs(folder, config)
    except SamaraError:
        ray.shutdown()
        with suppress(OSError):  # fails, as it should, if the folder holds a run
            folder.rmdir()
        raise
    outcome: list[Path | SamaraError] = []
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        passes = PassesInReplies(grid, config.data.clients)
        try:
            rows = PassMeter(passes.take_rows)
            outcome.append(serve(config, passes, meters=[rows], known=known))
        except SamaraError as error:
            outcome.append(error)

    run_simulation(
        server_app=server_app,
        client_app=_Configured(of_client.flat(), Path.cwd()),
        num_supernodes=config.data.clients,
        backend_config={"client_resources": {**resources}},
    )
    if not outcome:
        raise SamaraError("Flower's simulation ended without a result; see the log above")
    if isinstance(outcome[0], SamaraError):
        raise outcome[0]
    return outcome[0]
