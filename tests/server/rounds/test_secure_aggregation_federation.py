"""Whole federations with secure aggregation: the same model, without any client's own numbers."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from federations import (
    Live,
    Settings,
    Tampering,
    grid_of,
    serve_until_killed,
    serve_until_recording,
)
from flwr.app import Message
from known_noise import add_known_noise
from masked_rounds import Device
from masked_runs import masked, private
from private_reports import frame_of
from residents import device_settings

from samara.client.protocol.resident_trainer import ResidentTrainer
from samara.client.trainer.trainer_service import serve_trainer
from samara.server.app import serve
from samara.server.rounds import private_aggregator, secure_aggregation
from samara.server.rounds.releases import RELEASES_FILE, read_releases
from samara.shared.errors import ConfigError, TrainingError
from samara.shared.protocol.frames import bucket_keys
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.protocol.secure_aggregation.buckets import draw_buckets
from samara.shared.protocol.wire import Kind, kind_of
from samara.shared.results.result import RunResult
from samara.shared.terms.description import describe_terms
from samara.simulations.simulate import simulate


@pytest.mark.parametrize("mode", ["central", "distributed"])
def test_the_ledger_is_that_of_the_same_pipeline_without_masks(
    settings: Settings, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same noise, sums, coefficients and states are equal bit for bit."""
    add_known_noise(monkeypatch)
    runs = []
    for make, out in ((private, "plain"), (masked, "masked")):
        folder = simulate(make(settings, mode, out=str(tmp_path / out)))
        records = list(read_ledger(folder / "ledger"))
        groups = [[group.encode() for group in record.delta.groups] for record in records]
        sums = [release.sums[0].total.tolist() for release in read_releases(folder / RELEASES_FILE)]
        runs.append((groups, [record.end_digest for record in records], sums))
    assert runs[0] == runs[1]
    assert len(runs[0][0]) == 2
    assert all(runs[0][0])


def test_only_masked_numbers_leave_clients_and_only_a_sum_is_known(settings: Settings) -> None:
    config, frames = masked(settings), list[bytes]()
    grid = grid_of(config, Tampering)

    def keep(reply: Message) -> Message:
        frames.append(frame_of(reply))
        return reply

    grid.tamper = keep  # type: ignore[attr-defined]
    folder = serve(config, grid)
    kinds = [kind_of(frame) for frame in frames]
    for kind in (
        *(Kind.MASKING_KEYS, Kind.SEALED_SHARES, Kind.MASKED_REPORT),
        *(Kind.SURVIVOR_SIGNATURE, Kind.REVEALED_SHARES),
    ):
        assert kinds.count(kind) == 8
    assert not set(kinds) & {Kind.VECTOR_REPORT, Kind.NOISED_VECTOR_REPORT, Kind.REPORT}
    result = RunResult.read(folder)
    assert [event.reports for event in result.rounds] == [4, 4]
    assert "single reports" not in result.describe_privacy()
    sent = sum(len(frame) for frame in frames)
    assert sum(event.bytes_up for event in result.rounds) == sent - sum(
        len(frame) for frame, kind in zip(frames, kinds, strict=True) if kind is Kind.HELLO
    )


def test_a_client_that_leaves_is_left_out_and_two_abandon_the_round(settings: Settings) -> None:
    config = masked(settings, rounds=3)
    grid, kinds = grid_of(config, Tampering), list[Kind]()

    def leave(reply: Message) -> Message:
        kind = kind_of(frame_of(reply))
        kinds.append(kind)
        number = (kinds.count(Kind.MASKING_KEYS) - 1) // 4 + 1
        absent = {1: 1, 2: 2, 3: 0}.get(number, 0)
        if kind is Kind.MASKED_REPORT and (kinds.count(kind) - 1) % 4 < absent:
            frame = Refusal(bytes(8), 0, 0, 13).encode()
            reply.content.config_records["samara"]["frame"] = frame
        return reply

    grid.tamper = leave  # type: ignore[attr-defined]
    result = RunResult.read(serve(config, grid))
    assert [event.reports for event in result.rounds] == [3, 0, 4]
    assert result.rounds[1].problem == (
        "the round is abandoned: 2 of 4 clients sent masked reports, but 3 are needed"
    )
    assert [len(event.clients) for event in result.rounds] == [3, 2, 4]
    assert len(read_releases(Path(config.out) / RELEASES_FILE)) == 2


def test_a_server_that_was_killed_abandons_the_round_it_had_begun(settings: Settings) -> None:
    config = masked(settings, rounds=3)
    serve_until_killed(config, messages=6)
    result = RunResult.read(simulate(config))
    assert [event.reports for event in result.rounds] == [4, 0, 4]
    assert "the server was stopped after masking had begun" in str(result.rounds[1].problem)


