"""Preflight check of the gateways that a client attaches to."""

import socket

from samara.devices.live.connection.gateway_endpoint import GatewayEndpoint
from samara.devices.live.settings import ClientSettings
from samara.shared.check_result import CheckResult, Outcome
from samara.shared.errors import DeviceError
from samara.shared.network.addresses import parse_address
from samara.shared.network.proxies import remark_on_proxy

GATEWAY = "gateway"
"""Name of the preflight check that tests whether a gateway answers."""
_CONNECT_SECONDS = 10.0


def check_gateways(settings: ClientSettings) -> CheckResult:
    """Check that one of the client's gateways answers, over TLS unless the client is insecure."""
    problems: dict[str, str] = {}
    for address in settings.gateways:
        endpoint = GatewayEndpoint(address, settings.certificates, settings.insecure)
        try:
            with socket.create_connection(parse_address(address), _CONNECT_SECONDS):
                problem = endpoint.diagnose()
        except (OSError, DeviceError) as error:
            problem = str(error)
        if not problem:
            return _found(address, settings.insecure, problems)
        problems[address] = problem
    return CheckResult(Outcome.FAIL, GATEWAY, _say(problems), _REMEDY + remark_on_proxy())


_REMEDY = (
    "check the address, port, firewall and --certs, and that `samara gateway up` runs. A gateway "
    "ends with its run; this client then keeps its model (samara client ask, serve, export)"
)


def _found(address: str, is_plain: bool, problems: dict[str, str]) -> CheckResult:
    if is_plain:
        remedy = "use TLS outside your own network"
        return CheckResult(Outcome.WARN, GATEWAY, f"{address} answers in plain text", remedy)
    if problems:
        finding = f"{address} answers over TLS; {_say(problems)}"
        return CheckResult(
            Outcome.WARN, GATEWAY, finding, "start the silent gateways again, or leave them out"
        )
    return CheckResult(Outcome.PASS, GATEWAY, f"{address} answers over TLS")


def _say(problems: dict[str, str]) -> str:
    return "; ".join(
        f"no answer from {address}: {problem}" for address, problem in problems.items()
    )
