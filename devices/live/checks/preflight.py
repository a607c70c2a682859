"""The preflight: checks that pass, warn or fail before a client takes part in a run.

The preflight runs in a separate process. Libraries that do not fit the machine may crash this
process, and the memory of the checks should not stay in the trainer.
"""

import http.client
import os
import shutil
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from samara.client.protocol.scenario_folder import ScenarioFolder
from samara.client.streaming.loading import choose_tier, stream_folder
from samara.client.streaming.reading import measure_disk_rate
from samara.devices.hardware.profile import DeviceProfile, load_device
from samara.devices.hardware.run_step import examples_in_pass
from samara.devices.live.checks.admission_check import ask_admission
from samara.devices.live.checks.board_checks import check_board, name_missing_kernels
from samara.devices.live.checks.gateway_check import GATEWAY, check_gateways
from samara.devices.live.checks.kept_checks import keep_checks
from samara.devices.live.checks.memory_check import default_profile, expected_footprint, free_on
from samara.devices.live.connection.certificate_errors import explain_certificate_error
from samara.devices.live.connection.tls_contexts import unverified_context
from samara.devices.live.processes import status_of_rejection
from samara.devices.live.server_contact import note_answer, note_silence
from samara.devices.live.settings import ClientSettings
from samara.shared.check_result import OF_OTHERS, CheckResult, Outcome, check_disk, describe_size
from samara.shared.errors import SamaraError, ScenarioError
from samara.shared.network.addresses import parse_address
from samara.shared.network.proxies import remark_on_proxy
from samara.shared.network.rejection import RejectionCode, describe_rejection
from samara.shared.settings.config import RunConfig
from samara.shared.settings.sections import ModelSettings
from samara.shared.terms.signed_scenario import describe_operator

_PYTHON = (3, 11)
_SUPERLINK = "superlink"
"""Name of the check that tests whether the server answers."""
_PIECES_READ = 16
_SLOW_STORAGE = 0.7
"""Share of the profile's storage bandwidth below which the storage check warns."""
_CONNECT_SECONDS = 10.0
_MOST_AHEAD = 5.0
"""Maximum lead of this clock over the server's, in seconds; beyond it, Flower rejects requests."""
_MOST_BEHIND = 300.0
"""Maximum lag of this clock behind the server's, in seconds; beyond it, Flower rejects requests."""
_NOTABLE_SKEW = 2.0
"""Difference of the clocks in seconds from which the check warns."""


def run_checks(settings: ClientSettings) -> Iterator[CheckResult]:
    """Run all checks, in the order in which the owner should fix failures."""
    config = settings.config
    model = config.model
    yield check_python()
    torch = check_torch(model.torch_device)
    yield torch
    if torch.outcome is not Outcome.FAIL and model.quantization != "none":
        yield check_bitsandbytes(model.torch_device)
    profile = (
        load_device(settings.profile) if settings.profile else default_profile(model.torch_device)
    )
    yield check_memory(free_on(model.torch_device), config, profile)
    if storage := check_storage(model, profile):
        yield storage
    yield from check_board()
    yield check_disk(shutil.disk_usage(settings.folder).free, settings.folder, "set --home")
    if settings.key:
        yield check_key(settings.key)
    if not settings.insecure:
        yield check_scenario(settings.folder)
    # On the stream, signatures cover the gateway's challenge and not the time.
    if settings.wire == "stream":
        yield check_gateways(settings)
        return
    connection, skew = check_superlink(settings)
    yield connection
    yield check_clock(skew, signed=not settings.insecure)


def check_python() -> CheckResult:
    """Check the versions of Python and Flower."""
    finding = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < _PYTHON:
        remedy = "install a newer Python, for example with `uv venv --python 3.12`"
        return CheckResult(Outcome.FAIL, "python", f"{finding} is too old", remedy)
    try:
        return CheckResult(Outcome.PASS, "python", f"{finding}, flwr {version('flwr')}")
    except PackageNotFoundError:
        return CheckResult(
            Outcome.FAIL, "python", "flwr is not installed", "run pip install samara-fl"
        )


