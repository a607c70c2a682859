"""The command that starts a client after it has joined a run."""

import shlex
from collections.abc import Mapping
from pathlib import Path

from samara.shared.settings.sections import EMBEDDED_MODEL
from samara.shared.tasks.messages import EMBEDDED_DATA

_DEMO = (EMBEDDED_DATA, EMBEDDED_MODEL)
"""Default task and model of `samara client up`, whose examples are generated."""


def describe_start(name: str, home: Path | None, names: Mapping[str, str]) -> list[str]:
    """Return lines with the command that starts a joined client, and hints on its placeholders.

    Args:
        name: name of the client.
        home: folder of the client if it is not the default one.
        names: names of the run's ``task`` and ``model``; unknown names are left out.
    """
    command = ["samara", "client", "up", "--name", name, *(["--home", str(home)] if home else [])]
    task = names.get("task", "")
    model = names.get("model", "")
    if (task, model) == _DEMO:
        return [shlex.join(command)]
    if model == EMBEDDED_MODEL:  # the default of a server whose operator has named no model
        model = ""
    blanks = {"DATA": "your examples, a file or folder"}
    if not model:
        blanks["MODEL"] = "the run's model, a folder or a name on the Hugging Face hub"
    if not task or task.endswith(".toml"):
        blanks["TASK"] = f"the operator's task file{task and f' {task}'}, or a shipped task"
    words = [*command, "--model", model or "MODEL", "--data", "DATA"]
    words += ["--task", "TASK" if "TASK" in blanks else task]
    what = "; ".join(f"{blank}: {meaning}" for blank, meaning in blanks.items())
    return [f"fill in {what}", shlex.join(words)]
