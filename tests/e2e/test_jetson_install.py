"""devices/jetson/install.sh against local indexes: what it asks which index for, and says."""

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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
    folder: Path, name: str, version: str, code: str, needs: tuple[str, ...] = (), tag: str = ""
) -> Path:
    """Write a wheel with one module of the distribution's name."""
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
    """A server with the board's index and the package index, and what each was asked for."""

    address: str
    folder: Path
    log: list[str] = field(default_factory=list)

    def offer(self, index: str, name: str, *wheels: Path) -> None:
        """Put wheels into an index."""
        listing = self.folder / index / name
        listing.mkdir(parents=True, exist_ok=True)
        for wheel in wheels:
            shutil.copy(wheel, listing)
        names = [f.name for f in sorted(listing.glob("*.whl"))]
        (listing / "index.html").write_text("".join(f'<a href="{n}">{n}</a>\n' for n in names))

    def asked(self, index: str) -> set[str]:
        """Distributions that an index was asked for."""
        return {path.split("/")[2] for path in self.log if path.startswith(f"/{index}/")}

    def fetched(self) -> list[str]:
        """Wheels that were fetched, in order."""
        return [path[1:] for path in self.log if path.endswith(".whl")]


@pytest.fixture
def indexes(tmp_path: Path) -> Iterator[Indexes]:
    folder = tmp_path / "indexes"
    log: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            log.append(self.path)
            super().do_GET()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    made = Indexes(f"http://127.0.0.1:{server.server_port}", folder, log)
    wheels = tmp_path / "wheels"
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
    """A machine that says that it is a Jetson."""

    folder: Path
    indexes: Indexes

    @property
    def prefix(self) -> Path:
        return self.folder / "opt"

    def install(
        self, *options: str, release: str = JETPACK_6
    ) -> "subprocess.CompletedProcess[str]":
        """Run the script; the board's index, where none is named, is the local one."""
        commands = self.folder / "commands"
        commands.mkdir(exist_ok=True)
        (commands / "uname").write_text("#!/bin/sh\necho aarch64\n")
        (commands / "uname").chmod(0o755)
        (self.folder / "release").write_text(f"{release}\n")
        uv = Path(sys.executable).parent
        if not {"--torch-index", "--torch-wheel", "--uninstall"} & set(options):
            options = ("--torch-index", f"{self.indexes.address}/board", *options)
        environment = {
            "HOME": str(self.folder),
            "PATH": f"{commands}:{uv}:/usr/bin:/bin",
            "TEGRA_RELEASE_FILE": str(self.folder / "release"),
            "UV_DEFAULT_INDEX": f"{self.indexes.address}/pypi",
            "UV_PYTHON_DOWNLOADS": "never",
        }
        common = ("--prefix", str(self.prefix), "--python", sys.executable, "--from", "samara-fl")
        return subprocess.run(
            [str(SCRIPT), *common, *options],
            env=environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def version_of(self, distribution: str) -> str:
        code = f"import importlib.metadata as m; print(m.version({distribution!r}))"
        python = self.prefix / "venv" / "bin" / "python"
        ended = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
        return ended.stdout.strip()


@pytest.fixture
def board(tmp_path: Path, indexes: Indexes) -> Board:
    if not (Path(sys.executable).parent / "uv").exists():
        pytest.skip("uv is missing")
    return Board(tmp_path, indexes)


def offer_torch(board: Board, code: str, tag: str = "") -> Path:
    wheel = make_wheel(board.folder / "wheels" / "b", "torch", "2.9.1", code, ("fsspec",), tag)
    board.indexes.offer("board", "torch", wheel)
    return wheel


@pytest.mark.slow
@pytest.mark.parametrize(("release", "jetpack"), [(JETPACK_6, 6), (JETPACK_7, 7)])
def test_torch_comes_from_the_index_of_the_board_alone(
    board: Board, release: str, jetpack: int
) -> None:
    offer_torch(board, WORKS)
    first = board.install(release=release)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "torch 2.9.1 for CUDA 12.6: a matrix product on sm_87 is right" in first.stdout
    assert f"installed for JetPack {jetpack}" in first.stdout
    assert board.version_of("torch") == "2.9.1"
    assert board.version_of("samara-fl") == "0.1.0"
    assert board.version_of("fsspec") == "1.0"  # which torch needs
    assert board.version_of("samara") == ""
    assert board.indexes.asked("board") == {"torch", "triton"}
    assert board.indexes.fetched()[0].startswith("board/torch/torch-2.9.1")
    assert not [wheel for wheel in board.indexes.fetched() if "torch-2.99" in wheel]
    assert "going on without triton" in first.stdout

    del board.indexes.log[:]
    again = board.install(release=release)
    assert again.returncode == 0, again.stdout + again.stderr
    assert board.indexes.fetched() == []
    assert board.version_of("torch") == "2.9.1"

    removed = board.install("--uninstall")
    assert removed.returncode == 0, removed.stderr
    assert not board.prefix.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "said"),
    [
        pytest.param(
            NO_KERNEL,
            "cannot multiply on this GPU, sm_87; it has sm_80 sm_90: CUDA error: no kernel image",
            id="no-kernel",
        ),
        pytest.param(NO_GPU, "torch 2.9.1 for CUDA 12.6 finds no GPU", id="no-gpu"),
        pytest.param(NO_IMPORT, "torch does not import: libcublas.so.13", id="no-import"),
    ],
)
def test_a_torch_that_does_not_multiply_is_refused_with_its_reason(
    board: Board, code: str, said: str
) -> None:
    offer_torch(board, code)
    ended = board.install()
    assert ended.returncode == 1
    assert said in ended.stderr
    assert "on JetPack 6 the container works: devices/jetson/Containerfile" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_an_index_without_a_wheel_for_this_python_is_said_and_mended_by_another(
    board: Board,
) -> None:
    offer_torch(board, WORKS, "cp36-cp36m-linux_aarch64")
    ended = board.install()
    assert ended.returncode == 1
    assert f"at {board.indexes.address}/board; on JetPack 6 the container works" in ended.stderr
    assert board.indexes.asked("pypi") == set()

    wheel = make_wheel(board.folder / "more", "torch", "2.10.0", WORKS, ("fsspec",))
    board.indexes.offer("elsewhere", "torch", wheel)
    url = f"{board.indexes.address}/elsewhere/torch/{wheel.name}"
    wrong = board.install("--torch-wheel", url, "--sha256", "0" * 64)
    assert wrong.returncode == 1
    assert "has another SHA-256" in wrong.stderr
    assert board.version_of("torch") == ""
    right = hashlib.sha256(wheel.read_bytes()).hexdigest()
    ended = board.install("--torch-wheel", url, "--sha256", right)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert board.version_of("torch") == "2.10.0"


