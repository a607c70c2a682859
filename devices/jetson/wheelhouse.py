"""A folder from which a board installs Samara without a network, made on another machine.

DIR/install.sh         the installer, with its systemd unit: `sudo DIR/install.sh`
DIR/wheels/            one wheel per distribution: torch, Samara, their dependencies, uv
DIR/python/BUILD/      the archive of a Python, if the board has another version
DIR/wheelhouse.toml    the target board, and the source of each file
DIR/SHA256SUMS         checksums of all files, written last; without it, a wheelhouse is incomplete
"""

import json
import re
import shutil
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import distribution
from importlib.resources import files as resources
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import tomli_w
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from samara.devices.jetson.downloads import PARTIAL, RemoteFile, fetch, with_sizes
from samara.devices.jetson.resolution import JETPACKS, Resolver, run_uv
from samara.shared import DISTRIBUTION
from samara.shared.errors import ConfigError, DeviceError
from samara.shared.storage.blob_store import blob_hash
from samara.shared.storage.files import write_durably

CHECKSUMS = "SHA256SUMS"
_FACTS = "wheelhouse.toml"
_INSTALLER = ("install.sh", "samara-client@.service")
_LEAST_TORCH = "torch>=2.6"
_MARGIN = 64 * 2**20
"""Bytes of disk space to leave free."""


@dataclass(frozen=True)
class Request:
    """The requested contents of a wheelhouse.

    Attributes:
        jetpack: major version of the board's JetPack.
        out: folder of the wheelhouse.
        python: version of the board's Python.
        samara: a checkout, a wheel, or a requirement such as samara-fl==0.1.0.
        torch_index: package index for torch; empty means the JetPack's.
        torch_wheel: a torch wheel with its checksum, in place of an index.
    """

    jetpack: int
    out: Path
    python: str
    samara: str
    torch_index: str = ""
    torch_wheel: RemoteFile | None = None

    def check(self) -> None:
        """Validate the request as far as possible without a network.

        Raises:
            ConfigError: if the request cannot be carried out.
        """
        if self.jetpack not in JETPACKS:
            known = " and ".join(map(str, JETPACKS))
            raise ConfigError(f"--jetpack {self.jetpack}: wheelhouses are for JetPack {known}")
        if not re.fullmatch(r"3\.[0-9]+", self.python) or int(self.python.removeprefix("3.")) < 11:
            raise ConfigError(f"--python {self.python}: give a version such as 3.12, at least 3.11")
        wheel = self.torch_wheel
        if wheel and not re.fullmatch("[0-9a-f]{64}", wheel.sha256):
            raise ConfigError("--torch-wheel needs --sha256, 64 hex digits")
        if wheel and not wheel.name.endswith(".whl"):
            raise ConfigError(
                f"--torch-wheel {wheel.url}: give the address of a wheel, …/torch-….whl"
            )
        if self.out.exists() and not self.out.is_dir():
            raise ConfigError(f"--out {self.out} is a file; give a folder")
        if self.out.is_dir() and any(self.out.iterdir()) and not (self.out / _FACTS).exists():
            raise ConfigError(
                f"--out {self.out} contains files and is not a wheelhouse; give another folder"
            )


@dataclass(frozen=True)
class Plan:
    """The files of a wheelhouse.

    Attributes:
        request: the request.
        files: files to download, by path in the wheelhouse.
        own_wheel: Samara's wheel on this machine; None if it is downloaded too.
        missing: sentences about files that no index has, and the consequences.
    """

    request: Request
    files: dict[str, RemoteFile]
    own_wheel: Path | None
    missing: tuple[str, ...]

    @property
    def size(self) -> int:
        """Total bytes of the files to download."""
        return sum(file.size or 0 for file in self.files.values())

    def version_of(self, name: str) -> str:
        """Return the version of a distribution in the wheelhouse."""
        wheels = [Path(path).name for path in self.files if path.startswith("wheels/")]
        wheels += [self.own_wheel.name] if self.own_wheel else []
        versions = {each[0]: each[1] for each in map(parse_wheel_filename, wheels)}
        return str(versions[canonicalize_name(name)])


def installed_source() -> str:
    """Return the origin of the installed Samara: a checkout, a wheel, or a requirement."""
    here = distribution(DISTRIBUTION)
    if origin := here.read_text("direct_url.json"):  # PEP 610
        parts = urlsplit(json.loads(origin)["url"])
        if parts.scheme == "file":
            return url2pathname(parts.path)
    return f"{DISTRIBUTION}=={here.version}"


def make_plan(request: Request, work: Path) -> Plan:
    """Return the plan of a wheelhouse, according to the current package indexes.

    Args:
        request: requested contents.
        work: folder in which Samara's wheel is built from a checkout.

    Raises:
        ConfigError: if the request cannot be carried out, or uv is missing.
        DeviceError: if an index does not answer or has no wheel for the board.
    """
    request.check()
    jetpack = JETPACKS[request.jetpack]
    resolver = Resolver(jetpack, request.python)
    own_wheel = _own_wheel(request.samara, work)
    index = request.torch_index or jetpack.torch_index
    torch = request.torch_wheel or _find_torch(resolver, request, index)
    pinned = (
        f"torch @ {torch.url}#sha256={torch.sha256}" if torch.sha256 else f"torch @ {torch.url}"
    )
    ours = str(own_wheel) if own_wheel else request.samara
    try:
        wheels = resolver.resolve([ours, pinned, "uv"]) | {"torch": torch}
    except DeviceError as error:
        raise DeviceError(
            f"the wheels of Samara or its dependencies cannot be found: {error}"
        ) from error
    missing = []
    if "triton" not in wheels:
        try:
            wheels |= resolver.resolve(["triton"], index, alone=True)
        except DeviceError:
            missing.append(
                f"{index} has no triton: replay runs on the CPU, with the same bits as with triton"
            )
    files = {f"wheels/{wheel.name}": wheel for wheel in wheels.values()}
    if request.python != jetpack.python:
        archive = resolver.find_python()
        build = urlsplit(archive.url).path.split("/")[-2]
        files[f"python/{build}/{archive.name}"] = archive
    sized = with_sizes(files.values())
    return Plan(request, dict(zip(files, sized, strict=True)), own_wheel, tuple(missing))


