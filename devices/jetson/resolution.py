"""The wheels that a board installs, found by uv for its processor, system and Python.

The wheels are resolved on a machine other than the board. The markers of requirements must
therefore be evaluated for the board; uv can do so, but pip cannot.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from samara.devices.jetson.downloads import RemoteFile
from samara.shared.errors import ConfigError, DeviceError

_OLDEST_GLIBC = 17
"""Minor version of the glibc (2.17) in the oldest tag that uv and pip know for this processor."""


class JetPack(NamedTuple):
    """The properties of a JetPack that determine wheels.

    Attributes:
        python: version of the JetPack's Python.
        glibc: minor version of the JetPack's glibc 2.
        torch_index: package index for torch.
    """

    python: str
    glibc: int
    torch_index: str


JETPACKS = {
    6: JetPack("3.10", 35, "https://pypi.jetson-ai-lab.io/jp6/cu126"),
    7: JetPack("3.12", 39, "https://download.pytorch.org/whl/cu130"),
}
"""The JetPacks that `install.sh` supports: Ubuntu 22.04 and 24.04."""


@dataclass(frozen=True)
class Resolver:
    """Finds the wheels of a board in package indexes.

    Attributes:
        jetpack: the board's JetPack.
        python: version of the board's Python, such as 3.12.
    """

    jetpack: JetPack
    python: str

    def resolve(
        self, requirements: Sequence[str], index: str = "", alone: bool = False
    ) -> dict[str, RemoteFile]:
        """Return the wheels that satisfy the requirements, by name of the distribution.

        Requirements that are wheels on this machine are left out of the result.

        Args:
            requirements: requirements in pip's format, or paths of wheels.
            index: package index; by default uv's configured index.
            alone: whether to leave out dependencies of the requirements.

        Raises:
            DeviceError: if there is no such wheel, or an index does not answer; the message comes
                from uv.
        """
        options = ["--no-deps"] if alone else []
        options += ["--default-index", index] if index else []
        with tempfile.TemporaryDirectory() as folder:
            asked = Path(folder, "requirements.in")
            found = Path(folder, "pylock.toml")
            asked.write_text("".join(f"{line}\n" for line in requirements))
            run_uv(
                *("pip", "compile", str(asked), "--output-file", str(found), "--quiet"),
                *("--format", "pylock.toml", "--only-binary", ":all:"),
                *("--python-platform", f"aarch64-manylinux_2_{self.jetpack.glibc}"),
                *("--python-version", self.python, *options),
            )
            packages = tomllib.loads(found.read_text())["packages"]
        wheels = {package["name"]: self._choose(package) for package in packages}
        return {name: wheel for name, wheel in wheels.items() if wheel is not None}

    def find_python(self) -> RemoteFile:
        """Return the archive of the Python that uv would install.

        Raises:
            DeviceError: if uv knows no such Python.
        """
        listed = run_uv(
            *("python", "list", self.python, "--only-downloads", "--output-format", "json"),
            *("--all-platforms", "--all-arches"),
        )
        wanted = {"os": "linux", "arch": "aarch64", "libc": "gnu", "implementation": "cpython"}
        for entry in json.loads(listed):
            if wanted.items() <= entry.items() and entry["variant"] == "default":
                return RemoteFile(entry["url"])
        raise DeviceError(
            f"uv has no Python {self.python} for this processor; give another --python"
        )

    def _choose(self, package: dict[str, Any]) -> RemoteFile | None:
        """Return the wheel that the board's installer would choose; None for a local file."""
        if archive := package.get("archive"):
            return _remote(archive) if "url" in archive else None
        ranks = {tag: rank for rank, tag in enumerate(self._tags())}
        ranked = []
        for wheel in package.get("wheels", []):
            file = _remote(wheel)
            try:
                tags = parse_wheel_filename(file.name)[3]
            except InvalidWheelFilename:
                continue
            if fitting := [ranks[tag] for tag in tags if tag in ranks]:
                ranked.append((min(fitting), file.name, file))
        if not ranked:
            raise DeviceError(
                f"{package['name']}: the package index has no wheel for this board; "
                f"try another --python"
            )
        return min(ranked)[2]

    def _tags(self) -> list[Tag]:
        major, minor = (int(part) for part in self.python.split("."))
        newest = self.jetpack.glibc
        platforms = [f"manylinux_2_{n}_aarch64" for n in range(newest, _OLDEST_GLIBC - 1, -1)]
        platforms += ["manylinux2014_aarch64", "linux_aarch64"]
        version = (major, minor)
        interpreter = f"cp{major}{minor}"
        return [
            *cpython_tags(version, platforms=platforms),
            *compatible_tags(version, interpreter, platforms),
        ]


def run_uv(*arguments: str) -> str:
    """Return the standard output of uv.

    Raises:
        ConfigError: if uv is not installed.
        DeviceError: if uv fails; the message comes from uv.
    """
    beside = Path(sys.executable).with_name("uv")
    program = str(beside) if beside.exists() else shutil.which("uv")
    if program is None:
        raise ConfigError(
            "uv, which finds wheels for other machines, is not installed; run pip install uv"
        )
    ended = subprocess.run(
        [program, *arguments],
        env=os.environ | {"UV_NO_CONFIG": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        raise DeviceError(
            " ".join(ended.stderr.split()) or f"uv ended with status {ended.returncode}"
        )
    return ended.stdout


def _remote(entry: dict[str, Any]) -> RemoteFile:
    return RemoteFile(
        entry["url"].partition("#")[0], entry.get("hashes", {}).get("sha256", ""), entry.get("size")
    )