def test_a_dry_run_prints_the_commands_and_changes_nothing(board: Board) -> None:
    ended = board.install("--dry-run")
    assert ended.returncode == 0, ended.stderr
    assert f"--default-index {board.indexes.address}/board torch>=2.6" in ended.stdout
    assert "--extra-index-url" not in ended.stdout
    assert not board.prefix.exists()
    assert board.indexes.log == []


@pytest.mark.parametrize(
    ("options", "release", "said"),
    [
        (("--from", "samara"), JETPACK_6, "another project; ours is samara-fl"),
        (("--from", "samara==1.0"), JETPACK_6, "another project; ours is samara-fl"),
        (("--torch-wheel", "https://example.org/torch.whl"), JETPACK_6, "needs --sha256"),
        ((), "# R32 (release), REVISION: 7.1", "L4T R32 is neither JetPack 6"),
        (("--service", "a b"), JETPACK_6, "--service"),
        (("--uninstall",), JETPACK_6, "was not made by this script"),
        (("--colour",), JETPACK_6, "unknown option --colour"),
    ],
)
def test_what_cannot_be_installed_is_said_before_anything_is_changed(
    board: Board, options: tuple[str, ...], release: str, said: str
) -> None:
    ended = board.install(*options, release=release)
    assert ended.returncode == 1
    assert said in ended.stderr
    assert not board.prefix.exists()
    assert board.indexes.log == []


@pytest.mark.skipif(os.geteuid() != 0, reason="a service is installed by root")
def test_a_service_gets_user_groups_folders_options_and_its_unit(board: Board) -> None:
    ended = board.install("--dry-run", "--service", "kitchen-orin")
    assert ended.returncode == 0, ended.stderr
    for command in (
        "useradd --system --user-group --home-dir /var/lib/samara",
        "install -d -o root -g samara -m 0750 /etc/samara",
        "write /etc/systemd/system/samara-client@.service",
        "write /etc/samara/kitchen-orin.env",
        "chmod 0640 /etc/samara/kitchen-orin.env",
        "systemctl enable samara-client@kitchen-orin",
    ):
        assert f"+ {command}" in ended.stdout
    assert not board.prefix.exists()


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is missing")
    unit = tmp_path / "samara-client@.service"
    shipped = (SCRIPT.parent / unit.name).read_text()
    assert "ExecStart=/opt/samara/venv/bin/samara client up" in shipped
    page = (ROOT / "docs" / "guides" / "jetson.md").read_text()
    [power_mode] = re.findall(r"```ini\n\[Service\]\n((?:Exec.*nvpmodel.*\n){2})```", page)
    lines = shipped.replace("[Service]\n", f"[Service]\n{power_mode}")
    for program in ("/opt/samara/venv/bin/samara", "/usr/sbin/nvpmodel"):
        lines = lines.replace(program, "/bin/true")
    unit.write_text(lines)
    ended = subprocess.run([analyze, "verify", unit], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout + ended.stderr) == (0, "")
    assert lines.count("=+/bin/true") == 2


def test_the_scripts_are_clean_for_shellcheck() -> None:
    shellcheck = shutil.which("shellcheck", path=os.environ["PATH"])
    if shellcheck is None:
        pytest.skip("shellcheck is missing")
    scripts = [SCRIPT, ROOT / "tests" / "arm64.sh", ROOT / ".ci" / "run"]
    ended = subprocess.run([shellcheck, *scripts], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout
