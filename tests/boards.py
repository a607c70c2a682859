"""A machine that pretends to be a Jetson, and local package indexes that log requests."""

import base64
import hashlib
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from helpers import ROOT

SCRIPT = ROOT / "devices" / "jetson" / "install.sh"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
JETPACK_6 = "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64"
JETPACK_7 = "# R39 (release), REVISION: 2.0, GCID: 45755727, BOARD: generic, EABI: aarch64"
TORCH = """
__version__ = "{version}"


class version:
    cuda = "12.6"


class cuda:
    is_available = staticmethod(lambda: {available})
    get_device_capability = staticmethod(lambda: (8, 7))
    get_arch_list = staticmethod(lambda: ["sm_80", "sm_90"])


class full:
    def __init__(self, shape, value, device):
        self.value = value

    def __matmul__(self, other):
        {product}
        return self

    cpu = __eq__ = all = lambda self, *_: self
    __hash__ = None

    def __bool__(self):
        return True
"""
WORKS = TORCH.format(version="2.9.1", available=True, product="pass")
NO_GPU = TORCH.format(version="2.9.1", available=False, product="pass")
NO_KERNEL = TORCH.format(
    version="2.9.1",
    available=True,
    product='raise RuntimeError("CUDA error: no kernel image is available\\nmore")',
)
NO_IMPORT = 'raise ImportError("libcublas.so.13: cannot open shared object file")'


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    code: str,
    needs: tuple[str, ...] = (),
    tag: str = "",
    scripts: Mapping[str, str] | None = None,
) -> Path:
    """Write a wheel with scripts, and with one module that has the distribution's name."""
    folder.mkdir(parents=True, exist_ok=True)
    module = name.replace("-", "_")
    tag = tag or "py3-none-any"
    info = f"{module}-{version}.dist-info"
    requires = "".join(f"Requires-Dist: {need}\n" for need in needs)
    files = {
        f"{module}.py": code,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    files |= {f"{module}-{version}.data/scripts/{n}": t for n, t in (scripts or {}).items()}
    rows = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        rows.append(f"{path},sha256={digest.decode()},{len(text.encode())}\n")
    files[f"{info}/RECORD"] = "".join(rows) + f"{info}/RECORD,,\n"
    wheel = folder / f"{module}-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel


@dataclass
class Indexes:
    """A server with the board's index and the package index, and a log of their requests."""

    address: str
    folder: Path
    log: list[str] = field(default_factory=list)
    broken: dict[str, int] = field(default_factory=dict)
    """Files whose next download breaks off, with the number of bytes sent before."""

    def offer(self, index: str, name: str, *wheels: Path) -> None:
        """Put wheels into an index."""
        listing = self.folder / index / name
        listing.mkdir(parents=True, exist_ok=True)
        for wheel in wheels:
            shutil.copy(wheel, listing)
        lines = [
            f'<a href="{f.name}#sha256={hashlib.sha256(f.read_bytes()).hexdigest()}">{f.name}</a>\n'
            for f in sorted(listing.glob("*.whl"))
        ]
        (listing / "index.html").write_text("".join(lines))

    def asked(self, index: str) -> set[str]:
        """Distributions that were requested from an index."""
        return {path.split("/")[2] for path in self.log if path.startswith(f"/{index}/")}

    def fetched(self) -> list[str]:
        """Wheels that were fetched, in order."""
        return [path[1:] for path in self.log if path.endswith(".whl")]


def part_of(size: int, asked: "re.Match[str] | None") -> tuple[int, int]:
    """Return begin and end of the part of a file that a Range header requests: a-b, a- or -last."""
    if asked is None:
        return 0, size
    if not asked[1]:
        return max(0, size - int(asked[2])), size
    return int(asked[1]), min(size, int(asked[2]) + 1) if asked[2] else size


@contextmanager
def serve_indexes(folder: Path) -> Iterator[Indexes]:
    """Serve the indexes of a folder on loopback, and parts of files on request."""
    made = Indexes("", folder)

    class Handler(SimpleHTTPRequestHandler):
        def note(self, rest: str) -> None:
            if self.command == "GET":
                made.log.append(self.path + rest)

        def do_GET(self) -> None:
            asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
            whole = Path(self.translate_path(self.path))
            if not whole.is_file():
                self.note("")
                super().do_GET()
                return
            content = whole.read_bytes()
            begin, end = part_of(len(content), asked)
            rest = " a part" if asked and asked[2] else f" from {begin}"
            self.note(rest if asked else "")
            if begin >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if asked else 200)
            self.send_header("Content-Length", str(end - begin))
            self.send_header("Accept-Ranges", "bytes")
            if asked:
                self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
            self.end_headers()
            if self.command == "HEAD":
                return
            stop = None if asked else made.broken.pop(whole.name, None)
            self.wfile.write(content[begin : end if stop is None else begin + stop])

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    made.address = f"http://127.0.0.1:{server.server_port}"
    wheels = folder.parent / "wheels"
    made.offer("pypi", "torch", make_wheel(wheels, "torch", "2.99.0", "server = True"))
    made.offer("pypi", "fsspec", make_wheel(wheels, "fsspec", "1.0", ""))
    made.offer("pypi", "samara", make_wheel(wheels, "samara", "9.0", "foreign = True"))
    ours = make_wheel(wheels, "samara-fl", "0.1.0", "", ("torch>=2.6", "numpy>=1.26"))
    made.offer("pypi", "samara-fl", ours)
    made.offer("pypi", "numpy", make_wheel(wheels, "numpy", "2.0", ""))
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()


