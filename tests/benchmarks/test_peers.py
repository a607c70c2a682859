"""Ratios of speed to the training loops of other projects."""

import sys

import pytest

from benchmarks import peers


def test_a_ratio_is_taken_within_its_repetition() -> None:
    (row,) = peers.ratios("work", [1.0, 2.0, 4.0], {"peer": [3.0, 2.0, 8.0]})
    assert row == peers.Ratio("work", "peer", seconds=2.0, peer_seconds=3.0, ratio=2.0)


def test_every_peer_is_in_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peers, "ray_rounds", lambda clients, rounds: [1e6] * rounds)
    monkeypatch.setattr("logging.disable", lambda level: None)
    arguments = ["peers", "--small", "--repetitions", "1", "--clients", "2"]
    monkeypatch.setattr(sys, "argv", arguments)
    peers.main()
    printed = capsys.readouterr().out
    for peer in ("MeZO", "bare pass", "DeComFL", "FedKSeed", "torch", "NumPy", "Flower on Ray"):
        assert peer in printed
    assert "step, llama-tiny, top:1, B = 1" in printed
    assert "start and first round of 2 clients" in printed
    assert "10 steps, readout, d = 128, B = 32, q = 16" in printed
    assert printed.count("│ MeZO") == 2 * len(peers.WEIGHTS) + 1
