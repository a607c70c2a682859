"""Make a release of the commit that is checked out: ``make release``.

pyproject.toml names the version. The command refuses uncommitted changes, a version that already
has a tag, a changelog without a section for the version, and a CITATION.cff with another version.

It then runs `make check`, `make docs` and `make phone-page`, and fills the folder dist/VERSION:

- wheel and sdist, both with the page for browsers
- documentation
- SBOM: CycloneDX, of an environment with the wheel and the versions of constraints.txt
- the changelog's section
- SHA256SUMS

Finally it creates the tag, but does not push it.

Wheel, sdist and documentation have the commit's time, and their order and modes do not depend on
the machine. The same commit, setuptools and zlib therefore give the same bytes.
"""

import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
from pathlib import Path

SBOM_TOOL = "cyclonedx-bom==7.5.0"
NAME = "samara_fl"
BUILT_PAGE, SHIPPED_PAGE = "build/phone-page", "devices/phone/web/page"
"""Folders of the page for browsers: after the build, and in the wheel."""


class ReleaseError(Exception):
    """Error that prevents a release."""


def run(*command: str | Path, folder: Path, **variables: str) -> str:
    """Return the standard output of a command.

    Raises:
        ReleaseError: if the command fails; its standard error is on the terminal.
    """
    ended = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if ended.returncode:
        raise ReleaseError(f"{ended.stdout}{' '.join(map(str, command))}: failed")
    return ended.stdout


