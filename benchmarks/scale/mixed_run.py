"""One run of boards, a laptop and phones: real processes over TLS with device keys, on loopback.

    python -m benchmarks.scale.mixed_run [--rounds 30] [--private-rounds 5] [--layers top:1]
        [--kill-gateway] [--folder DIR]

Two resident trainers as a Jetson runs them, one of them with an NF4 base model, a laptop's client,
and behind a gateway three reference phones with programs in fp32, int8 and 8da4w. The model is the
embedded one, and each has the messages of a writer of its own. Prints as JSON the accuracy of each
on its own test messages before the first round and after the last, with --private-rounds also that
of its personal model, of the same private rounds without the others, and of a label bias alone, as
the server was told; and where everybody stands: session on the disk, ledger, and `samara server
check --replay`. With --kill-gateway the gateway's process is killed (-9) in the middle and started
again. At last every kind of model evaluates base and final state on everybody's test messages. With
--folder, a short path, what was made and trained stays there, and the same command goes on with it.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import nullcontext
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil
import typer

from benchmarks.faults.live_run import ROOT, LiveRun, Place
from benchmarks.faults.ports import free_address
from benchmarks.speed.live import round_seconds
from samara.client.protocol.session_store import decode_session
from samara.client.training.model_runtime import load_run
from samara.devices.phone.reference_client.examples import read_examples
from samara.devices.phone.reference_client.phone_learner import PhoneLearner
from samara.devices.phone.reference_client.readout_program import load_program
from samara.server.live.keys import KEYS_FOLDER, ClientKeys
from samara.shared.config import RunConfig
from samara.shared.frames.instructions import Split
from samara.shared.label_scores import Confusion, evaluation_column
from samara.shared.model.model_folder import find_embedded_model
from samara.shared.settings import Scalar
from samara.shared.tasks.embedded import MESSAGES_PER_WRITER
from samara.shared.tasks.messages import messages, writers

SETTINGS: dict[str, Scalar] = {
    "steps": 2,
    "queries": 16,
    "batch": 32,
    "personal.rounds": 0,
    "evaluate.every": 0,
    "cohort.timeout": 3600.0,  # a round ends when all have answered, however busy the machine is
    "ledger.snapshot-every": 0,
}
BOARDS = {"jetson": "none", "jetson-nf4": "nf4", "laptop": "none"}
"""Quantization of the base model of each client."""
PHONES = {"phone-fp32": "none", "phone-int8": "int8", "phone-8da4w": "8da4w"}
"""That of each phone's program."""
PERSONAL_COLUMNS = "label bias", "local-only", "personalized"
"""Columns of the personal comparison whose accuracies are printed."""
GATEWAY, EVERYBODY = "gateway", "everybody"
OPEN = "phones attach at port"
"""The gateway's log line when phones can attach."""
MODEL = str(find_embedded_model())
"""The path of the embedded model: its name would stand for generated messages."""
TASK = str(files("samara.shared.tasks") / "prompts" / "messages.toml")
SHAPE = ("--queries", "8", "--batch", "16", "--seq", "32")


