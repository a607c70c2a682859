"""The schedule of private rounds: from which states and how often. It changes nothing else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import RecordingGrid, Settings, Simulated, config_of, grid_of
from helpers import files_of
from personalizers import runtime_personalizer

from samara.client.personal.methods import ERASURE
from samara.client.personal.personalizations import Personalization, read_personalizations
from samara.client.personal.personalizer import Personalizer
from samara.client.training.client_data import ClientData
from samara.client.training.model_runtime import ModelRuntime, load_run
from samara.server.app import serve
from samara.shared.errors import ConfigError, TrainingError
from samara.shared.protocol.frames.instructions import PERSONAL_TRACK
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.protocol.replay import digest, zero_state
from samara.shared.settings.config import RunConfig
from samara.simulations.exports.adapter import FinishedRun, export_ledger
from samara.simulations.simulate import simulate

RUN_ID = bytes(range(8))
TIMES = ("every 2 rounds", "always", "on-data")


def personal_files(folder: Path, client: int = 0) -> dict[str, bytes]:
    return files_of(folder / "clients" / str(client) / "personal.ledger")


def taken(folder: Path, client: int = 0) -> list[Personalization]:
    return read_personalizations(folder / "clients" / str(client))


@pytest.fixture
def four_rounds(small: Settings) -> Settings:
    return small | {"rounds": 4, "evaluate.every": 0}


def recorded(config: RunConfig) -> tuple[Path, list[bytes]]:
    """The folder of a run, and every byte of its messages and replies."""
    grid = grid_of(config, RecordingGrid)
    grid.traffic = []  # type: ignore[attr-defined]
    return serve(config, grid), grid.traffic  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def traffic_at_the_end() -> Callable[[Settings], list[bytes]]:
    """The traffic of a run with private rounds only after its last round, served once."""
    found: list[list[bytes]] = []

    def traffic_of(settings: Settings) -> list[bytes]:
        if not found:
            found.append(recorded(config_of(settings, out=settings["out"] + "-end"))[1])
        return found[0]

    return traffic_of


@pytest.mark.parametrize(
    ("when", "rounds"),
    [
        ("every 2 rounds", [2, 4]),
        ("every 3 rounds", [3, 4]),
        ("every 9 rounds", [4]),
        ("always", [1, 2, 3, 4]),
        ("on-data", [1, 4]),
    ],
)
def test_private_rounds_begin_with_these_rounds_of_the_federation(
    when: str, rounds: list[int], four_rounds: Settings, simulated: Simulated
) -> None:
    folder = simulated(four_rounds, personal__when=when)
    each = FinishedRun.at(folder).config.private_rounds
    layout, w = FinishedRun.at(folder).layout, zero_state(FinishedRun.at(folder).layout.size)
    digests = {0: digest(layout.hash, w).hex()}
    for record in read_ledger(folder / "ledger"):
        digests[record.delta.round] = record.end_digest.hex()
    for client in (0, 1):
        found = taken(folder, client)
        assert [one.global_round for one in found] == rounds
        assert [one.global_digest for one in found] == [digests[number] for number in rounds]
        assert [(one.first, one.last) for one in found] == [
            (each * n + 1, each * (n + 1)) for n in range(len(rounds))
        ]
        records = list(read_ledger(folder / "clients" / str(client) / "personal.ledger"))
        assert [record.end_digest.hex() for record in records][each - 1 :: each] == [
            one.digest for one in found
        ]
        assert all(one.before and one.after and one.before.examples for one in found)


@pytest.mark.parametrize("method", ["finetune", "ditto", "mixture", "partial", "readout"])
@pytest.mark.parametrize("retrain", [False, True])
def test_the_personal_model_is_the_last_common_one_with_all_private_rounds(
    method: str, retrain: bool, four_rounds: Settings, simulated: Simulated
) -> None:
    folder = simulated(
        four_rounds, method=method, personal__when="every 2 rounds", personal__retrain=retrain
    )
    opened = FinishedRun.at(folder)
    ledger = folder / "clients" / "0" / "personal.ledger"
    records = list(read_ledger(ledger))
    again = retrain and method != "readout"
    last = taken(folder)[-1]
    assert last.last == len(records)
    erased = [record.delta.round for record in records if record.delta.entries == ERASURE]
    assert erased == ([last.first] if again else [])
    p = opened.personal_state(0)
    assert digest(opened.layout.hash, p).hex() == last.digest
    assert p.any()
    model = opened.model(0)
    from_both = p if opened.config.method == "partial" else p + opened.global_state()
    moved = model != opened.global_state()
    np.testing.assert_array_equal(model[moved], from_both[moved])


def test_what_others_train_does_not_depend_on_when_private_rounds_are_taken(
    four_rounds: Settings, simulated: Simulated
) -> None:
    end = FinishedRun.at(simulated(four_rounds))
    for when in TIMES:
        other = FinishedRun.at(simulated(four_rounds, personal__when=when))
        assert other.result.final_digest == end.result.final_digest
        assert other.result.run_id != end.result.run_id
        assert other.result.bytes_up == end.result.bytes_up


@pytest.mark.parametrize("when", TIMES)
def test_nothing_of_them_is_sent(
    when: str, four_rounds: Settings, traffic_at_the_end: Callable[[Settings], list[bytes]]
) -> None:
    folder, traffic = recorded(config_of(four_rounds, personal__when=when))
    at_end = traffic_at_the_end(four_rounds)
    sent = b"".join(traffic)
    for record in read_ledger(folder / "clients" / "0" / "personal.ledger"):
        assert record.end_digest not in sent
        for group in record.delta.groups:
            assert group.scalars.coefficients.astype("<i4").tobytes() not in sent
    # the personal comparison alone tells that p is another one
    assert len(traffic) == len(at_end)
    assert sum(map(len, traffic)) == sum(map(len, at_end))


@pytest.mark.parametrize("method", ["finetune", "ditto", "readout"])
def test_a_file_of_private_rounds_from_several_states_is_the_private_state(
    method: str, four_rounds: Settings, tmp_path: Path, simulated: Simulated
) -> None:
    folder = simulated(four_rounds, method=method, personal__when="every 2 rounds")
    opened = FinishedRun.at(folder)
    export_ledger(folder, 1, tmp_path / "own.samara")
    np.testing.assert_array_equal(
        opened.state_in(tmp_path / "own.samara"), opened.personal_state(1)
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"personal.when": "every 0 rounds"}, "personal.when"),
        ({"personal.when": "each round"}, "personal.when"),
        ({"personal.when": "always", "personal.rounds": 0}, "needs personal.rounds above 0"),
        ({"personal.when": "always", "method": "local"}, "no common rounds"),
        ({"personal.when": "on-data", "method": "global"}, "there are no private rounds"),
        ({"personal.when": "every 2 rounds", "method": "cluster"}, "there are no private rounds"),
        (
            {"personal.when": "always", "fleet.devices": '[{"device": "laptop", "share": 1}]'},
            "only after the last round",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig.of(settings, "test")


@pytest.fixture
def loaded(small: Settings) -> tuple[ModelRuntime, ClientData, RunConfig]:
    config = config_of(small, personal__when="on-data", personal__rounds=3)
    runtime, source = load_run(config)
    return runtime, source.share_of(0, 3), config


def note(personalizer: Personalizer, runtime: ModelRuntime, number: int, moved: int = 0) -> bool:
    state = zero_state(runtime.layout.size) + moved
    return personalizer.note(number, state, digest(runtime.layout.hash, state))


def test_new_examples_make_private_rounds_due(
    loaded: tuple[ModelRuntime, ClientData, RunConfig],
) -> None:
    runtime, data, config = loaded
    personalizer = runtime_personalizer(runtime, data, config, RUN_ID)
    assert not note(personalizer, runtime, 0)
    assert note(personalizer, runtime, 1)
    assert not note(personalizer, runtime, 1)
    personalizer.take()
    assert not note(personalizer, runtime, 1, 2**40)
    grown = ClientData(0, [*data.examples, data.examples[0]], runtime.tokenize, 3)
    personalizer = runtime_personalizer(runtime, grown, config, RUN_ID)
    assert note(personalizer, runtime, 1)
    personalizer.take()
    assert not note(personalizer, runtime, 1)
    folder = Path(config.out) / "clients" / "0"
    assert [(one.first, one.last) for one in read_personalizations(folder)] == [(1, 3), (4, 6)]


def test_states_that_come_while_private_rounds_go_on_wait_and_the_newest_counts(
    loaded: tuple[ModelRuntime, ClientData, RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, data, config = loaded
    config = config.model_copy(
        update={"personal": config.personal.model_copy(update={"when": "always"})}
    )
    personalizer = runtime_personalizer(runtime, data, config, RUN_ID)
    assert note(personalizer, runtime, 1)
    assert runtime.execution  # decided before passes are counted
    plain, steps = runtime.forward.scores, [0]

    def interrupt(*arguments: Any, **named: Any) -> Any:
        steps[0] += 1
        if steps[0] == 1 + 2 + 2:  # in the second of the two steps of the second round
            raise KeyboardInterrupt
        return plain(*arguments, **named)

    monkeypatch.setattr(runtime.forward, "scores", interrupt)
    with pytest.raises(KeyboardInterrupt):
        personalizer.take()
    assert note(personalizer, runtime, 2, 2**40)
    assert note(personalizer, runtime, 3, 2**41)
    folder = Path(config.out) / "clients" / "0"
    assert personalizer.take_next()
    assert [one.global_round for one in read_personalizations(folder)] == [1]
    assert personalizer.take()
    assert not personalizer.take()
    assert steps[0] == 1 + 2 * (1 + 3 * 2 + 1)  # the interrupted step alone is taken twice
    assert [one.global_round for one in read_personalizations(folder)] == [1, 3]
    assert not personalizer.is_due
    undisturbed = config.model_copy(update={"out": config.out + "-undisturbed"})
    for number, moved in ((1, 0), (3, 2**41)):
        other = runtime_personalizer(runtime, data, undisturbed, RUN_ID)
        note(other, runtime, number, moved)
        other.take()
    assert personal_files(Path(config.out)) == personal_files(Path(undisturbed.out))


def test_private_rounds_that_fail_are_left_out_and_the_federation_goes_on(
    four_rounds: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from samara.client.personal import runtime_learner

    plain = runtime_learner.take_local_steps
    config = config_of(four_rounds, personal__when="every 2 rounds")

    def fail(runtime: Any, data: Any, instruction: Any, *rest: Any) -> Any:
        private = instruction.track == PERSONAL_TRACK
        if private and instruction.round == 1 and data.client == 0 and not failed:
            failed.append(True)
            raise TrainingError("no number", (1, 0))
        return plain(runtime, data, instruction, *rest)

    failed: list[bool] = []
    monkeypatch.setattr(runtime_learner, "take_local_steps", fail)
    folder = simulate(config)
    assert failed
    assert [one.global_round for one in taken(folder, 0)] == [3, 4]  # tried again with the next
    assert [one.global_round for one in taken(folder, 1)] == [2, 4]
    assert not any(event.refused for event in FinishedRun.at(folder).result.rounds)