def changelog_section(changelog: str, version: str) -> str:
    """Return a changelog's section about a version, without its heading; empty if missing."""
    heading = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$"
    found = re.search(rf"{heading}\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else ""


def find_obstacles(root: Path, version: str) -> list[str]:
    """Return the reasons why a version cannot be released, with remedies; empty if it can."""
    obstacles = []
    if changed := run("git", "status", "--porcelain", folder=root).splitlines():
        obstacles.append(f"uncommitted changes: {', '.join(line[3:] for line in changed)}")
    if run("git", "tag", "--list", f"v{version}", folder=root):
        obstacles.append(f"v{version} is tagged already: raise the version in pyproject.toml")
    if not changelog_section((root / "CHANGELOG.md").read_text(encoding="utf-8"), version):
        obstacles.append(f"CHANGELOG.md has no section '## [{version}] - YYYY-MM-DD' with contents")
    citation = (root / "CITATION.cff").read_text(encoding="utf-8")
    if f"\nversion: {version}\n" not in citation:
        obstacles.append(f"CITATION.cff and pyproject.toml ({version}) have different versions")
    return obstacles


def pack(folder: Path, file: Path, epoch: int) -> None:
    """Write a folder as .tar.gz whose bytes depend only on names, contents and a time.

    Args:
        folder: folder to pack, under its own name.
        file: path of the archive.
        epoch: time of every member, in seconds since 1970.
    """
    with (
        file.open("wb") as raw,
        gzip.GzipFile("", "wb", mtime=epoch, fileobj=raw) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in sorted([folder, *folder.rglob("*")]):
            member = archive.gettarinfo(path, str(path.relative_to(folder.parent)))
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            if member.isfile():
                with path.open("rb") as contents:
                    archive.addfile(member, contents)
            else:
                archive.addfile(member)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar archive into a folder, without the rights and links that Python refuses.

    Python below 3.11.4 has no filters and unpacks every member. This is safe, because the archives
    are Samara's own.
    """
    with tarfile.open(archive) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(folder)


def build_distributions(root: Path, out: Path) -> None:
    """Build wheel and sdist of the commit that is checked out, with the page for browsers.

    Uncommitted files are left out.

    Args:
        root: repository.
        out: folder for wheel and sdist.
    """
    epoch = int(run("git", "log", "-1", "--format=%ct", folder=root))
    backend = (
        "import sys; from setuptools import build_meta as b; getattr(b, sys.argv[1])(sys.argv[2])"
    )
    with tempfile.TemporaryDirectory() as work:
        source, made = Path(work) / "source", Path(work) / "made"
        archive = Path(work) / "source.tar"
        run("git", "archive", "--output", archive, "HEAD", folder=root)
        unpack(archive, source)
        shutil.copytree(root / BUILT_PAGE, source / SHIPPED_PAGE)
        before = os.umask(0o022)
        try:
            for kind in ("build_wheel", "build_sdist"):
                command = [sys.executable, "-c", backend, kind, made]
                run(*command, folder=source, SOURCE_DATE_EPOCH=str(epoch), PYTHONPATH="")
        finally:
            os.umask(before)
        [wheel], [sdist] = made.glob("*.whl"), made.glob("*.tar.gz")
        shutil.move(wheel, out)
        unpack(sdist, Path(work))
        pack(Path(work) / sdist.name.removesuffix(".tar.gz"), out / sdist.name, epoch)


def describe_installation(wheel: Path, constraints: Path, version: str, sbom: Path) -> None:
    """Install a wheel as a user would, check its version, and write an SBOM of the environment.

    Args:
        wheel: the wheel.
        constraints: file with the versions of its dependencies.
        version: expected output of `samara --version`.
        sbom: path of the CycloneDX file, JSON.

    Raises:
        ReleaseError: if the version differs, or an installation fails.
    """
    with tempfile.TemporaryDirectory() as work:
        installed, tools = Path(work) / "installed", Path(work) / "tools"
        for folder in (installed, tools):
            venv.create(folder, symlinks=True)
        pip = [sys.executable, "-m", "pip", "--quiet", "--python"]
        run(*pip, tools, "install", SBOM_TOOL, folder=Path(work))
        run(*pip, installed, "install", "--constraint", constraints, wheel, folder=Path(work))
        said = run(installed / "bin" / "samara", "--version", folder=Path(work), PYTHONPATH="")
        if said.split()[-1] != version:
            raise ReleaseError(f"the wheel of {version} says that it is {said.strip()}")
        cyclonedx = tools / "bin" / "cyclonedx-py"
        command = [str(cyclonedx), "environment", "--output-reproducible"]
        run(*command, "--output-file", sbom, installed / "bin" / "python", folder=Path(work))


def release(root: Path) -> Path:
    """Make and tag the release of a repository's commit; return the folder of its files.

    Raises:
        ReleaseError: if the version cannot be released, or a step fails; no tag is then created.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version: str = project["version"]
    if obstacles := find_obstacles(root, version):
        raise ReleaseError("\n".join(obstacles))
    for target in ("check", "docs", "phone-page"):
        print(f"make {target}", flush=True)
        run("make", "--no-print-directory", target, folder=root)
    epoch = int(run("git", "log", "-1", "--format=%ct", folder=root))
    out = root / "dist" / version
    shutil.rmtree(out, ignore_errors=True)  # of an earlier try: a finished one has a tag
    out.mkdir(parents=True)
    print(f"files in {out}", flush=True)
    build_distributions(root, out)
    [wheel] = out.glob("*.whl")
    sbom = out / f"{NAME}-{version}.cdx.json"
    describe_installation(wheel, root / "constraints.txt", version, sbom)
    pack(root / "build" / "site", out / f"{NAME}-{version}-docs.tar.gz", epoch)
    notes = out / f"{NAME}-{version}-changes.md"
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    notes.write_text(changelog_section(changelog, version) + "\n", encoding="utf-8")
    sums = [
        f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.name}\n" for f in sorted(out.iterdir())
    ]
    (out / "SHA256SUMS").write_text("".join(sums))
    if obstacles := find_obstacles(root, version):  # the steps took minutes
        raise ReleaseError("\n".join(obstacles))
    title = f"Samara {version}\n\n"
    message = title + notes.read_text(encoding="utf-8") + "\n" + "".join(sums)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
        file.write(message)
        file.flush()
        tag = ["git", "tag", "--annotate", "--cleanup=verbatim", f"v{version}", "--file", file.name]
        run(*tag, folder=root)
    return out


def main() -> None:
    """Run ``make release``."""
    root = Path(__file__).resolve().parents[1]
    try:
        out = release(root)
    except ReleaseError as error:
        sys.exit(f"no release:\n{error}")
    print((out / "SHA256SUMS").read_text(), end="")
    print(f"{out}\ntagged as v{out.name}; git push origin v{out.name} publishes the tag")


if __name__ == "__main__":
    main()
