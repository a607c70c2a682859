"""The code of an earlier commit of this repository, for running it beside this version."""

import subprocess
import tarfile
from pathlib import Path

import pytest
from helpers import ROOT

_PACKAGES = ("samara", "shared", "client", "server", "devices", "simulations")


def earlier_code(commit: str, folder: Path) -> Path:
    """Write the packages of a commit into a folder; skip the test in a shallow clone."""
    archive = folder / "code.tar"
    command = ["git", "-C", ROOT, "archive", "--output", archive, commit, *_PACKAGES]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip(f"commit {commit} is not in this checkout's history")
    with tarfile.open(archive) as tar:
        tar.extraction_filter = getattr(tarfile, "tar_filter", None)  # Python below 3.11.4 has none
        tar.extractall(folder)
    return folder
