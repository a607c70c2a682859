import http.server
import re
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from federations import config_of
from live import make_certificate
from typer.testing import CliRunner

from samara.command import app
from samara.devices.hardware.memory_footprint import MemoryFootprint
from samara.devices.hardware.profile import load_device, shipped_devices
from samara.devices.live import join
from samara.devices.live.checks import preflight
from samara.devices.live.checks.memory_check import default_profile, expected_footprint, free_on
from samara.devices.live.checks.preflight import (
    check_bitsandbytes,
    check_clock,
    check_memory,
    check_python,
    check_storage,
    check_superlink,
    check_torch,
)
from samara.devices.live.client_folder import check_name
from samara.devices.live.connection.gateway_endpoint import GatewayEndpoint
from samara.devices.live.connection.supernode import Reachability, watch_requests
from samara.devices.live.settings import (
    ClientSettings,
    resolve_device,
    resolve_device_settings,
)
from samara.shared.check_result import CheckResult, Outcome, check_disk
from samara.shared.errors import ConfigError, DeviceError, InvitationError, SamaraError
from samara.shared.network.addresses import parse_address
from samara.shared.settings.config import RunConfig
from samara.shared.settings.sections import ModelSettings

GIB = 2**30


class _Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def server(certificate: Path | None = None) -> Iterator[int]:
    """A server on loopback, with TLS if it has a certificate."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answer) as listening:
        listening.handle_error = lambda request, address: None  # type: ignore[method-assign]
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            listening.socket = context.wrap_socket(
                listening.socket, server_side=True, do_handshake_on_connect=False
            )
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield listening.server_port
        finally:
            listening.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1, with its key in the same file."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


def reaching(port: int, certificates: Path | None = None, insecure: bool = False) -> ClientSettings:
    return ClientSettings(
        name="a",
        folder=Path("/nowhere"),
        superlink=f"127.0.0.1:{port}",
        client_index=1,
        device_settings={},
        certificates=certificates,
        insecure=insecure,
    )


def test_a_server_over_tls_is_reached_and_tells_the_time(certificate: Path) -> None:
    with server(certificate) as port:
        check, skew = check_superlink(reaching(port, certificate))
    assert check.outcome is Outcome.PASS
    assert skew is not None
    assert abs(skew) < 60


def test_a_stranger_s_certificate_is_refused(certificate: Path) -> None:
    with server(certificate) as port:
        check, skew = check_superlink(reaching(port))
    assert (check.outcome, skew) == (Outcome.FAIL, None)
    assert "certificate is not accepted" in check.finding
    assert "--certs" in check.remedy


@pytest.mark.parametrize(("days", "words"), [(365, "not valid yet"), (-365, "no longer valid")])
def test_a_clock_that_is_a_year_off_is_named_and_how_to_set_it(
    days: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    certificate = make_certificate(tmp_path, days)
    named = f"its certificate is {words} by this machine's clock, which says 2"
    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", httpx.HTTPTransport.handle_request)
    with server(certificate) as port:
        check, skew = check_superlink(reaching(port, certificate))
        context = ssl.create_default_context(cafile=certificate)
        with pytest.raises(InvitationError, match=f"{named}.*set the clock by a time server"):
            join._request(f"127.0.0.1:{port}", context, "GET", "/")
        to_phone = GatewayEndpoint(f"127.0.0.1:{port}", certificate).diagnose()
        watch_requests(Reachability(tmp_path))
        with httpx.Client(verify=context) as client, pytest.raises(httpx.ConnectError):
            client.get(f"https://127.0.0.1:{port}/")
    assert (check.outcome, skew) == (Outcome.FAIL, None)
    assert check.finding.startswith(named)
    assert check.remedy.startswith("set the clock by a time server, `timedatectl set-ntp true`")
    assert f"127.0.0.1:{port} does not answer: {named}" in caplog.text
    assert to_phone == f"{check.finding}; {check.remedy}"


def test_plain_text_to_a_tls_server_says_so(certificate: Path) -> None:
    with server(certificate) as port:
        check, _ = check_superlink(reaching(port, insecure=True))
    assert check.outcome is Outcome.FAIL
    assert "uses TLS, but --insecure means plain text" in check.finding
    assert "instead of --insecure" in check.remedy


def test_tls_to_a_plain_server_says_so(certificate: Path) -> None:
    with server() as port:
        check, _ = check_superlink(reaching(port, certificate))
    assert check.outcome is Outcome.FAIL
    assert "does not use TLS" in check.finding


@pytest.mark.parametrize("content", [b"{}", None])
def test_a_file_that_is_no_certificate_is_named(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_bytes(content)
    check, skew = check_superlink(reaching(1, file))
    assert (check.outcome, skew) == (Outcome.FAIL, None)
    assert check.finding == f"{file}: this file is not a readable certificate (PEM)"
    assert "copy certificates/ca.pem" in check.remedy
    assert "--insecure" not in check.remedy


def test_plain_text_is_warned_about_and_nobody_there_fails() -> None:
    with server() as port:
        check, _ = check_superlink(reaching(port, insecure=True))
        assert check.outcome is Outcome.WARN
    check, _ = check_superlink(reaching(port, insecure=True))
    assert check.outcome is Outcome.FAIL
    assert "no answer" in check.finding


@pytest.mark.parametrize(
    ("skew", "signed", "outcome"),
    [
        (0.4, True, Outcome.PASS),
        (-3, True, Outcome.WARN),
        (6, True, Outcome.FAIL),
        (6, False, Outcome.WARN),
        (-299, True, Outcome.WARN),
        (-301, True, Outcome.FAIL),
        (None, True, Outcome.WARN),
    ],
)
def test_a_clock_may_be_as_wrong_as_flower_lets_it(
    skew: float | None, signed: bool, outcome: Outcome
) -> None:
    assert check_clock(skew, signed).outcome is outcome


def test_this_machine_has_a_python_and_a_torch_that_work() -> None:
    assert check_python().outcome is Outcome.PASS
    assert check_torch("cpu").outcome is Outcome.PASS


def test_an_unavailable_torch_device_fails_with_a_remedy() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    check = check_torch("cuda")
    assert check.outcome is Outcome.FAIL
    assert "--device cpu" in check.remedy
    assert check_torch("nonsense").outcome is Outcome.FAIL


def test_a_quantization_kernel_is_launched() -> None:
    pytest.importorskip("bitsandbytes", reason="the extra samara-fl[quantized] is not installed")
    assert check_bitsandbytes("cpu").outcome is Outcome.PASS


def test_memory_is_weighed_against_model_and_profile(model_folder: Callable[[str], Path]) -> None:
    board = load_device(next(d.name for d in shipped_devices() if d.compute.processor == "gpu"))
    assert free_on("cpu") > 0
    device_settings = {
        "model.path": str(model_folder("causal")),
        "data.path": "d.jsonl",
        "task": "sst2",
    }
    config = RunConfig.of(device_settings, "test")
    need = expected_footprint(config, board)
    assert need.total > board.memory.runtime_bytes
    check = check_memory(need.total + 1, config, board)
    assert (check.outcome, board.name in check.finding) == (Outcome.PASS, True)
    check = check_memory(need.total - 1, config, board)
    assert check.outcome is Outcome.FAIL
    assert "quantize" in check.remedy
    quantized = RunConfig.of(device_settings | {"model.quantization": "nf4"}, "test")
    assert expected_footprint(quantized, board).blocks < need.blocks / 2
    elsewhere = RunConfig.of(device_settings | {"model.path": "someone/some-model"}, "test")
    assert check_memory(8 * GIB, elsewhere, board).outcome is Outcome.WARN
    assert check_memory(8 * GIB, RunConfig(), default_profile("cpu")).outcome is Outcome.PASS
    assert default_profile("cuda:1").compute.processor == "gpu"


def test_a_readout_needs_memory_for_representations_and_its_first_pass(
    model_folder: Callable[[str], Path],
) -> None:
    board = load_device(next(d.name for d in shipped_devices() if d.compute.processor == "gpu"))
    settings = {"model.path": str(model_folder("causal")), "data.path": "d.jsonl", "task": "sst2"}

    def footprint(**changes: Any) -> MemoryFootprint:
        return expected_footprint(config_of(settings, **changes), board)

    readout = footprint(adapter__layers="readout")
    assert config_of(settings).adapter.layers == "readout:auto"
    assert footprint() == readout
    rows, hidden, labels = 10_000, 32, 2
    kept = rows * (hidden + labels) * 4
    assert kept <= readout.adapters <= 4 * kept
    assert footprint(adapter__layers="readout", batch=100).adapters < readout.adapters / 50
    # The pass before the first step has no perturbations; inside the model each has its rows.
    inside = footprint(adapter__layers="all", batch=8, queries=16)
    assert readout.activations == footprint(adapter__layers="readout", queries=64).activations
    assert inside.activations == 32 * readout.activations
    alone, larger = (footprint(adapter__layers="readout", micro_batch=n) for n in (1, 8))
    assert larger.activations == 8 * alone.activations
    assert footprint(adapter__layers="readout", micro_batch=500).activations == (
        256 * alone.activations
    )
    one = footprint(adapter__layers="all", batch=1)
    limited = footprint(adapter__layers="all", batch=8, memory_budget=3 * one.of_pass)
    assert limited.activations == 3 * one.activations
    beside = footprint(adapter__layers="readout,top:1", batch=8)
    assert beside == footprint(adapter__layers="top:1", batch=8)
    config = config_of(settings)
    found = check_memory(expected_footprint(config, board).total + 1, config, board)
    assert "up to 10,000 examples, 8 examples at a time" in found.finding


@pytest.mark.parametrize(("share", "outcome"), [(0.5, Outcome.WARN), (0.9, Outcome.PASS)])
def test_a_disk_that_is_slower_than_its_profile_says(
    share: float,
    outcome: Outcome,
    model_folder: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    board = next(load_device(d.name) for d in shipped_devices() if d.storage is not None)
    assert board.storage is not None
    rate = share * board.storage.bandwidth
    model = ModelSettings(path=str(model_folder("causal")))
    assert check_storage(model, board) is None
    streamed = model.model_copy(update={"stream": "disk"})
    found = check_storage(streamed, board)
    assert found is not None
    assert re.search(r"\d MB/s of .*safetensors; the profile .* has [\d,]+ MB/s", found.finding)
    monkeypatch.setattr(preflight, "measure_disk_rate", lambda file, pieces: rate)
    found = check_storage(streamed, board)
    assert found is not None
    assert found.outcome is outcome
    assert f"{rate / 1e6:,.0f} MB/s" in found.finding


def test_a_full_disk_fails_and_a_fuller_one_warns() -> None:
    outcomes = [check_disk(free, Path("/x"), "move").outcome for free in (GIB // 10, GIB, 9 * GIB)]
    assert outcomes == [Outcome.FAIL, Outcome.WARN, Outcome.PASS]


def test_a_line_says_what_to_do() -> None:
    assert "→ do it" in str(CheckResult(Outcome.FAIL, "disk", "full", "do it"))
    assert "→" not in str(CheckResult(Outcome.PASS, "disk", "fine"))


def test_settings_survive_the_way_to_another_process(tmp_path: Path) -> None:
    device_settings = resolve_device_settings(
        "embedded", "messages", "messages", "cpu", ["threads=1", "data.seed=4"]
    )
    written = ClientSettings(
        name="a",
        folder=tmp_path,
        superlink="[::1]:8000",
        client_index=3,
        device_settings=device_settings,
        insecure=True,
    )
    written.write()
    read_back = ClientSettings.read(tmp_path)
    assert read_back == written
    assert (read_back.config.threads, read_back.config.data.seed) == (1, 4)
    (tmp_path / "client.json").write_text("{}")
    with pytest.raises(DeviceError, match="cannot be read"):
        ClientSettings.read(tmp_path)


def test_what_the_server_decides_cannot_be_set() -> None:
    with pytest.raises(ConfigError, match="the server decides"):
        resolve_device_settings("embedded", "messages", "messages", "cpu", ["rounds=3"])


def test_names_addresses_and_devices() -> None:
    assert parse_address("[::1]:8000") == ("::1", 8000)
    assert parse_address("example.org:8000") == ("example.org", 8000)
    for wrong in ("example.org", ":8000", "a:b", "a:0", "a:70000", "http://a:80"):
        with pytest.raises(ConfigError, match="--superlink"):
            parse_address(wrong)
    assert check_name("kitchen-orin") == "kitchen-orin"
    for wrong in ("", "..", "a/b", "kitchen orin", "-a"):
        with pytest.raises(ConfigError, match="--name"):
            check_name(wrong)
    assert resolve_device("cuda:1") == ("cuda:1", "")
    for profile in shipped_devices():
        if profile.compute.processor == "npu":
            with pytest.raises(ConfigError, match="torch does not run"):
                resolve_device(profile.name)
        else:
            expected_device = "cuda" if profile.compute.processor == "gpu" else "cpu"
            assert resolve_device(profile.name) == (expected_device, profile.name)
    with pytest.raises(ConfigError, match=r"--device: this is not a torch device .* nor a file"):
        resolve_device("orin")


@pytest.mark.parametrize(
    ("options", "mistake"),
    [
        ([], "--key FILE is missing"),
        (["--insecure", "--set", "rounds=3"], "the server decides"),
        (["--insecure", "--device", "orin"], "--device: this is not a torch device"),
        (["--insecure", "--set", "threads=-1"], "threads"),
        (["--key", "/nowhere/key"], "the key cannot be read"),
    ],
)
def test_mistakes_on_the_command_line_have_a_message(
    options: list[str], mistake: str, tmp_path: Path
) -> None:
    command = ["client", "up", "--superlink", "127.0.0.1:1", "--name", "a"]
    result = CliRunner().invoke(app, [*command, "--home", str(tmp_path / "a"), *options])
    assert isinstance(result.exception, SamaraError)
    assert mistake in str(result.exception)
    assert not (tmp_path / "a" / "client.json").exists()