def check_torch(device: str) -> CheckResult:
    """Check PyTorch by a matrix product on the torch device."""
    try:
        import torch

        where = torch.device(device)
        if where.type == "cuda" and not torch.cuda.is_available():
            remedy = "install the wheel for this board (docs/guides/jetson.md), or set --device cpu"
            return CheckResult(Outcome.FAIL, "torch", f"{torch.__version__} finds no CUDA", remedy)
        ones = torch.ones(64, 64, device=where)
        if float((ones @ ones)[0, 0]) != 64:
            return CheckResult(
                Outcome.FAIL, "torch", "a matrix product is wrong", "install another wheel of torch"
            )
        name = torch.cuda.get_device_name(where) if where.type == "cuda" else device
        return CheckResult(Outcome.PASS, "torch", f"{torch.__version__} on {name}")
    except (ImportError, RuntimeError, ValueError) as error:
        remedy = "install a wheel of torch for this machine (docs/guides/jetson.md)"
        return CheckResult(Outcome.FAIL, "torch", name_missing_kernels(error, device), remedy)


def check_bitsandbytes(device: str) -> CheckResult:
    """Check that a bitsandbytes kernel works.

    Wheels for other boards can be imported, but their kernels fail.
    """
    try:
        import torch
        from bitsandbytes import functional

        weights = torch.linspace(-1, 1, 4096, device=device).reshape(64, 64)
        packed, state = functional.quantize_4bit(weights, quant_type="nf4")
        error = float((functional.dequantize_4bit(packed, state) - weights).abs().max())
    except (ImportError, RuntimeError, OSError, AttributeError) as problem:
        remedy = "build it for this board (docs/guides/jetson.md), or --set model.quantization=none"
        return CheckResult(Outcome.FAIL, "bitsandbytes", _first_line(problem), remedy)
    if error > 0.2:  # 0.152 is half of the widest gap between NF4's levels
        remedy = "install another build of bitsandbytes"
        return CheckResult(Outcome.FAIL, "bitsandbytes", "quantizes wrongly", remedy)
    return CheckResult(Outcome.PASS, "bitsandbytes", "an NF4 kernel ran")


def check_memory(free: int, config: RunConfig, profile: DeviceProfile) -> CheckResult:
    """Compare the free memory with the expected peak memory of a step.

    Args:
        free: free bytes of the torch device; unified memory counts once.
        config: run configuration with the device's settings.
        profile: profile of the device.
    """
    try:
        need = expected_footprint(config, profile).total
    except SamaraError:
        finding = f"{describe_size(free)} free; the shape of {config.model.path} cannot be read"
        return CheckResult(Outcome.WARN, "memory", finding, "measure with --dry-run")
    most = "at most " if config.adapter.inner_layers else f"up to {config.batch:,} examples, "
    finding = (
        f"{describe_size(free)} free, about {describe_size(need)} needed for steps of "
        f"{config.queries} queries on {most}{examples_in_pass(config)} examples at a time, "
        f"by {profile.name}"
    )
    if free < need:
        remedy = "free memory, quantize (--set model.quantization=nf4), or use a smaller model"
        return CheckResult(Outcome.FAIL, "memory", finding, remedy)
    return CheckResult(Outcome.PASS, "memory", finding)


