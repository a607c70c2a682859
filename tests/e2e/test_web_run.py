"""A board and a Python client, which joins like a browser by a link, reach the same digest."""

import hashlib
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from web_phones import StreamEndedError, WebSocketStub, make_page, open_stream

from benchmarks.faults.live_run import LiveRun
from benchmarks.faults.ports import free_address
from benchmarks.scale.mixed_run import GATEWAY, MODEL, TASK, samara, write_messages
from samara.devices.live.connection.gateway_stream import answer_tasks
from samara.devices.live.keys import create_key, read_client_index
from samara.devices.phone.program_index import ProgramIndex
from samara.devices.phone.reference_client.examples import read_examples
from samara.devices.phone.reference_client.phone import Phone
from samara.devices.phone.reference_client.phone_learner import PhoneLearner
from samara.devices.phone.reference_client.phone_worker import PhoneWorker
from samara.devices.phone.reference_client.readout_program import load_program
from samara.server.live.keys import KEYS_FOLDER, ClientKeys
from samara.shared.network.invitation import (
    JOIN_PATH,
    InvitationCode,
    JoinRequest,
    Welcome,
    join_proof,
)
from samara.shared.protocol.signing import SigningKey
from samara.shared.tasks.profiled_loss import PROFILED

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]
pytest.importorskip("onnxscript", reason="pip install 'samara-fl[onnx]'")

BOARD, BROWSER, DATA = "jetson", "anna", "phone-fp32"
ROUNDS = 2


def fetch_program(origin: str, folder: Path) -> Path:
    """Fetch the files in the index, each by its hash; return the program."""
    folder.mkdir()

    def fetch(name: str, sha256: str, file: Path) -> None:
        content = httpx.get(f"{origin}/program/{name}").raise_for_status().content
        assert not sha256 or hashlib.sha256(content).hexdigest() == sha256
        file.write_bytes(content)

    program = folder / "model.onnx"
    fetch("index.json", "", folder / "model.index.json")
    for file, sha256 in ProgramIndex.read(program).files(program):
        file.parent.mkdir(exist_ok=True)
        fetch(sha256, sha256, file)
    return program


def join(origin: str, link: str, key_file: Path) -> None:
    """Join by a link in the same way as the page."""
    code = InvitationCode.parse(link.removeprefix(f"{origin}/#join="))
    welcome = httpx.get(f"{origin}{JOIN_PATH}/{code.identifier}").raise_for_status().content
    assert Welcome.decode(welcome, code.trusted).authority.startswith("-----BEGIN")
    create_key(key_file)
    key = SigningKey(key_file)
    request = JoinRequest(code.secret, key.public, key.sign(join_proof(code.secret)))
    joined = httpx.post(f"{origin}{JOIN_PATH}", content=request.encode())
    assert joined.json() == {"name": BROWSER, "model": "embedded", "task": "messages"}


def attach(origin: str, phone: Any, key: SigningKey, ended: list[Any]) -> None:
    """Answer tasks until the gateway reports the run as finished, or rejects the key."""
    while not ended:
        try:
            for _ in answer_tasks(phone, key, WebSocketStub(lambda: open_stream(origin))):
                pass
        except StreamEndedError as error:
            if error.args[0] in (4007, 4011, 4016):
                ended.append(error.args)


def test_a_board_and_a_browser_that_joined_by_a_link_end_at_one_digest(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("b")
    data = write_messages(folder, 0)
    settings = {
        "rounds": ROUNDS,
        "steps": 1,
        "queries": 4,
        "personal.rounds": 0,
        "objective": PROFILED,
        "cohort.available": 2,
        "cohort.timeout": 600.0,
    }
    ClientKeys(folder / "run" / KEYS_FOLDER).create(GATEWAY, gateway=True)
    shapes = ("--batch", "16", "--seq", "32", "--runtime", "onnx", "--quantization", "float16")
    shapes += ("--set", "differences=central", "--set", "adapter.label-bias=true")
    kind = ("--model", MODEL, "--task", TASK)
    samara(folder, "phone", "export", *kind, *shapes, "--out", "model.onnx")
    rows = ("--data", str(data[DATA]), "--program", "model.onnx", "--out", "rows.jsonl")
    samara(folder, "phone", "rows", *kind, *rows)
    page, origin = make_page(folder / "page"), f"http://{free_address()}"
    with LiveRun(folder, settings, [BOARD, GATEWAY], free_address()) as live:
        live.serve()
        of_server = ("--superlink", live.address, "--certs", str(live.run / "certificates/ca.pem"))
        own = ("--key", str(live.key(GATEWAY)), "--home", str(live.home(GATEWAY)))
        web = ("--web", origin.removeprefix("http://"), "--page", str(page))
        more = ("--program", str(folder / "model.onnx"), "--listen", free_address())
        live.start(GATEWAY, ["gateway", "up", *of_server, *own, *web, *more])
        live.wait(lambda: f"browsers open {origin}" in live.said(GATEWAY), "the gateway")
        invited = ("--run", str(live.run), "--address", live.address, "--page", origin)
        link = samara(folder, "server", "invite", BROWSER, *invited).splitlines()[0]
        home = live.home(BROWSER)
        home.mkdir()
        program = load_program(fetch_program(origin, folder / "fetched"))
        assert program.check() < 5e-3
        join(origin, link, key_file := folder / "browser.key")
        examples = read_examples(folder / "rows.jsonl", program.manifest)
        learner = PhoneLearner(program, examples, read_client_index(key_file))
        key = SigningKey(key_file)
        phone = PhoneWorker(Phone(learner, home, signer=key))
        ended: list[Any] = []
        browser = threading.Thread(target=attach, args=(origin, phone, key, ended), daemon=True)
        browser.start()
        live.start_client(BOARD, None, *kind, "--data", str(data[BOARD]), "--set", "threads=1")
        live.wait(lambda: live.server and live.server.poll() is not None, "the end of the run")
        assert live.server is not None
        assert live.server.returncode == 0, live.said()[-2000:]
        live.wait(lambda: bool(ended), "the end of the browser's stream")
        assert ended == [(4011, "the run is finished")]
        browser.join()
        phone.close()
        live.check()
        live.names.append(BROWSER)
        positions = live.positions()
        assert set(positions) == {BOARD, BROWSER}
        assert len(set(positions.values())) == 1
        reports = [len(event["clients"]) for event in live.rounds.values() if event["clients"]]
        assert reports == [2] * (ROUNDS + 1)  # the last round adds the shifts
        assert "every digest reproduced" in samara(
            folder, "server", "check", "--replay", str(live.run)
        )
