"""Requests that follow from a signed scenario are accepted, and no other requests."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from federations import config_of
from helpers import report_to
from scenarios import operator_key, signed

from samara.client.limits.answered_runs import AnsweredRun, AnsweredRuns
from samara.client.protocol.signed_runs import SignedRuns
from samara.shared.errors import FrameError, ScenarioError
from samara.shared.protocol.frames.instructions import (
    EvaluateInstruction,
    SeedPolicy,
    Split,
    TrainInstruction,
)
from samara.shared.protocol.run_id import cluster_id
from samara.shared.settings.config import RunConfig

LAYOUT_HASH, MODEL_ID = bytes([1]) * 32, bytes([2]) * 32
CLUSTERS = config_of(
    {}, method="cluster", rounds=20, personal__rounds=4, cohort__clustering_rounds=6, steps=2
)


class Signed:
    """The signed runs of a configuration, and the instructions of an honest server."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        scenario = signed(config, operator_key(folder))
        self.refused: list[str] = []
        self.terms, self.run_id = config.terms, scenario.run_id(LAYOUT_HASH, MODEL_ID)
        self.answered = AnsweredRuns(lambda run_id: folder / run_id.hex())
        self.runs = SignedRuns(
            [scenario], LAYOUT_HASH, MODEL_ID, self.answered, self.refused.append
        )

    def round_of(self, number: int = 1, run_id: bytes = b"", **changes: Any) -> TrainInstruction:
        values = {"learning_rate": 0.1, "clip": 0.0, "curvature_every": 1} | changes
        return self.terms.instruction(
            run_id or self.run_id, number, LAYOUT_HASH, bytes(32), **values
        )

    def reason(self, asked: TrainInstruction | EvaluateInstruction, personal: bool = False) -> str:
        """Return the reason why an instruction is refused; empty if it is accepted."""
        before = len(self.refused)
        try:
            self.runs.check(asked.encode(), personal)
        except ScenarioError as error:
            reason = str(error).removeprefix("the server asks for ")
            return reason.removesuffix(". No signed scenario allows this; ask the operator")
        assert len(self.refused) == before
        return ""


def test_a_cluster_is_a_run_of_its_own_and_the_clustering_round_comes_once(tmp_path: Path) -> None:
    case = Signed(CLUSTERS, tmp_path)
    ids = [cluster_id(case.run_id, cluster) for cluster in range(3)]
    for run_id in ids[:2]:
        for number in (1, 18):
            assert not case.reason(case.round_of(number, run_id))
        assert "round 19, but the signed scenario has 18 rounds" in case.reason(
            case.round_of(19, run_id)
        )
    assert f"run {ids[2].hex()}" in case.reason(case.round_of(1, ids[2]))
    assert f"run {case.run_id.hex()}" in case.reason(case.round_of(1, case.run_id))
    asked = case.terms.clustering_instruction(case.run_id, LAYOUT_HASH, bytes(32))
    assert not case.reason(asked)
    assert "batch 1 and not" in case.reason(replace(asked, batch=1))
    assert "steps 999 and not" in case.reason(replace(asked, steps=999))
    assert "round 2 and not 1" in case.reason(replace(asked, round=2))
    assert "track" in case.reason(replace(asked, run_id=ids[0]))
    case.runs.check_first(asked, b"a token.")
    case.answered.write(case.run_id, AnsweredRun(round=1, token=b"a token."))
    case.runs.check_first(asked, b"a token.")
    with pytest.raises(ScenarioError, match="every round is answered once"):
        case.runs.check_first(asked, b"another.")
    per_round = case.terms.steps * case.terms.queries
    assert case.terms.projected_gradients == 18 * per_round + asked.report_scalars


def test_a_pool_and_its_root_are_those_of_the_scenario(tmp_path: Path) -> None:
    case = Signed(config_of({}, seed_policy="pool", pool_size=6), tmp_path)
    asked = case.round_of()
    assert asked.seed_policy is SeedPolicy.POOL
    assert not case.reason(asked)
    assert "pool size 7 and not 6" in case.reason(replace(asked, pool_size=7))
    assert "pool root 1 and not" in case.reason(replace(asked, pool_root=1))
    assert "seed policy independent" in case.reason(
        replace(asked, seed_policy=SeedPolicy.INDEPENDENT)
    )


