"""Invalid frames that are sent to the server, and their outcomes.

    python -m benchmarks.faults.hostile_frames [--frames 100000] [--seed 0]

Valid answers are damaged, mixed up, replayed or invented. Most get a valid checksum again, so that
more of the code reads them. Half of the frames go to the decoders alone. The other half go to a
real run, as reports of 49 devices. A frame may cause only Samara errors with a message. No frame
may be aggregated, and memory must not grow.
"""

import gc
import logging
import struct
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import psutil
from flwr.app import ConfigRecord, Error, Message, RecordDict

from benchmarks.arguments import arguments
from benchmarks.faults.toy_client import EXAMPLES, LAYOUT, app
from samara.server.app import serve
from samara.shared.errors import RefusalCode, SamaraError
from samara.shared.flower_compat import ErrorCode
from samara.shared.protocol.frames.blob import BlobPart, BlobReceipt
from samara.shared.protocol.frames.evaluation import Evaluation
from samara.shared.protocol.frames.hello import Hello
from samara.shared.protocol.frames.instructions import EvaluateInstruction, TrainInstruction
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.protocol.round_delta import RoundDelta
from samara.shared.protocol.wire import RECORD, kind_of
from samara.shared.settings.config import RunConfig
from samara.simulations.engines.in_process import InProcessGrid

CLIENTS = 50
DECODERS: tuple[Callable[[bytes], object], ...] = (
    *(Report.decode, Evaluation.decode, Hello.decode, Refusal.decode),
    *(TrainInstruction.decode, EvaluateInstruction.decode, RoundDelta.decode),
    *(BlobPart.decode, BlobReceipt.decode),
)


def resealed(frame: bytes) -> bytes:
    """Return a frame after replacing its checksum with the correct one."""
    if len(frame) < 8:
        return frame
    checksum = zlib.crc32(frame[8:], zlib.crc32(frame[:4]))
    return frame[:4] + struct.pack("<I", checksum) + frame[8:]


def flipped(frame: bytes, others: list[bytes], rng: np.random.Generator) -> bytes:
    data = bytearray(frame)
    for _ in range(rng.integers(1, 4)):
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
    return bytes(data)


def cut(frame: bytes, others: list[bytes], rng: np.random.Generator) -> bytes:
    return resealed(frame[: rng.integers(len(frame))])


def extended(frame: bytes, others: list[bytes], rng: np.random.Generator) -> bytes:
    return resealed(frame + rng.bytes(int(rng.integers(1, 5000))))


def noise(frame: bytes, others: list[bytes], rng: np.random.Generator) -> bytes:
    return rng.bytes(int(rng.integers(300)))


def sealed_noise(frame: bytes, others: list[bytes], rng: np.random.Generator) -> bytes:
    kind = int(rng.integers(1, 14))
    return resealed(b"SM\x01" + bytes([kind]) + bytes(4) + rng.bytes(int(rng.integers(300))))


def of_another(frame: bytes, others: list[bytes], rng: np.random.Generator) -> bytes:
    """Return another valid frame: of another kind, round or device."""
    return others[rng.integers(len(others))]


def count_changed(frame: bytes, others: list[bytes], rng: np.random.Generator) -> bytes:
    """Return a frame whose numbers of steps and queries contradict its length or the request."""
    return resealed(frame[:24] + rng.bytes(4) + frame[28:])