def samara(folder: Path, *command: str) -> str:
    """Run a command to its end; returns what it printed.

    Raises:
        subprocess.CalledProcessError: if it fails.
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
    """A folder of training, validation and test messages for each participant, and of all."""
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


def prepare_phones(folder: Path, data: Mapping[str, Path], run: Path, layers: str) -> None:
    """Programs, rows and keys, by the commands that an operator gives."""
    (folder / "phones").mkdir(exist_ok=True)
    known = {key.name for key in ClientKeys(run / KEYS_FOLDER).read_all()}
    for name, quantization in PHONES.items():
        if name in known:  # its key is registered last
            continue
        program, public = f"{name}.pte", folder / "phones" / f"{name}.pem"
        kind = ("--model", MODEL, "--task", TASK, "--quantization", quantization)
        adapter = ("--set", f"adapter.layers={layers}")
        samara(folder, "phone", "export", *SHAPE, *kind, *adapter, "--out", program)
        rows = ("--data", str(data[name]), "--program", program, "--out", f"{name}.jsonl")
        samara(folder, "phone", "rows", "--model", MODEL, "--task", TASK, *rows)
        public.write_text(samara(folder, "phone", "key", f"{name}.key"))
        samara(folder, "server", "keys", "create", name, str(public), "--run", str(run))


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


def killed(live: LiveRun, address: str, door: str) -> dict[str, Any]:
    """Kill the gateway in the middle of the run, and wait until every phone has reported again."""
    before = live.last()
    live.clients[GATEWAY].kill()
    live.clients[GATEWAY].wait()
    begun, starts = time.monotonic(), live.said(GATEWAY).count(OPEN)
    start_gateway(live, address, door)

    def all_there() -> bool:
        *earlier, since = live.said(GATEWAY).split(OPEN)
        return len(earlier) > starts and f"{len(PHONES)} phones attached" in since

    live.wait(all_there, "the phones")
    attached = time.monotonic() - begun
    for name in PHONES:
        live.wait_for_report(name)
    return {
        "after round": before,
        "seconds until all phones were attached again": round(attached, 1),
        "rounds without all phones": [
            number for number in live.rounds if not set(PHONES) <= live.reporters(number)
        ],
    }


def served(live: LiveRun, data: Mapping[str, Path], kill: bool) -> dict[str, Any]:
    """Serve all rounds; returns the figures."""
    address = live.address
    door, figures = free_address(), dict[str, Any]()
    live.start_server()
    live.wait(lambda: live.said().count("may join") >= len(live.names), "the server")
    start_gateway(live, address, door)
    live.wait(lambda: OPEN in live.said(GATEWAY), "the gateway")
    for name in PHONES:
        start_phone(live, name, door)
    for name, quantization in BOARDS.items():
        own = ("--set", "threads=1", "--set", f"model.quantization={quantization}")
        what = ("--model", MODEL, "--data", str(data[name]), "--task", TASK)
        live.start_client(name, None, *what, *own)
    live.wait_for_round(1, 900)
    if kill:
        live.wait_for_round(int(live.settings["rounds"]) // 3, 1200)
        figures["gateway killed"] = killed(live, address, door)
    assert live.server is not None, "it was started above"
    live.wait(lambda: live.server and live.server.poll() is not None, "the end of the run", 3600)
    assert live.server.returncode == 0, live.said()[-2000:]
    return figures


def ended(live: LiveRun) -> dict[str, int]:
    """Ask everybody to end; exit statuses.

    Raises:
        AssertionError: if a process is left.
    """
    for process in live.clients.values():
        process.terminate()
    statuses = {name: process.wait(600) for name, process in live.clients.items()}
    left = [p.pid for p in psutil.process_iter(["cmdline"]) if _is_of(p, live.folder)]
    assert not left, f"processes are left: {left}"
    return statuses


def _is_of(process: psutil.Process, folder: Path) -> bool:
    named = str(folder) in " ".join(process.info["cmdline"] or [])
    return named and process.pid != os.getpid()  # --folder names it here too


def accuracies(live: LiveRun) -> dict[str, dict[str, Any]]:
    """Return each client's accuracy on its own test messages, before and after, in percent."""
    result = json.loads((live.run / "result.json").read_text(encoding="utf-8"))
    tests = [
        each["columns"]["global"]["clients"]
        for each in result["evaluations"]
        if each["split"] == "test" and list(each["columns"]) == ["global"]
    ]
    compared = [
        each["columns"] for each in result["evaluations"] if "local-only" in each["columns"]
    ]
    reports = [live.reporters(number) for number in live.rounds]
    return {
        name: {
            "accuracy before": round(100 * tests[0][str(live.devices[name])]["accuracy"], 1),
            "accuracy after": round(100 * tests[-1][str(live.devices[name])]["accuracy"], 1),
            "loss before": round(tests[0][str(live.devices[name])]["loss"], 3),
            "loss after": round(tests[-1][str(live.devices[name])]["loss"], 3),
            "reports": sum(name in reporters for reporters in reports),
        }
        | {
            column: round(100 * columns[column]["clients"][str(live.devices[name])]["accuracy"], 1)
            for columns in compared
            for column in PERSONAL_COLUMNS
        }
        for name in [*BOARDS, *PHONES]
    }