def check_storage(model: ModelSettings, profile: DeviceProfile) -> CheckResult | None:
    """Compare the disk's read rate with the profile; return None if no blocks stream from disk."""
    try:
        if choose_tier(model) != "disk":
            return None
        folder = Path(model.path).expanduser()
        if model.quantization != "none":
            folder = stream_folder()
        files = sorted(folder.rglob("*.safetensors"), key=lambda file: file.stat().st_size)
        if not files:
            return None
        rate = measure_disk_rate(files[-1], _PIECES_READ)
    except (SamaraError, OSError) as error:
        return CheckResult(Outcome.WARN, "storage", _first_line(error), "measure with --dry-run")
    finding = f"{rate / 1e6:,.0f} MB/s of {files[-1]}"
    if profile.storage is None:
        return CheckResult(Outcome.PASS, "storage", finding)
    finding += f"; the profile {profile.name} has {profile.storage.bandwidth / 1e6:,.0f} MB/s"
    if rate < _SLOW_STORAGE * profile.storage.bandwidth:
        remedy = (
            "steps may wait for blocks: move the model to a faster disk, or quantize (--set "
            "model.quantization=nf4 reads a seventh of the bytes of float32)"
        )
        return CheckResult(Outcome.WARN, "storage", finding, remedy)
    return CheckResult(Outcome.PASS, "storage", finding)


def check_scenario(folder: Path) -> CheckResult:
    """Check that this client's terms come from the operator's signed scenario, not the server."""
    try:
        scenarios = ScenarioFolder(folder).read_all()
    except ScenarioError as error:
        remedy = "restore the file, or delete it and give the scenario again with --scenario"
        return CheckResult(Outcome.FAIL, "scenario", str(error), remedy)
    if scenarios is None:
        finding = "no scenario is signed: the server decides the requests about your examples"
        remedy = (
            "ask the operator for one, and give it with --scenario FILE (docs/guides/clients.md)"
        )
        return CheckResult(Outcome.WARN, "scenario", finding, remedy)
    if not scenarios:
        finding = f"{folder} contains no signed scenario, so this client refuses every request"
        remedy = "give a signed scenario with --scenario FILE"
        return CheckResult(Outcome.FAIL, "scenario", finding, remedy)
    operator = describe_operator(scenarios[0].operator)
    finding = f"{len(scenarios)} signed by operator {operator}"
    return CheckResult(Outcome.PASS, "scenario", finding)


def check_key(file: Path) -> CheckResult:
    """Check that no other user of this machine may read the client's private key."""
    if os.name == "posix" and file.stat().st_mode & OF_OTHERS:
        finding = f"other users of this machine may read {file}"
        return CheckResult(Outcome.WARN, "key", finding, f"run chmod 600 {file}")
    return CheckResult(Outcome.PASS, "key", f"only its owner may read {file}")


def check_superlink(settings: ClientSettings) -> tuple[CheckResult, float | None]:
    """Check that the server answers; also return this clock's lead over the server's in seconds."""
    host, port = parse_address(settings.superlink)
    plain = settings.insecure
    try:
        context = None if plain else _context(settings.certificates)
    except OSError as error:  # includes ssl.SSLError
        finding = f"{settings.certificates}: this file is not a readable certificate (PEM)"
        remedy = (
            f"copy certificates/ca.pem from the server's run, and give the copy with --certs "
            f"({_first_line(error)})"
        )
        return CheckResult(Outcome.FAIL, _SUPERLINK, finding, remedy), None
    try:
        skew = _measure_clock_skew(host, port, context)
    except ssl.SSLCertVerificationError as error:
        usual = "give the server's CA with --certs FILE, and the host name of its certificate"
        finding, remedy = explain_certificate_error(error, usual)
        return CheckResult(Outcome.FAIL, _SUPERLINK, finding, remedy), None
    except ssl.SSLError:
        finding = f"{settings.superlink} does not use TLS"
        remedy = "start the server with TLS, or use --insecure"
        return CheckResult(Outcome.FAIL, _SUPERLINK, finding, remedy), None
    except (OSError, http.client.HTTPException) as error:
        if plain and _speaks_tls(host, port):
            finding = f"{settings.superlink} uses TLS, but --insecure means plain text"
            remedy = "give --certs FILE and --key FILE instead of --insecure"
            return CheckResult(Outcome.FAIL, _SUPERLINK, finding, remedy), None
        finding = f"no answer from {settings.superlink}: {_first_line(error)}"
        remedy = (
            "check the address, port and firewall, and that the server is up. A server ends with "
            "its run; this client then keeps its model (samara client ask, serve, export)"
            + remark_on_proxy()
        )
        return CheckResult(Outcome.FAIL, _SUPERLINK, finding, remedy), None
    if plain:
        finding = f"{settings.superlink} answers in plain text"
        remedy = "use TLS and a key outside your own network"
        return CheckResult(Outcome.WARN, _SUPERLINK, finding, remedy), skew
    return CheckResult(Outcome.PASS, _SUPERLINK, f"{settings.superlink} answers over TLS"), skew


