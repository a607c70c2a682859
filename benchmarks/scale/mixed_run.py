"""Parts of live runs with boards, and phones behind a gateway, on the embedded model."""

import json
import os
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

from benchmarks.faults.live_run import ROOT, LiveRun, Place
from samara.shared.model.model_folder import find_embedded_model
from samara.shared.tasks.embedded import MESSAGES_PER_WRITER
from samara.shared.tasks.messages import messages, writers

BOARDS = {"jetson": "none", "jetson-nf4": "nf4", "laptop": "none"}
"""Quantization of the base model of each client."""
PHONES = {"phone-fp32": "none", "phone-int8": "int8", "phone-8da4w": "8da4w"}
"""Quantization of each phone's program."""
GATEWAY, EVERYBODY = "gateway", "everybody"
OPEN = "phones attach at port"
"""The gateway's log line when phones can attach."""
MODEL = str(find_embedded_model())
"""Path of the embedded model; its name alone would select generated messages as the data."""
TASK = str(files("samara.shared.tasks") / "prompts" / "messages.toml")
SHAPE = ("--queries", "8", "--batch", "16", "--seq", "32")


def samara(folder: Path, *command: str) -> str:
    """Run a command to its end, and return its output.

    Raises:
        subprocess.CalledProcessError: if the command fails.
    """
    done = subprocess.run(
        [sys.executable, "-m", "samara", *command],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=folder,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout


def write_messages(folder: Path, seed: int) -> dict[str, Path]:
    """Write a folder of messages in three splits for each participant, and one for all together."""
    names = [*BOARDS, *PHONES]
    folders = {name: folder / f"data-{name}" for name in [*names, EVERYBODY]}
    if (written := folder / "messages.written").exists():
        return folders
    for place in folders.values():
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
    for name, writer in zip(names, writers(len(names), seed), strict=True):
        for split, count in MESSAGES_PER_WRITER.items():
            text = "".join(json.dumps(m) + "\n" for m in messages(writer, count, split, seed))
            for place in (folders[name], folders[EVERYBODY]):
                with (place / f"{split}.jsonl").open("a", encoding="utf-8") as file:
                    file.write(text)
    written.touch()
    return folders


def start_gateway(live: LiveRun, address: str, door: str, place: Place | None = None) -> None:
    """Start `samara gateway up`, or start it again."""
    of_server = ("--superlink", address, "--certs", str(live.run / "certificates" / "ca.pem"))
    of_phones = ("--listen", door, "--phones", str(live.folder / "phones"))
    own = ("--key", str(live.key(GATEWAY)), "--home", str(live.home(GATEWAY)))
    live.start(GATEWAY, ["gateway", "up", *of_server, *of_phones, *own], place)


def start_phone(live: LiveRun, name: str, door: str, place: Place | None = None) -> None:
    """Start `samara phone up`."""
    authority = live.home(GATEWAY) / "certificates" / "ca.pem"
    of_gateway = ("--gateway", door, "--certs", str(authority))
    own = ("--program", f"{name}.pte", "--rows", f"{name}.jsonl", "--key", f"{name}.key")
    command = ["phone", "up", *of_gateway, *own, "--home", str(live.home(name))]
    live.start(name, command, place)