def make_wheelhouse(plan: Plan, advance: Callable[[int], None]) -> None:
    """Download the files of a plan into its folder; files of an earlier call are kept.

    Args:
        plan: the plan.
        advance: function that is called with the number of bytes received.

    Raises:
        DeviceError: if the disk is too small, or a file cannot be downloaded or has another
            checksum.
        OSError: if a file cannot be written.
    """
    out = plan.request.out
    _check_space(plan)
    (out / "wheels").mkdir(parents=True, exist_ok=True)
    (out / CHECKSUMS).unlink(missing_ok=True)
    write_durably(out / _FACTS, tomli_w.dumps(_facts(plan)).encode())
    digests = {}
    for path, file in plan.files.items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        digests[path] = fetch(file, out / path, advance)
    own = {name: (resources("samara.devices.jetson") / name).read_bytes() for name in _INSTALLER}
    if plan.own_wheel:
        own[f"wheels/{plan.own_wheel.name}"] = plan.own_wheel.read_bytes()
    for path, content in own.items():
        write_durably(out / path, content)
    (out / "install.sh").chmod(0o755)
    for stale in {*(out / "wheels").iterdir()} - {out / path for path in (*digests, *own)}:
        stale.unlink()
    for path in (*own, _FACTS):
        digests[path] = blob_hash(out / path).hex()
    lines = [f"{digest}  {path}\n" for path, digest in sorted(digests.items())]
    write_durably(out / CHECKSUMS, "".join(lines).encode())


def _own_wheel(samara: str, work: Path) -> Path | None:
    """Return Samara's wheel if it is on this machine or built from a checkout, else None.

    If `samara` is the path of a wheel, the result is this path. If it is the path of a checkout, a
    wheel is built from it. If it is a requirement, such as samara-fl==0.1.0, the result is None.

    Raises:
        ConfigError: if a path contains no Samara.
        DeviceError: if the wheel cannot be built.
    """
    path = Path(samara).expanduser()
    if not path.exists():
        if re.match(rf"{DISTRIBUTION}($|[=<>~! ])", samara):
            return None
        raise ConfigError(
            f"--from {samara}: this is neither a checkout, nor a wheel, nor "
            f"{DISTRIBUTION}; give one of these"
        )
    if path.is_dir():
        project = path / "pyproject.toml"
        name = tomllib.loads(project.read_text()).get("project", {}) if project.exists() else {}
        if name.get("name") != DISTRIBUTION:
            raise ConfigError(
                f"--from {path}: this folder is not a checkout of {DISTRIBUTION}; "
                f"give a checkout or a wheel"
            )
        # Build through a source distribution, so that leftovers of earlier builds are excluded.
        run_uv("build", "--quiet", "--out-dir", str(work), str(path.absolute()))
        [path] = work.glob("*.whl")
    try:
        name_of_wheel = parse_wheel_filename(path.name)[0]
    except InvalidWheelFilename as error:
        raise ConfigError(
            f"--from {path}: this file is not a wheel: {error}; give a wheel or a checkout"
        ) from error
    if name_of_wheel != DISTRIBUTION:
        raise ConfigError(
            f"--from {path}: this is a wheel of {name_of_wheel}; give a wheel of {DISTRIBUTION}"
        )
    return path.absolute()


def _find_torch(resolver: Resolver, request: Request, index: str) -> RemoteFile:
    try:
        return resolver.resolve([_LEAST_TORCH], index, alone=True)["torch"]
    except DeviceError as error:
        raise DeviceError(
            f"no torch for Python {request.python} on JetPack {request.jetpack} at {index}: "
            f"{str(error).rstrip('.')}. Give a wheel, --torch-wheel URL --sha256 HEX, or another "
            "--torch-index; or save the container (docs/guides/jetson.md)"
        ) from error


def _check_space(plan: Plan) -> None:
    out = plan.request.out
    there = 0
    for path, file in plan.files.items():
        for target in (out / path, out / f"{path}{PARTIAL}"):
            if target.exists():
                there += min(target.stat().st_size, file.size or 0)
    above = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    need = plan.size - there + _MARGIN
    free = shutil.disk_usage(above).free
    if need > free:
        raise DeviceError(
            f"--out {out}: the files need {need / 1e6:,.0f} MB, and {free / 1e6:,.0f} MB are "
            f"free; free space, or give a folder on another disk"
        )


def _facts(plan: Plan) -> dict[str, object]:
    return {
        "format": 1,
        "jetpack": plan.request.jetpack,
        "python": plan.request.python,
        "torch": plan.version_of("torch"),
        "samara": plan.version_of(DISTRIBUTION),
        "uv": plan.version_of("uv"),
        "from": {path: file.url for path, file in sorted(plan.files.items())},
    }
