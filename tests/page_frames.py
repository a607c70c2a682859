"""Frames of Python, compared with frames of the phone page's core."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from helpers import ROOT
from typescript import RunCore

from samara.shared.errors import FrameError
from samara.shared.protocol.wire import Kind, pack

GOLDEN = ROOT / "tests" / "golden"


def golden(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text(encoding="utf-8"))


def damaged(frame: bytes, random: np.random.Generator) -> bytes:
    """Return a damaged frame: other, more or fewer bytes, mostly with a valid checksum."""
    body = bytearray(frame[8:])
    way = random.random()
    if way < 0.2:
        del body[int(random.integers(len(body))) :]
    elif way < 0.3:
        body += random.bytes(3)
    else:
        at = int(random.integers(len(body)))
        body[at] = int(random.choice([0, 255, random.integers(256)]))
    made = bytearray(pack(Kind(frame[3]), bytes(body)))
    if random.random() < 0.1:
        made[int(random.integers(8))] ^= 1
    return bytes(made)


def random_frames(
    random: np.random.Generator, makers: Sequence[Callable[..., Any]], count: int
) -> Iterator[tuple[type[Any], bytes]]:
    for number in range(count):
        frame = makers[number % len(makers)](random)
        encoded = frame.encode()
        yield type(frame), encoded if number % 3 == 0 else damaged(encoded, random)


def check_frames(run_core: RunCore, frames: list[tuple[type[Any], bytes]]) -> None:
    """Check that the core reads, writes or refuses frames like Python; some are damaged."""
    results = run_core([["frame", encoded.hex()] for _, encoded in frames])
    refused = 0
    for (kind, encoded), result in zip(frames, results, strict=True):
        try:
            again = kind.decode(encoded).encode()
        except FrameError:
            refused += 1
            assert result == "FrameError"
        else:
            assert result["frame"] == again.hex()
    assert len(frames) / 10 < refused < len(frames) / 2  # both happen often
