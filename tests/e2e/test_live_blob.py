"""A live client fetches the basis of its run once, whichever process is killed meanwhile."""

from pathlib import Path
from typing import Any

import pytest
from bases import basis_for
from live import ONE_SMALL_STEP

from benchmarks.faults.live_run import LiveRun
from benchmarks.faults.ports import free_address
from samara.client.protocol.resident_trainer import BLOBS_FOLDER
from samara.shared.protocol.frames.blob import PART_BYTES
from samara.shared.storage.blob_store import BlobStore, blob_hash

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

CLIENT = "kitchen"
SETTINGS: dict[str, Any] = {
    "adapter.layers": "all",
    "adapter.rank": 16,
    "rounds": 1000,
    **ONE_SMALL_STEP,
    "cohort.available": 1,
    "cohort.timeout": 120.0,
}


def test_a_client_fetches_a_basis_once_and_goes_on_after_kills(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("b")  # short: sockets lie in it
    file = Path(basis_for({**SETTINGS, "out": ""}, tmp_path, 352))
    size, blob = file.stat().st_size, blob_hash(file)
    assert size > 3 * PART_BYTES
    settings = SETTINGS | {"adapter.basis": str(file)}
    with LiveRun(place, settings, [CLIENT], free_address()) as live:
        store = BlobStore(live.home(CLIENT) / BLOBS_FOLDER)

        def log() -> str:
            return (live.run / "log.jsonl").read_text()

        def has_received(least: int) -> bool:
            assert not live.last(), "a round is over, so all parts came unseen"
            return store.received_bytes(blob) >= least

        def start_server() -> None:
            before = live.said().count("listening on") if (place / "server.said").exists() else 0
            live.start_server()
            live.wait(lambda: live.said().count("listening on") > before, "the server")

        start_server()
        live.start_client(CLIENT, None, "--set", "threads=1")
        live.wait(lambda: has_received(PART_BYTES), "the first part")
        trainer = live.process(live.clients[CLIENT], "samara.devices.live.trainer_process")
        assert trainer
        trainer.kill()
        received = store.received_bytes(blob)
        assert received < size
        live.wait(lambda: has_received(received + 1), "the part after the kill")
        assert live.server
        live.server.terminate()
        live.server.wait()
        received = store.received_bytes(blob)
        assert 2 * PART_BYTES <= received < size
        start_server()
        live.wait_for_round(2)
        assert store.find(blob)
        left = f"lacks blob {blob.hex()[:12]}: {size - received} of {size} bytes are left to send"
        assert left in log()
        assert f"sent {size - received} bytes of {blob.hex()[:12]} to client" in log()
        assert live.said(CLIENT).count(f"received blob {blob.hex()[:12]}") == 1
        requests = log().count("lacks blob")
        live.clients[CLIENT].terminate()
        live.clients[CLIENT].wait()
        live.start_client(CLIENT, None, "--set", "threads=1")
        live.wait_for_report(CLIENT)
        assert log().count("lacks blob") == requests
        live.check()
