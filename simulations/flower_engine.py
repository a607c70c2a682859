"""Flower's own simulation (Ray) as an engine: the same apps, in Flower's processes."""

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from client.app import app as client_app
from client.protocol.simulated_client import simulated_data
from server.app import serve
from server.transport.clock import SystemClock
from shared.config import RunConfig
from shared.errors import SamaraError
from shared.settings import Scalar
from simulations.pass_clock import PassClock, PassesInFolder


class _Configured(ClientApp):
    """A client app with a run config of its own, which Flower's simulation does not pass on.

    Args:
        run_config: settings of the clients.
        passes: counts of the rows that went through the model, from all of Flower's processes.
    """

    def __init__(self, run_config: dict[str, Scalar], passes: PassesInFolder) -> None:
        super().__init__()
        self._run_config, self._passes = run_config, passes

    def __call__(self, message: Message, context: Context) -> Message:
        configured = Context(
            run_id=context.run_id,
            node_id=context.node_id,
            node_config=context.node_config,
            state=context.state,
            run_config=self._run_config,
        )
        reply = client_app(message, configured)
        with suppress(SamaraError):  # the reply is a refusal then, and nothing was computed
            self._passes.add(simulated_data(configured))
        return reply


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
    with TemporaryDirectory(prefix="samara-passes-") as folder:
        passes = PassesInFolder(Path(folder), config.data.clients)

        @server_app.main()
        def main(grid: Grid, context: Context) -> None:
            clock = PassClock(SystemClock(), passes.take_rows)
            try:
                outcome.append(serve(config, grid, clock=clock))
            except SamaraError as error:
                outcome.append(error)

        run_simulation(
            server_app=server_app,
            client_app=_Configured(of_client.flat(), passes),
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