@dataclass(frozen=True)
class Board:
    """A machine that pretends to be a Jetson."""

    folder: Path
    indexes: Indexes

    @property
    def prefix(self) -> Path:
        return self.folder / "opt"

    def install(
        self, *options: str, release: str = JETPACK_6
    ) -> "subprocess.CompletedProcess[str]":
        """Run the script; unless a board's index is named, it is the local one."""
        uv = Path(sys.executable).parent
        if not {"--torch-index", "--torch-wheel", "--uninstall"} & set(options):
            options = ("--torch-index", f"{self.indexes.address}/board", *options)
        common = ("--python", sys.executable, "--from", "samara-fl")
        places = {
            "PATH": f"{uv}:/usr/bin:/bin",
            "UV_DEFAULT_INDEX": f"{self.indexes.address}/pypi",
        }
        return self.run_script(SCRIPT, *common, *options, release=release, environment=places)

    def install_without_network(
        self, script: Path, *options: str, release: str = JETPACK_7
    ) -> "subprocess.CompletedProcess[str]":
        """Run a script without a network; uv is missing, and Python is installed."""
        commands = self.folder / "commands"
        commands.mkdir(exist_ok=True)
        python = commands / f"python{PYTHON}"
        python.unlink(missing_ok=True)
        python.symlink_to(Path(sys.executable).resolve())
        places = {"PATH": f"{commands}:/usr/bin:/bin"}
        cut_off = ("unshare", "--net", "--map-root-user")
        return self.run_script(*cut_off, script, *options, release=release, environment=places)

    def run_script(
        self, *command: str | Path, release: str, environment: Mapping[str, str]
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command as on the board."""
        commands = self.folder / "commands"
        commands.mkdir(exist_ok=True)
        (commands / "uname").write_text("#!/bin/sh\necho aarch64\n")
        (commands / "uname").chmod(0o755)
        (self.folder / "release").write_text(f"{release}\n")
        board = {
            "HOME": str(self.folder),
            "TEGRA_RELEASE_FILE": str(self.folder / "release"),
            "UV_PYTHON_DOWNLOADS": "never",
        }
        return subprocess.run(
            [*command, "--prefix", str(self.prefix)],
            env=board | environment | {"PATH": f"{commands}:{environment['PATH']}"},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def version_of(self, distribution: str) -> str:
        code = f"import importlib.metadata as m; print(m.version({distribution!r}))"
        python = self.prefix / "venv" / "bin" / "python"
        command = [python, "-I", "-c", code]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        return ended.stdout.strip()


def offer_torch(board: Board, code: str, tag: str = "") -> Path:
    wheel = make_wheel(board.folder / "wheels" / "b", "torch", "2.9.1", code, ("fsspec",), tag)
    board.indexes.offer("board", "torch", wheel)
    return wheel