def not_finite(frame: bytes, others: list[bytes], rng: np.random.Generator) -> bytes:
    bad = (np.nan, np.inf, -np.inf, 1e30, -2e6)[rng.integers(5)]
    at = 28 + 4 * int(rng.integers(max(1, (len(frame) - 28) // 4)))
    return resealed(frame[:at] + struct.pack("<f", bad) + frame[at + 4 :])


def token_changed(frame: bytes, others: list[bytes], rng: np.random.Generator) -> bytes:
    return resealed(frame[:8] + rng.bytes(8) + frame[16:])


def device_changed(frame: bytes, others: list[bytes], rng: np.random.Generator) -> bytes:
    device = struct.unpack_from("<I", frame, 16)[0] + int(rng.integers(1, 2**31))
    return resealed(frame[:16] + struct.pack("<I", device % 2**32) + frame[20:])


def of_newer_kind(frame: bytes, others: list[bytes], rng: np.random.Generator) -> bytes:
    """Return a refusal, a blob part or a blob receipt in place of a report; half are damaged."""
    token, device = frame[8:16].ljust(8, b"\0"), int(rng.integers(CLIENTS))
    start, numbers = int(rng.integers(2**20)), tuple(map(int, rng.integers(2**32, size=2)))
    # A refusal about a missing blob would end the sender's part in the run, and so the attack.
    code = int(rng.integers(RefusalCode.MISSING_BLOB))
    made = (
        Refusal(token, device, int(rng.integers(2**32)), code, (numbers[0], numbers[1])).encode(),
        BlobPart(rng.bytes(32), start + 200, start, rng.bytes(100)).encode(),
        BlobReceipt(token, device, rng.bytes(32), start).encode(),
    )[rng.integers(3)]
    return made if rng.random() < 0.5 else resealed(flipped(made, others, rng))


def without_examples(frame: bytes, others: list[bytes], rng: np.random.Generator) -> bytes:
    return resealed(frame[:20] + bytes(4) + frame[24:])


WAYS = (
    *(flipped, cut, extended, noise, sealed_noise, of_another, count_changed, not_finite),
    *(token_changed, device_changed, without_examples, of_newer_kind),
)


class Hostile(InProcessGrid):
    """A grid on which all devices except the first are hostile in every round."""

    def __init__(self, config: RunConfig, rng: np.random.Generator, frames: int) -> None:
        super().__init__(app, CLIENTS, config.flat())
        self._rng, self.left = rng, frames
        self._sound: list[bytes] = []
        self.ways: Counter[str] = Counter()

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return replies, which are forged for all devices except the first."""
        replies = sorted(
            super().pull_messages(message_ids), key=lambda reply: reply.metadata.src_node_id
        )
        if not replies or replies[0].metadata.message_type != "train":
            return replies
        frames = [bytes(r.content.config_records[RECORD]["frame"]) for r in replies]  # type: ignore[arg-type]
        # valid frames: one of this round, and all of the previous round
        others = self._sound + frames[:1]
        for reply, frame in zip(replies[1:], frames[1:], strict=True):
            way = WAYS[self._rng.integers(len(WAYS))]
            forged = way(frame, others, self._rng)
            if forged == frame:
                forged = b""
            self.ways[way.__name__] += 1
            self.left -= 1
            self._put(reply, forged)
        self._sound = frames[1:]
        return replies

    def _put(self, reply: Message, frame: bytes) -> None:
        """Put a frame into a valid or a malformed record of a reply."""
        chance = self._rng.random()
        if chance < 0.02:
            reply.content = RecordDict()
        elif chance < 0.04:
            reply.content = RecordDict({RECORD: ConfigRecord({"frame": "text"})})
        elif chance < 0.05:
            reply.__dict__["_error"] = Error(ErrorCode.LOAD_CLIENT_APP_EXCEPTION, "a lie\n" * 1000)
        else:
            reply.content.config_records[RECORD]["frame"] = frame


def attack_decoders(frames: int, seed: int) -> Counter[str]:
    """Pass frames to every decoder, and return the numbers of refused and decoded frames.

    A damaged frame may still be valid, for example with another loss or device.

    Raises:
        Exception: any error of a decoder other than a `SamaraError`.
    """
    rng = np.random.default_rng(seed)
    gradients = rng.normal(size=(1, 4)).astype(np.float32)
    sound = [
        Report(rng.bytes(8), 3, 10, 0.5, gradients).encode(),
        Report(rng.bytes(8), 3, 10, 0.5, gradients[0], 1).encode(),
        Refusal(rng.bytes(8), 3, 2, 8, (2, 1)).encode(),
        BlobPart(rng.bytes(32), 1000, 200, rng.bytes(100)).encode(),
        BlobReceipt(rng.bytes(8), 3, rng.bytes(32), 300).encode(),
        Hello(1, EXAMPLES, 0, bytes(32), LAYOUT.to_json(), "{}").encode(),
    ]
    outcomes: Counter[str] = Counter()
    for _ in range(frames):
        frame = sound[rng.integers(len(sound))]
        forged = WAYS[rng.integers(len(WAYS))](frame, sound, rng)
        decode = DECODERS[rng.integers(len(DECODERS))]
        try:
            kind_of(forged)
            decode(forged)
            outcomes["still valid"] += 1
        except SamaraError:
            outcomes["refused"] += 1
    return outcomes


def attack_strategy(frames: int, seed: int, folder: Path) -> tuple[Counter[str], int, list[int]]:
    """Serve a run with one honest device among hostile devices.

    Returns:
        Number of frames by kind of forgery, number of rounds, and resident bytes after each tenth
        of the rounds.

    Raises:
        AssertionError: if a forged report was aggregated.
    """
    rng = np.random.default_rng(seed)
    rounds = -(-frames // (CLIENTS - 1))
    settings = {"out": str(folder / "run"), "rounds": rounds, "steps": 1, "queries": 4}
    settings |= {"learning-rate": 1e-6, "data.clients": CLIENTS, "personal.rounds": 0}
    settings |= {"evaluate.every": 0, "cohort.patience": 10**9, "cohort.late-rounds": 0}
    config = RunConfig.of(settings, "hostile")
    grid = Hostile(config, rng, frames)
    resident: list[int] = []

    class Memory(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            event = getattr(record, "event", {})
            if event.get("event") == "round" and event["round"] % max(1, rounds // 10) == 0:
                gc.collect()
                resident.append(psutil.Process().memory_info().rss)

    logger, handler = logging.getLogger("samara.server"), Memory(logging.INFO)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        run = serve(config, grid)
    finally:
        logger.removeHandler(handler)
        logger.propagate = True
    for record in read_ledger(run / "ledger"):
        contributors = [c.client for c in record.delta.contributors]
        assert contributors == [0], f"round {record.delta.round} aggregated {contributors}"
    return grid.ways, rounds, resident


def main() -> None:
    given = arguments(__doc__, frames=100_000, seed=0)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    half = given.frames // 2
    outcomes = attack_decoders(half, given.seed)
    print(f"{half:,} frames to decoders: {dict(outcomes)}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        ways, rounds, resident = attack_strategy(half, given.seed, Path(name))
        files = sum(file.stat().st_size for file in Path(name).rglob("*") if file.is_file())
    print(f"{sum(ways.values()):,} frames to the strategy in {rounds:,} rounds: {dict(ways)}")
    megabytes = [round(size / 2**20) for size in resident]
    print(f"none aggregated, nothing raised; resident MiB by tenths of the rounds: {megabytes}")
    print(f"{files // rounds:,} bytes of files a round")


if __name__ == "__main__":
    main()
