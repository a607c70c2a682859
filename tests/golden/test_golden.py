import json
import os
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden.golden_frames import (
    SEEDS,
    frames,
    frames_of_adaptive_clip,
    frames_of_buckets,
    frames_of_common_priors,
    frames_of_intercepts,
    frames_of_local_privacy,
    frames_of_privacy,
    frames_of_profiled_losses,
    frames_of_secure_aggregation,
    later_frames,
)
from golden.golden_ledger import LAYOUT, SEGMENT, SNAPSHOT
from golden.golden_ledger import rounds as golden_rounds
from golden.golden_scenario import FILES_IN_IT, SETTINGS, fields_of
from golden.write import ELEMENTS, FILES, FOLDER, plain

from samara.client.protocol.session import Session
from samara.shared.protocol.basis import read_basis
from samara.shared.protocol.directions import directions
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.ledger.ledger import Ledger
from samara.shared.protocol.ledger.personal_file import read_personal_file
from samara.shared.protocol.ledger.reading import read_header, read_ledger
from samara.shared.protocol.ledger.records import CatchUp, LedgerHeader
from samara.shared.protocol.ledger.verification import verify_ledger
from samara.shared.protocol.replay import to_float32
from samara.shared.protocol.wire import Kind
from samara.shared.terms.signed_scenario import read_scenario

LEDGERS = "ledger", "ledger-3"
"""Ledgers in the formats of versions 2 and 3."""


def golden(name: str) -> Any:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", FILES)
def test_the_code_makes_what_the_file_holds(name: str) -> None:
    assert FILES[name]() == (FOLDER / name).read_bytes()


def test_every_golden_file_is_held_to_the_code() -> None:
    paths = [path for path in FOLDER.rglob("*") if path.suffix not in (".py", ".pyc", "")]
    assert {path.relative_to(FOLDER).as_posix() for path in paths} == set(FILES)


@pytest.mark.parametrize("distribution", ELEMENTS)
def test_directions_made_together_are_those_in_the_file(distribution: Any) -> None:
    heads = [
        case["head"] for case in golden("directions.json") if case["distribution"] == distribution
    ]
    z = directions(np.array(SEEDS, np.uint64), 64, distribution)
    np.testing.assert_array_equal(z, heads)


def golden_frames() -> dict[str, Any]:
    cases: dict[str, Any] = golden("frames.json") | golden("frames-2.json")
    cases |= golden("frames-3.json") | golden("frames-4.json") | golden("frames-5.json")
    cases |= golden("frames-6.json") | golden("frames-7.json") | golden("frames-8.json")
    cases |= golden("frames-9.json") | golden("frames-10.json")
    return cases


ALL_FRAMES = frames() | later_frames() | frames_of_privacy() | frames_of_local_privacy()
ALL_FRAMES |= frames_of_adaptive_clip() | frames_of_secure_aggregation()
ALL_FRAMES |= frames_of_buckets() | frames_of_intercepts() | frames_of_profiled_losses()
ALL_FRAMES |= frames_of_common_priors()


@pytest.mark.parametrize("name", ALL_FRAMES)
def test_every_frame_in_the_file_is_read_to_its_fields(name: str) -> None:
    case = golden_frames()[name]
    decoded = type(ALL_FRAMES[name]).decode(bytes.fromhex(case["frame"]))
    assert plain(fields_of(decoded)) == case["fields"]


def test_every_kind_of_frame_is_in_the_file() -> None:
    cases = golden_frames()
    assert {bytes.fromhex(case["frame"])[3] for case in cases.values()} == set(Kind)
    for kind in Kind:
        assert bytes.fromhex(cases[kind.name.lower()]["frame"])[3] == kind


@pytest.mark.parametrize("name", LEDGERS)
def test_the_ledger_in_the_folder_replays_to_its_states(name: str) -> None:
    said = golden(f"{name}.json")
    folder, layout = FOLDER / name, Layout.from_json(said["layout"])
    assert layout.hash.hex() == said["layout_hash"]
    header = LedgerHeader(0, bytes.fromhex(said["run_id"]), layout.hash)
    assert read_header(folder) == header
    begin, *rounds = said["rounds"]
    assert Session.begin(header, layout).digest.hex() == begin["digest"]
    assert header.start.head.hex() == begin["record_hash"]
    records = list(read_ledger(folder, strict=True))
    assert [r.position.head.hex() for r in records] == [r["record_hash"] for r in rounds]
    _, *steps = verify_ledger(folder, layout)
    for step, expected in zip(steps, rounds, strict=True):
        assert [str(number) for number in step.state.tolist()] == expected["state"]
    assert to_float32(steps[-1].state).tolist() == said["weights"]


