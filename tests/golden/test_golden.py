import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from write import ELEMENTS, FILES, FOLDER, SEEDS, frames, plain

from client.session import Session
from shared.directions import directions
from shared.layout import Layout
from shared.ledger import read_header, read_records
from shared.replay import to_float32
from shared.wire import Kind


def golden(name: str) -> Any:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", FILES)
def test_the_code_makes_what_the_file_holds(name: str) -> None:
    assert FILES[name]() == (FOLDER / name).read_bytes()


def test_every_golden_file_is_held_to_the_code() -> None:
    kept = {path.name for path in FOLDER.iterdir() if path.suffix not in (".py", "")}
    assert kept == set(FILES)


@pytest.mark.parametrize("distribution", ELEMENTS)
def test_directions_made_together_are_those_in_the_file(distribution: Any) -> None:
    heads = [
        case["head"] for case in golden("directions.json") if case["distribution"] == distribution
    ]
    z = directions(np.array(SEEDS, np.uint64), 64, distribution)
    np.testing.assert_array_equal(z, heads)


@pytest.mark.parametrize("name", frames())
def test_every_frame_in_the_file_is_read_to_its_fields(name: str) -> None:
    case = golden("frames.json")[name]
    decoded = type(frames()[name]).decode(bytes.fromhex(case["frame"]))
    assert plain(asdict(decoded)) == case["fields"]


def test_every_kind_of_frame_is_in_the_file() -> None:
    cases = golden("frames.json")
    assert {bytes.fromhex(case["frame"])[3] for case in cases.values()} == set(Kind)
    for kind in Kind:
        assert bytes.fromhex(cases[kind.name.lower()]["frame"])[3] == kind


def test_the_ledger_in_the_file_replays_to_its_states() -> None:
    said = golden("ledger.json")
    path = FOLDER / "ledger.bin"
    layout = Layout.from_json(said["layout"])
    assert layout.hash.hex() == said["layout_hash"]
    assert read_header(path).layout_hash == layout.hash
    session, before = Session.begin(layout, bytes.fromhex(said["run_id"]), 0), said["rounds"][0]
    assert session.digest.hex() == before["digest"]
    data = path.read_bytes()
    for step in said["rounds"][1:]:
        tail = data[before["size"] : step["size"]]
        session = session.caught_up(tail, layout, bytes.fromhex(step["digest"]))
        assert [str(number) for number in session.state.tolist()] == step["state"]
        before = step
    assert to_float32(session.state).tolist() == said["weights"]
    assert len(list(read_records(path))) == session.position.round == 3