def test_an_estimated_step_size_is_the_servers_and_a_given_one_only_falls(tmp_path: Path) -> None:
    central = {"differences": "central", "learning_rate": "auto"}
    estimated = Signed(config_of({}, **central, queries=5), tmp_path)
    for changes in ({"learning_rate": 1e9}, {"clip": 4.0}, {"curvature_every": 3}):
        assert not estimated.reason(estimated.round_of(**changes)), changes
    assert "curvature every 2 and not 3" in estimated.reason(estimated.round_of(curvature_every=2))
    clipped = Signed(config_of({}, learning_rate="auto", clip=2.5), tmp_path)
    assert not clipped.reason(clipped.round_of(clip=9.0))
    assert "clip 9.0 and not 2.5" in clipped.reason(replace(clipped.round_of(), clip=9.0))
    given = Signed(config_of({}, learning_rate=0.3), tmp_path)
    for rate in (0.3, 0.03, 0.0):
        assert not given.reason(given.round_of(learning_rate=rate, curvature_every=0))
    assert "learning rate 0.31 and not 0.3" in given.reason(
        given.round_of(learning_rate=0.31, curvature_every=0)
    )


def test_several_scenarios_are_several_runs(tmp_path: Path) -> None:
    key, refused = operator_key(tmp_path), list[str]()
    central = {"differences": "central"}
    configs = [config_of(central, seed=seed, rounds=seed + 3) for seed in range(2)]
    scenarios = [signed(config, key) for config in configs]
    answered = AnsweredRuns(lambda run_id: tmp_path / run_id.hex())
    runs = SignedRuns(scenarios, LAYOUT_HASH, MODEL_ID, answered, refused.append)
    first, second = (Signed(config, tmp_path) for config in configs)
    runs.check(first.round_of(3).encode())
    runs.check(second.round_of(4).encode())
    mixed = replace(second.round_of(3), run_id=first.run_id)
    with pytest.raises(ScenarioError, match=r"root .* and not"):
        runs.check(mixed.encode())
    none = SignedRuns([], LAYOUT_HASH, MODEL_ID, answered, refused.append)
    with pytest.raises(ScenarioError, match="the only signed runs are none") as said:
        none.check(first.round_of().encode())
    assert str(said.value) == (
        f"the server asks for {refused[-1]}. No signed scenario allows this; ask the operator"
    )


def test_evaluations_come_when_the_scenario_says(tmp_path: Path) -> None:
    config = config_of({}, rounds=6, evaluate__every=2, evaluate__best=True)
    case = Signed(config, tmp_path)

    def refused(number: int, split: Split, personal: bool = False) -> bool:
        asked = EvaluateInstruction(case.run_id, number, 0, split, LAYOUT_HASH, bytes(32))
        return bool(case.reason(asked, personal))

    def accepted(split: Split, personal: bool = False) -> list[int]:
        return [number for number in range(20) if not refused(number, split, personal)]

    assert accepted(Split.VALIDATION) == [0, 2, 4, 6, 7]
    assert accepted(Split.TEST) == [0, 6, 7]
    assert accepted(Split.TEST, personal=True) == [6, 7]
    assert accepted(Split.TRAIN) == accepted(Split.TRAIN, personal=True) == []
    local = config_of({}, method="local", evaluate__test=False).terms
    assert [n for n in range(60) if local.is_evaluated(n, Split.VALIDATION)] == [0]
    assert local.is_evaluated(0, Split.VALIDATION, personal=True)
    assert not local.is_evaluated(0, Split.TEST)


def test_other_frames_are_no_instructions(tmp_path: Path) -> None:
    case = Signed(config_of({}), tmp_path)
    for frame in (report_to(case.round_of()).encode(), b"", b"SM", bytes(100)):
        with pytest.raises(FrameError):
            case.runs.check(frame)