def test_the_private_fit_in_the_files_is_read_to_its_state() -> None:
    _, fit = verify_ledger(FOLDER / "private", LAYOUT)
    expected = np.zeros(LAYOUT.size, np.int64)
    expected[[2, 3, 20, 21, 22]] = [2**50, -round(1e-9 * 2**51), 2**61, -(2**61), 7]
    np.testing.assert_array_equal(fit.state, expected)
    file = read_personal_file((FOLDER / "private.samara").read_bytes())
    assert file.client == 4
    np.testing.assert_array_equal(file.state(LAYOUT), expected)


@pytest.mark.parametrize("name", LEDGERS)
def test_a_client_catches_up_by_the_files_in_the_folder(name: str) -> None:
    said = golden(f"{name}.json")
    layout = Layout.from_json(said["layout"])
    header = LedgerHeader(0, bytes.fromhex(said["run_id"]), layout.hash)
    snapshot = (FOLDER / name / SNAPSHOT).read_bytes()
    first, second, third = (record.sent() for record in read_ledger(FOLDER / name))
    goal = 3, bytes.fromhex(said["rounds"][3]["digest"])
    for catch_up in (CatchUp(tail=first + second + third), CatchUp(snapshot, third)):
        session = Session.begin(header, layout).catch_up(catch_up, header, layout, *goal)
        assert to_float32(session.state).tolist() == said["weights"]


@pytest.mark.parametrize(("rounds", "every"), [(0, 0), (1, 0), (1, 2), (2, 2)])
def test_a_ledger_of_an_earlier_version_goes_on(tmp_path: Path, rounds: int, every: int) -> None:
    """The earlier version's last segment ends; this version's first round begins another."""
    said, deltas = golden("ledger.json"), golden_rounds()
    names = [SEGMENT] if rounds < 2 else [SEGMENT, SNAPSHOT]
    for name in names:
        shutil.copy(FOLDER / "ledger" / name, tmp_path)
    segment = tmp_path / SEGMENT
    os.truncate(segment, said["rounds"][rounds]["size"])
    earlier = segment.read_bytes()
    header = LedgerHeader(0, bytes.fromhex(said["run_id"]), LAYOUT.hash)
    with closing(Ledger(tmp_path, header, LAYOUT, every)) as ledger:
        assert ledger.digest.hex() == said["rounds"][rounds]["digest"]
        for delta in deltas[rounds:]:
            ledger.append(delta)
        goal = 3, ledger.digest
        assert ledger.digest.hex() == said["rounds"][3]["digest"]
        begun = Session.begin(header, LAYOUT)
        assert begun.catch_up(ledger.catch_up(0), header, LAYOUT, *goal).digest == ledger.digest
    with closing(Ledger(tmp_path, header, LAYOUT, every)) as ledger:
        assert not ledger.recovered
        assert (ledger.position.round, ledger.digest) == goal
    if rounds:
        assert segment.read_bytes() == earlier
    *_, last = verify_ledger(tmp_path, LAYOUT)
    assert to_float32(last.state).tolist() == said["weights"]
    kept = [record.delta.encode() for record in read_ledger(tmp_path, strict=True)]
    assert kept == [delta.encode() for delta in deltas]


def test_the_basis_in_the_file_lifts_its_coordinates() -> None:
    case = golden("basis.json")
    layout = Layout.from_json(case["layout"])
    basis = read_basis(str(FOLDER / "basis.safetensors"))
    assert layout.hash.hex() == case["layout_hash"]
    assert layout.basis == basis.reference
    assert layout.size == len(case["theta"]) + 3
    lifted = basis.lift(np.array([int(number) for number in case["theta"]], np.int64))
    assert [str(number) for number in lifted.tolist()] == case["elements"]


def test_the_scenario_in_the_file_is_signed_and_leads_to_its_run() -> None:
    case, scenario = golden("scenario.json"), read_scenario(FOLDER / "scenario.signed")
    assert scenario.operator.decode() == case["operator"]
    assert scenario.settings == SETTINGS | FILES_IN_IT
    hashes = bytes.fromhex(case["layout_hash"]), bytes.fromhex(case["model_id"])
    run_id = scenario.run_id(*hashes)
    assert run_id.hex() == case["run_id"]
    assert sorted(i.hex() for i in scenario.terms.federations(run_id)) == case["cluster_ids"]