def check_clock(skew: float | None, signed: bool) -> CheckResult:
    """Compare this clock with the server's.

    Args:
        skew: this clock's lead over the server's in seconds; None if unknown.
        signed: whether requests carry a signed time, which the server checks.
    """
    if skew is None:
        return CheckResult(
            Outcome.WARN, "clock", "the clocks were not compared, because the server gave no time"
        )
    finding = f"{skew:+.0f} s against the server's"
    remedy = "set the clock by a time server: `timedatectl set-ntp true`"
    if signed and not -_MOST_BEHIND < skew < _MOST_AHEAD:
        return CheckResult(Outcome.FAIL, "clock", finding, remedy)
    if abs(skew) > _NOTABLE_SKEW:
        return CheckResult(Outcome.WARN, "clock", finding, remedy)
    return CheckResult(Outcome.PASS, "clock", finding)


def _measure_clock_skew(host: str, port: int, context: ssl.SSLContext | None) -> float | None:
    """Return this clock's lead in seconds over the date in a server's response."""
    connection = (
        http.client.HTTPSConnection(host, port, timeout=_CONNECT_SECONDS, context=context)
        if context
        else http.client.HTTPConnection(host, port, timeout=_CONNECT_SECONDS)
    )
    try:
        connection.connect()
        start = time.time()
        connection.request("GET", "/health")
        date = connection.getresponse().getheader("Date")
        middle = (start + time.time()) / 2
    finally:
        connection.close()
    try:
        # The header omits the fraction of a second, which is half a second on average.
        return middle - (parsedate_to_datetime(date).timestamp() + 0.5) if date else None
    except ValueError:
        return None


def _context(certificates: Path | None) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificates) if certificates else None)


def _speaks_tls(host: str, port: int) -> bool:
    try:
        with (
            socket.create_connection((host, port), _CONNECT_SECONDS) as plain,
            unverified_context().wrap_socket(plain),
        ):
            return True
    except OSError:
        return False


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or repr(error)).splitlines()[0]


def main() -> None:
    """Run the preflight of the client whose folder is the command-line argument.

    The exit status is 1 after a failed check. If the key was revoked or the run is finished, the
    exit status is that of the rejection, so that the caller does not retry.
    """
    try:
        settings = ClientSettings.read(Path(sys.argv[1]))
        failed = False
        checks = list[CheckResult]()
        for check in run_checks(settings):
            print(check, flush=True)
            checks.append(check)
            if check.subject in (_SUPERLINK, GATEWAY) and check.outcome is Outcome.FAIL:
                note_silence(settings.folder, settings.server, check.finding)
            elif check.subject in (_SUPERLINK, GATEWAY):
                note_answer(settings.folder)
            failed = failed or check.outcome is Outcome.FAIL
        code = None if failed or settings.wire == "stream" else ask_admission(settings)
        if code is not None:
            checks.append(CheckResult(Outcome.WARN, "admission", describe_rejection(code)))
        keep_checks(settings.folder, checks)
    except SamaraError as error:
        sys.exit(f"samara: {error}")
    if code in (RejectionCode.REVOKED, RejectionCode.FINISHED):
        sys.exit(status_of_rejection(code))
    if code is not None:
        print(checks[-1], flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
