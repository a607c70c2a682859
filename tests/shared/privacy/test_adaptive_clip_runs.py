"""Whole runs with an adaptive clip, which is in the instruction and follows from the releases."""

from pathlib import Path
from typing import Any

import pytest
from federations import Settings, config_of, serve_until_recording
from known_noise import add_known_noise

from samara.server.rounds.releases import RELEASES_FILE, read_releases
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.results.result import RunResult
from samara.shared.settings.config import RunConfig
from samara.simulations.simulate import simulate

PRIVATE = {
    "privacy__clip": 1e-3,
    "privacy__noise_multiplier": 0.1,
    "privacy__adaptive_clip": True,
    "seed_policy": "shared",
    "aggregation__rule": "mean",
    "method": "global",
    "rounds": 3,
}


def private(settings: Settings, **changes: Any) -> RunConfig:
    return config_of(settings, **(PRIVATE | changes))


@pytest.mark.parametrize("mode", ["central", "local"])
def test_the_clip_grows_until_clients_are_within_it(
    settings: Settings, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_known_noise(monkeypatch)  # another hides the number of reports once in a few hundred rounds
    result = RunResult.read(simulate(private(settings, privacy__mode=mode)))
    clips = [event.clip for event in result.rounds]
    assert clips == sorted(clips, key=lambda clip: clip or 0.0)
    assert clips[0] == 1e-3
    assert clips[2] is not None
    assert 1e-3 < clips[2] <= 1e-3 * 1.23
    assert [event.reports for event in result.rounds] == [3, 3, 3]


def test_a_run_that_goes_on_asks_the_same(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = private(settings, privacy__mode="central")
    serve_until_recording(config, 2, monkeypatch)
    file = Path(config.out) / RELEASES_FILE
    before = [release.token for release in read_releases(file)]
    folder = simulate(config)
    after = read_releases(file)
    assert [release.token for release in after][:2] == before
    assert len(after) == 3
    assert [record.delta.token for record in read_ledger(folder / "ledger")] == [
        release.token for release in after
    ]
