"""Flower's own simulation (Ray) as an engine: the same apps, in Flower's processes."""

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from client.app import app as client_app
from server.app import serve
from shared.config import RunConfig
from shared.errors import SamaraError
from shared.settings import Scalar


class _Configured(ClientApp):
    """A client app with a run config of its own, which Flower's simulation does not pass on."""

    def __init__(self, run_config: dict[str, Scalar]) -> None:
        super().__init__()
        self._run_config = run_config

    def __call__(self, message: Message, context: Context) -> Message:
        configured = Context(
            run_id=context.run_id,
            node_id=context.node_id,
            node_config=context.node_config,
            state=context.state,
            run_config=self._run_config,
        )
        return client_app(message, configured)


def simulate_with_flower(config: RunConfig, of_client: RunConfig) -> Path:
    """Train with Flower's simulation engine; returns the run's folder.

    Args:
        config: settings of the run.
        of_client: the same settings with the threads, and so the CPUs, of each client.

    Raises:
        SamaraError: if Ray is not installed, or the run cannot begin or go on.
    """
    try:
        import ray  # noqa: F401
    except ImportError as error:
        raise SamaraError(
            "--engine flower needs Ray; install it with: pip install 'samara-fl[ray]'"
        ) from error
    outcome: list[Path | SamaraError] = []
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            outcome.append(serve(config, grid))
        except SamaraError as error:
            outcome.append(error)

    run_simulation(
        server_app=server_app,
        client_app=_Configured(of_client.flat()),
        num_supernodes=config.data.clients,
        backend_config={
            "client_resources": {"num_cpus": of_client.threads, "num_gpus": 0.0},
            "init_args": {"log_to_driver": False},
        },
    )
    if not outcome:
        raise SamaraError("Flower's simulation ended without a result; see its log above")
    if isinstance(outcome[0], SamaraError):
        raise outcome[0]
    return outcome[0]
