"""A signed scenario may lead to one round of intercepts, but to no other request of this kind."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from federations import config_of
from scenarios import operator_key, signed

from samara.client.limits.answered_runs import AnsweredRuns
from samara.client.protocol.signed_runs import SignedRuns
from samara.shared.errors import ScenarioError
from samara.shared.protocol.frames.instructions import EvaluateInstruction, Split
from samara.shared.terms.intercept_round import intercept_instruction

HASHES = bytes([1]) * 32, bytes([2]) * 32
READOUT: dict[str, Any] = {
    "method": "readout",
    "adapter__label_bias": True,
    "rounds": 4,
    "personal__rounds": 0,
}
PRIVATE = {
    "privacy__mode": "central",
    "privacy__noise_multiplier": 1.0,
    "privacy__clip": 0.3,
    "aggregation__rule": "mean",
    "seed_policy": "shared",
}
ADAPTIVE = PRIVATE | {"privacy__adaptive_clip": True}


@pytest.mark.parametrize(
    ("privacy", "prior"),
    [({}, "own"), ({}, "common"), (PRIVATE, "own"), (ADAPTIVE, "own")],
    ids=["none", "common prior", "private", "adaptive"],
)
@pytest.mark.parametrize("best", [False, True])
def test_the_round_of_intercepts_is_that_of_the_scenario(
    tmp_path: Path, privacy: dict[str, Any], prior: str, best: bool
) -> None:
    returns = best and not privacy
    config = config_of(
        {}, **(READOUT | privacy), evaluate__best=returns, evaluate__every=2, personal__prior=prior
    )
    scenario, refused = signed(config, operator_key(tmp_path)), list[str]()
    answered = AnsweredRuns(lambda run_id: tmp_path / run_id.hex())
    runs = SignedRuns([scenario], *HASHES, answered, refused.append)
    terms, run_id = config.terms, scenario.run_id(*HASHES)
    last = terms.intercept_round
    assert last == 5 + returns
    assert [number for number in range(9) if terms.is_last(number)] == [last]
    joint = 0.7 if privacy is ADAPTIVE else 0.0
    asked = intercept_instruction(terms, run_id, HASHES[0], bytes(32), labels=3, joint_clip=joint)
    numbers = 2 + 5 * (prior == "common")
    assert asked.report_scalars == (terms.steps * terms.queries if privacy else numbers)
    runs.check(asked.encode())
    for changes in (
        {"round": last + 1},
        {"round": 1},
        {"learning_rate": asked.learning_rate / 2},
        {"batch": 1},
        {"run_id": bytes(8)},
        {"steps": asked.steps + 1},
        *([] if privacy else [{"queries": asked.queries + 1}]),
        {"joint_clip": joint + 0.1} if not joint else {"joint_clip": 2 * joint},
    ):
        with pytest.raises(ScenarioError):
            runs.check(replace(asked, **changes).encode())
    personal = EvaluateInstruction(run_id, last, 0, Split.TEST, HASHES[0], bytes(32))
    runs.check(personal.encode(), personal=True)
    other = config_of({}, **(READOUT | {"method": "global"}))
    case = signed(other, operator_key(tmp_path))
    without = SignedRuns([case], *HASHES, answered, refused.append)
    with pytest.raises(ScenarioError, match="track"):
        without.check(replace(asked, run_id=case.run_id(*HASHES)).encode())