def test_a_server_that_was_killed_after_a_release_uses_it_and_asks_nobody(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = masked(settings)
    serve_until_recording(config, 2, monkeypatch)
    file = Path(config.out) / RELEASES_FILE
    before = file.read_bytes()
    result = RunResult.read(simulate(config))
    assert file.read_bytes() == before
    assert [event.reports for event in result.rounds] == [4, 4]
    assert result.rounds[1].clients == {}


@pytest.mark.parametrize("has_key", [True, False])
def test_live_clients_mask_their_reports(
    settings: Settings, tmp_path_factory: pytest.TempPathFactory, has_key: bool
) -> None:
    """A client without its own key does not take part in such rounds."""
    short, clients = tmp_path_factory.mktemp("s"), (7, 9, 4_000_000_000)
    sockets = [short / f"{client}.sock" for client in clients]

    def load(client: int) -> Callable[[], ResidentTrainer]:
        own = device_settings(settings, client, short / str(client))
        signer = Device() if has_key else None
        return lambda: ResidentTrainer.load(own.config, client, own.folder, signer)

    theirs = {"model.path": "embedded", "data.path": "messages", "task": "messages"}
    config = masked(settings | theirs, cohort__available=3, rounds=2 if has_key else 1)
    with (
        serve_trainer(load(clients[0]), sockets[0]),
        serve_trainer(load(clients[1]), sockets[1]),
        serve_trainer(load(clients[2]), sockets[2]),
    ):
        if has_key:
            result = RunResult.read(serve(config, Live(sockets, config)))
            assert [event.reports for event in result.rounds] == [3, 3]
        else:
            with pytest.raises(
                TrainingError,
                match=r"clients 7, 9, \d+: .* a key or a share is invalid \(code 25\)",
            ):
                serve(config, Live(sockets, config))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"privacy__mode": "none"}, "only the vectors of a privacy.mode can be masked"),
        ({"cohort__minimum": 2}, "secure aggregation needs 3 clients in a sum"),
        ({"privacy__evaluation": "exact"}, "exact evaluations show the server single clients"),
    ],
)
def test_what_masks_cannot_go_with_is_refused(
    settings: Settings, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        masked(settings, **changes)


def test_the_terms_say_what_the_server_sees(settings: Settings) -> None:
    said = "\n".join(describe_terms(masked(settings).terms))
    assert "the server sees only sums" in said
    assert "for the server alone" not in said


BUCKETS = {"privacy__bucket": 3, "data__clients": 15, "rounds": 1}


def drawn_without_keys(token: bytes, digests: Mapping[int, bytes], size: int) -> list[list[int]]:
    """Draw buckets without keys and token, so that two runs have the same buckets."""
    return draw_buckets(bytes(8), dict.fromkeys(digests, b""), size)


@pytest.mark.parametrize("mode", ["central", "distributed"])
def test_the_ledger_with_buckets_is_that_without_masks(
    settings: Settings, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both runs have the same noise and the same buckets."""
    add_known_noise(monkeypatch)
    for module in (secure_aggregation, bucket_keys, private_aggregator):
        monkeypatch.setattr(module, "draw_buckets", drawn_without_keys)
    runs = []
    for make, out in ((private, "plain"), (masked, "masked")):
        folder = simulate(make(settings, mode, out=str(tmp_path / out), **BUCKETS))
        records = list(read_ledger(folder / "ledger"))
        groups = [[group.encode() for group in record.delta.groups] for record in records]
        (release,) = read_releases(folder / RELEASES_FILE)
        sums = [(one.total.tolist(), one.clients) for one in release.sums]
        runs.append((groups, [record.end_digest for record in records], sums))
        result = RunResult.read(folder)
        assert [event.buckets for event in result.rounds] == [5]
        assert [event.reports for event in result.rounds] == [15]
        assert "; trimmed means of buckets in 1 of 1 rounds" in result.describe_privacy()
    assert runs[0] == runs[1]
    assert runs[0][0][0]


def test_released_buckets_outlive_a_killed_server(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result also says that fewer than five buckets are summed without trimming."""
    config = masked(settings, **(BUCKETS | {"data__clients": 7, "rounds": 2}))
    serve_until_recording(config, 2, monkeypatch)
    file = Path(config.out) / RELEASES_FILE
    before = file.read_bytes()
    result = RunResult.read(simulate(config))
    assert file.read_bytes() == before
    assert [len(release.sums) for release in read_releases(file)] == [2, 2]
    assert [event.buckets for event in result.rounds] == [2, 2]
    assert ", plain sums of fewer than 5 buckets in 2" in result.describe_privacy()
