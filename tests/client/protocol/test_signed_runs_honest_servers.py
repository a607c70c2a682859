"""An honest server's requests all follow from its scenario, whatever the scenario."""

from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from federations import Settings, config_of, grid_of
from flwr.app import Message
from scenarios import operator_key, signed

from samara.client.limits.answered_runs import AnsweredRuns
from samara.client.protocol.signed_runs import SignedRuns
from samara.server.app import serve
from samara.shared.protocol.frames.instructions import (
    INTERCEPT_TRACK,
    EvaluateInstruction,
    TrainInstruction,
    token_of,
)
from samara.shared.protocol.wire import PERSONAL_ACTION, RECORD, Kind, kind_of
from samara.shared.results.result import read_result
from samara.simulations.engines.in_process import InProcessGrid


class Requests(InProcessGrid):
    """Records node, message type and frame of every request."""

    requests: list[tuple[int, str, bytes]]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        for message in messages:
            frame = bytes(message.content.config_records[RECORD]["frame"])  # type: ignore[arg-type]
            about = message.metadata
            self.requests.append((about.dst_node_id, about.message_type, frame))
        return super().push_messages(messages)


LABELS = 2


def folder_of(client: Path, run_id: bytes) -> Path:
    return client / run_id.hex()


def count_columns(runs: SignedRuns, answered: AnsweredRuns, frame: bytes, personal: bool) -> int:
    """Count the columns of an allowed evaluation; 0 for a repeated request."""
    asked, token = EvaluateInstruction.decode(frame), token_of(frame)
    book = answered.read(asked.run_id)
    if book.find_evaluation(asked, token, personal):
        return 0
    runs.check_evaluation(asked, personal)
    book = book.after_evaluation(asked, token, personal, b"an evaluation", is_counted=True)
    answered.write(asked.run_id, book)
    terms = next(run.terms for run in runs._runs)
    return len(terms.requested_columns(asked.split, personal))


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "finetune"},
        {"method": "local"},
        {"method": "global", "seed_policy": "shared", "differences": "forward"},
        {"method": "ditto", "seed_policy": "pool", "pool_size": 5, "clip": 2.0},
        {"method": "cluster", "cohort__clustering_rounds": 1, "evaluate__best": True},
        {"method": "readout", "adapter__layers": "readout", "learning_rate": "auto"},
        {"learning_rate": "auto", "evaluate__best": True, "rounds": 6, "queries": 20},
        {"learning_rate": 30.0, "evaluate__best": True, "rounds": 12, "personal__rounds": 0},
        {"learning_rate": "auto", "differences": "forward", "rounds": 4, "evaluate__test": False},
    ],
)
def test_no_request_of_an_honest_server_is_refused(
    changes: dict[str, Any], small: Settings, tmp_path: Path
) -> None:
    config = config_of(small, **changes)
    grid = grid_of(config, Requests)
    grid.requests = []
    result = read_result(serve(config, grid))
    scenario, refused = signed(config, operator_key(tmp_path)), list[str]()
    hashes = bytes.fromhex(result["layout_hash"]), bytes.fromhex(result["model_id"])
    assert scenario.run_id(*hashes).hex() == result["run_id"]
    scalars: dict[int, int] = defaultdict(int)
    columns: dict[int, int] = defaultdict(int)
    for node, kind, frame in grid.requests:
        if not frame or kind.startswith("query"):
            continue
        answered = AnsweredRuns(partial(folder_of, tmp_path / str(node)))
        runs = SignedRuns([scenario], *hashes, answered, refused.append)
        runs.check(frame, kind.endswith(PERSONAL_ACTION))
        if kind_of(frame) is Kind.TRAIN:
            asked, token = TrainInstruction.decode(frame), token_of(frame)
            runs.check_first(asked, token)
            before = answered.read(asked.run_id)
            answered.write(asked.run_id, before.after_report(asked, token))
            if asked.track == INTERCEPT_TRACK:  # said beside the scalars about examples
                assert asked.report_scalars == LABELS - 1
            else:
                scalars[node] += asked.report_scalars
        else:
            columns[node] += count_columns(runs, answered, frame, kind.endswith(PERSONAL_ACTION))
    assert not refused
    assert max(columns.values()) <= config.terms.evaluated_columns
    assert max(scalars.values(), default=0) == config.terms.projected_gradients
