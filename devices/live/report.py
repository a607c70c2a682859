"""A file with facts about a client and its device, for getting help.

The file contains only facts that this module names. It contains no text, label, key, secret or
path, and no number of a private track. Messages are shown without inserted values
(known_messages.py).
"""

import json
import os
import platform
import shutil
import subprocess
from collections import Counter
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from samara.devices.jetson import telemetry
from samara.devices.jetson.nvpmodel import read_power_mode
from samara.devices.live.client_folder import MESSAGES_FILE
from samara.devices.live.client_status import NOT_RUNNING, ClientStatus, StatusReader
from samara.devices.live.known_messages import hide_insertions
from samara.devices.live.limits import DeviceLimits
from samara.devices.live.settings import ClientSettings
from samara.shared import DISTRIBUTION
from samara.shared.errors import SamaraError
from samara.shared.protocol.wire import FRAME_VERSION
from samara.shared.storage.files import write_requested

_PACKAGES = (
    *(DISTRIBUTION, "flwr", "torch", "triton", "numba", "numpy", "transformers", "tokenizers"),
    *("bitsandbytes", "protobuf", "grpcio", "cryptography", "jetson-stats"),
)
_BOARD_FILES = {
    "release": Path("/etc/nv_tegra_release"),
    "board": Path("/proc/device-tree/model"),
}
_FORMAT = "samara doctor"
_MOST_MESSAGES = 400
_MOST_BYTES = 2**18
_JOURNAL_SECONDS = 20
_SHOWN_SETTINGS = ("model.torch-device", "model.quantization", "model.stream", "threads")


def write_report(folder: Path, file: Path) -> dict[str, Any]:
    """Write the facts about a client to a file; return them.

    Args:
        folder: folder of the client.
        file: path of the JSON file to write.

    Raises:
        SamaraError: if the folder is not a client's, or the file cannot be written.
    """
    settings = ClientSettings.read(folder)
    report = {
        _FORMAT: 1,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": _versions(),
        "device": _describe_device(folder),
        "settings": _describe_settings(settings),
        "status": _describe_status(folder),
        "messages": [hide_insertions(line) for line in _last_messages(folder, settings.name)],
    }
    text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
    write_requested(file, text.encode(), _FORMAT.encode())
    return report


def _versions() -> dict[str, Any]:
    versions: dict[str, Any] = {"protocol": FRAME_VERSION, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return versions


def _describe_device(folder: Path) -> dict[str, Any]:
    memory = psutil.virtual_memory()
    disk = shutil.disk_usage(folder)
    reading = telemetry.Sensors().read()
    return {
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        **{name: _first_line_of(file) for name, file in _BOARD_FILES.items()},
        "cores": os.cpu_count(),
        "memory": {"bytes": memory.total, "free": memory.available},
        "swap": {"bytes": psutil.swap_memory().total, "free": psutil.swap_memory().free},
        "disk": {"bytes": disk.total, "free": disk.free},
        "power mode": read_power_mode() if telemetry.is_jetson() else "",
        "temperature": reading.temperature,
        "watts": reading.watts,
        "on mains": reading.on_mains,
        "seconds since boot": round(datetime.now(UTC).timestamp() - psutil.boot_time()),
    }


def _describe_settings(settings: ClientSettings) -> dict[str, Any]:
    """Return the settings without the owner's paths, addresses and names."""
    device_settings = settings.device_settings
    limits = settings.model_dump(include=set(DeviceLimits.model_fields))
    return {
        "client": settings.client_index,
        "insecure": settings.insecure,
        "has a key": settings.key is not None,
        "has certificates": settings.certificates is not None,
        "shipped model": device_settings.get("model.path") == "embedded",
        **{key: device_settings[key] for key in _SHOWN_SETTINGS if key in device_settings},
        "limits": limits | {"nice": settings.nice, "idle_io": settings.idle_io},
    }


def _describe_status(folder: Path) -> dict[str, Any]:
    """Return the facts shown by `samara client status`, without examples and private rounds."""
    try:
        status = StatusReader(folder).read()
    except SamaraError as error:
        return {"problem": _hidden(str(error))}
    return {
        "trainer": status.trainer if status.trainer == NOT_RUNNING else "running",
        "examples": _count_examples(status),
        "problem": _hidden(status.problem),
        "runs": [
            {
                "run": run.run,
                "round": run.round,
                "rounds": run.rounds,
                "digest": run.digest,
                "rows": run.passes,
                "seconds": run.cost.seconds,
                "paused": run.cost.paused,
                "last report in round": run.report.round if run.report else None,
                "last refusal": _hidden(run.refusal.refused) if run.refusal else "",
            }
            for run in status.runs
        ],
        "pauses": [
            {"begun": pause.begun, "seconds": pause.seconds, "reason": _hidden(pause.reason)}
            for pause in status.pauses[-20:]
        ],
    }


def _count_examples(status: ClientStatus) -> dict[str, int] | None:
    """Return the number of examples by split; None if they cannot be read."""
    if status.examples is None:
        return None
    counts = Counter[str]()
    for (_, split), count in status.examples.counts.items():
        counts[split] += count
    return dict(counts)


def _last_messages(folder: Path, name: str) -> list[str]:
    """Return the last log lines of the client's processes, from its dashboard or its service."""
    try:
        with (folder / MESSAGES_FILE).open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _MOST_BYTES))
            text = log.read()
    except OSError:
        text = _journal(f"samara-client@{name}")
    return text.decode(errors="replace").splitlines()[-_MOST_MESSAGES:]


def _journal(unit: str) -> bytes:
    """Return the last lines of a service's log; empty without systemd."""
    command = ["journalctl", "--unit", unit, "--output", "cat", "--lines", str(_MOST_MESSAGES)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_JOURNAL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return b""
    return done.stdout[-_MOST_BYTES:] if done.returncode == 0 else b""


def _hidden(message: str) -> str:
    return hide_insertions(message) if message else ""


def _first_line_of(file: Path) -> str:
    try:
        return file.read_text(errors="replace").split("\n")[0].strip("\0 ")[:200]
    except OSError:
        return ""
