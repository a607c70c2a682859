"""The module path of Flower's processes, which run in another working folder."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from samara.server.live.superlink_process import SuperLinkProcess


class _StartError(Exception):
    """The SuperLink's process would start at this point."""


@pytest.mark.parametrize(("path", "found"), [("code", True), ("none:code", True), ("none", False)])
def test_relative_folders_are_those_of_the_server(
    path: str, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: dict[str, Any] = {}

    def start(command: list[str], **settings: Any) -> Any:
        started.update(settings)
        raise _StartError

    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", path)
    with monkeypatch.context() as patch:
        patch.setattr("samara.server.live.superlink_process.subprocess.Popen", start)
        with pytest.raises(_StartError):
            SuperLinkProcess(Path("run", "flower"), "127.0.0.1", 0, None, 100).start()
    assert started["cwd"] != tmp_path
    ended = subprocess.run(
        [sys.executable, "-c", "import mine"],
        cwd=started["cwd"],
        env=started["env"],
        capture_output=True,
        check=False,
    )
    assert (ended.returncode == 0) == found
