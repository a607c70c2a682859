"""The command that starts a client which has joined a run."""

import shlex
from collections.abc import Mapping
from pathlib import Path

from samara.shared.data_settings import EMBEDDED_DATA
from samara.shared.sections import EMBEDDED_MODEL

_DEMO = (EMBEDDED_DATA, EMBEDDED_MODEL)
"""Task and model that `samara client up` has by default, with examples that it generates."""


def describe_start(name: str, home: Path | None, names: Mapping[str, str]) -> list[str]:
    """Return the command that starts a client that has joined, and before it what to fill in. Pure.

    Args:
        name: name of the client.
        home: its folder, if it is not the usual one.
        names: the run's task and model, as far as they are known.
    """
    command = ["samara", "client", "up", "--name", name, *(["--home", str(home)] if home else [])]
    task, model = names.get("task", ""), names.get("model", "")
    if (task, model) == _DEMO:
        return [shlex.join(command)]
    blanks = {"DATA": "your examples, a file or folder"}
    if not model:
        blanks["MODEL"] = "the run's model, a folder or a name on the Hugging Face hub"
    if not task or task.endswith(".toml"):
        blanks["TASK"] = f"the operator's task file{task and f' {task}'}, or a shipped task"
    words = [*command, "--model", model or "MODEL", "--data", "DATA"]
    words += ["--task", "TASK" if "TASK" in blanks else task]
    what = "; ".join(f"{blank}: {meaning}" for blank, meaning in blanks.items())
    return [f"fill in {what}", shlex.join(words)]
