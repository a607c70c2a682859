"""Clients, gateways and servers find each other even if the configured proxy does not exist."""

import os
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from samara.devices.live.checks.gateway_check import check_gateways
from samara.devices.live.checks.preflight import check_superlink
from samara.devices.live.connection.flower_wire import FlowerWire
from samara.devices.live.connection.gateway_endpoint import GatewayEndpoint
from samara.devices.live.join import fetch_welcome
from samara.devices.live.settings import ClientSettings
from samara.server.live.superlink_process import SuperLinkProcess
from samara.shared.errors import InvitationError
from samara.shared.network.invitation import InvitationCode
from samara.shared.network.proxies import DIRECT, exempt_this_machine, remark_on_proxy

NOWHERE = "http://127.0.0.1:9"
VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, NOWHERE)


class _Echo(grpc.GenericRpcHandler):
    def service(self, details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(lambda request, _: request)


@pytest.fixture
def echo() -> Iterator[str]:
    """The address of a gRPC server."""
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        server.add_generic_rpc_handlers((_Echo(),))
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        yield address
        server.stop(0).wait()


def proxies_of(client: httpx.Client) -> list[Any]:
    """The transports of a client besides the direct one."""
    return [transport for transport in client._mounts.values() if transport is not None]


@pytest.mark.usefixtures("proxied")
def test_a_gateway_is_reached_without_a_proxy(echo: str) -> None:
    with GatewayEndpoint(echo, insecure=True).channel() as channel:
        assert channel.unary_unary("/any/thing")(b"hello", timeout=10) == b"hello"


@pytest.mark.usefixtures("proxied")
def test_flowers_processes_use_no_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    with httpx.Client() as plain:
        assert proxies_of(plain)
    superlink = SuperLinkProcess.__new__(SuperLinkProcess)
    superlink.folder, superlink._max_bytes, superlink._keys = tmp_path, 1, None
    superlink._secret_file = tmp_path / "secret"
    client = ClientSettings.model_construct(folder=tmp_path)
    wire = FlowerWire(client)
    for environment in (superlink._environment(), wire._supernode._environment):
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            with httpx.Client() as direct:
                assert not proxies_of(direct)


def test_a_command_reaches_its_own_machine_and_downloads_by_the_proxy() -> None:
    environment = {"HTTPS_PROXY": NOWHERE, "no_proxy": "intranet.example"}
    exempt_this_machine(environment)
    assert environment["no_proxy"] == environment["NO_PROXY"]
    direct = [
        bool(urllib.request.proxy_bypass_environment(host, {"no": environment["no_proxy"]}))  # type: ignore[attr-defined]
        for host in ("127.0.0.1", "localhost", "intranet.example", "huggingface.co")
    ]
    assert direct == [True, True, True, False]
    plain: dict[str, str] = {}
    exempt_this_machine(plain)
    assert plain == {}
    whole = {"https_proxy": NOWHERE, **DIRECT}
    exempt_this_machine(whole)
    assert whole["no_proxy"] == "*"


def test_no_answer_names_the_proxy_that_was_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = InvitationCode(b"s" * 16, b"t" * 16)
    settings = ClientSettings.model_construct(
        superlink="127.0.0.1:9", gateways=("127.0.0.1:9",), insecure=True, certificates=None
    )

    def said() -> list[str]:
        with pytest.raises(InvitationError) as caught:
            fetch_welcome("127.0.0.1:9", code)
        server, _ = check_superlink(settings)
        return [str(caught.value), str(server), str(check_gateways(settings))]

    assert not any("proxy" in text for text in said())
    monkeypatch.setenv("HTTPS_PROXY", NOWHERE)
    assert all(
        "HTTPS_PROXY is set, but Samara uses it only for downloads" in text for text in said()
    )
    assert "HTTPS_PROXY" in remark_on_proxy(os.environ)