def on_the_same(live: LiveRun, data: Path) -> dict[str, Any]:
    """Accuracy of the base and of the final model by each kind, all on everybody's messages."""
    [session] = live.home(next(iter(PHONES))).glob("runs/*/session")
    final = decode_session(session.read_bytes()).state
    rows = live.folder / "everybody.jsonl"
    found: dict[str, Any] = {}
    for name in PHONES:
        program = live.folder / f"{name}.pte"
        of = ("--program", str(program), "--model", MODEL, "--task", TASK)
        samara(live.folder, "phone", "rows", *of, "--data", str(data), "--out", str(rows))
        loaded = load_program(program)
        phone = PhoneLearner(loaded, read_examples(rows, loaded.manifest))
        found[name] = [
            Confusion(evaluation_column("", *phone.score(state, Split.TEST)).counts).accuracy
            for state in (np.zeros_like(final), final)
        ]
    own: dict[str, Scalar] = {"model.path": MODEL, "task": TASK, "data.path": str(data)}
    for name, quantization in BOARDS.items():
        settings = own | {"model.quantization": quantization, "data.clients": 1, "threads": 1}
        runtime, source = load_run(RunConfig.of(live.settings | settings, "mixed run"))
        test = source.undivided(0).tokenized(Split.TEST)
        found[name] = [
            float((runtime.scores(state, test.prompts).argmax(1) == test.labels).mean())
            for state in (np.zeros_like(final), final)
        ]
    return {name: [round(100 * accuracy, 1) for accuracy in both] for name, both in found.items()}


def main(
    rounds: Annotated[int, typer.Option(min=3)] = 30,
    private_rounds: Annotated[int, typer.Option(min=0)] = 0,
    layers: Annotated[str, typer.Option(help="adapter.layers of everybody.")] = "readout",
    kill_gateway: Annotated[bool, typer.Option("--kill-gateway")] = False,
    seed: int = 0,
    folder: Annotated[Path | None, typer.Option(help="Folder that stays.")] = None,
) -> None:
    """Print as JSON who ended where."""
    address = free_address()
    names = [*BOARDS, *PHONES, GATEWAY]
    settings = SETTINGS | {"rounds": rounds, "cohort.available": len(names) - 1, "seed": seed}
    settings |= {"personal.rounds": private_rounds, "adapter.layers": layers}
    if kill_gateway:  # no answer comes from phones behind it
        settings["cohort.timeout"] = 120.0
    with nullcontext(folder) if folder else tempfile.TemporaryDirectory(prefix="w") as place:
        folder = Path(place).absolute()
        data = write_messages(folder, seed)
        prepare_phones(folder, data, folder / "run", layers)
        keys = ClientKeys(folder / "run" / KEYS_FOLDER)
        if not keys.find_by_name(GATEWAY):
            keys.create(GATEWAY, gateway=True)
        with LiveRun(folder, settings, names, address) as live:
            has_ended = (live.run / "result.json").exists()
            figures = {} if has_ended else served(live, data, kill_gateway)
            digests = {name: digest for name, (_, digest) in live.positions().items()}
            figures |= {
                "rounds, every session in a state of the ledger": live.check(),
                "digests of the sessions": digests,
                "one digest everywhere": len(set(digests.values())) == 1
                and len(digests) == len(names) - 1,
                "verify": samara(folder, "server", "check", "--replay", str(live.run)).strip(),
                "participants": accuracies(live),
                "on everybody's test messages, before and after": on_the_same(
                    live, data[EVERYBODY]
                ),
                "seconds of a round": round_seconds(live.run),
                "exit statuses": ended(live),
            }
        print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    typer.run(main)
