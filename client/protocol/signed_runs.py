"""Checks of a server's requests against the scenarios signed by an operator.

Requests are checked before any replay or computation. A request that does not exactly match a
signed scenario is refused.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from samara.client.limits.answered_runs import AnsweredRuns
from samara.shared.errors import FrameError, ScenarioError
from samara.shared.protocol.frames.instructions import (
    CLUSTERING_TRACK,
    GLOBAL_TRACK,
    INTERCEPT_TRACK,
    EvaluateInstruction,
    SeedPolicy,
    TrainInstruction,
)
from samara.shared.protocol.step_size import curvature_interval
from samara.shared.protocol.wire import Kind, kind_of
from samara.shared.terms.intercept_round import intercept_instruction
from samara.shared.terms.run_terms import MOST_RESTORES, RunTerms
from samara.shared.terms.signed_scenario import SignedScenario

_MOST_DIFFERENCES = 5


@dataclass(frozen=True)
class _SignedRun:
    """The terms of a signed run, and the run ids under which a client takes part in it.

    Attributes:
        settings: settings of the run, sorted JSON.
        terms: terms of the run.
        run_id: run id, 8 bytes.
        federations: ids under which a client takes part: the run id, or one id per cluster.
    """

    settings: bytes
    terms: RunTerms
    run_id: bytes
    federations: frozenset[bytes]


class SignedRuns:
    """The runs of signed scenarios with one layout and one base model.

    Args:
        scenarios: signed scenarios; None if the client never had a scenario, so that the server
            decides.
        layout_hash: hash of the client's layout, 32 bytes.
        model_id: model id of the client's base model, 32 bytes.
        answered: records of the client's answers in each run.
        record: function that records the reason of a refusal.
    """

    def __init__(
        self,
        scenarios: Iterable[SignedScenario] | None,
        layout_hash: bytes,
        model_id: bytes,
        answered: AnsweredRuns,
        record: Callable[[str], None],
    ) -> None:
        self._answered, self._record = answered, record
        self.server_decides = scenarios is None
        self._runs: list[_SignedRun] = []
        for scenario in scenarios or ():
            terms, run_id = scenario.terms, scenario.run_id(layout_hash, model_id)
            federations = frozenset(terms.federations(run_id))
            self._runs.append(_SignedRun(scenario.identity, terms, run_id, federations))

    @property
    def has_privacy(self) -> bool:
        """True if one of the runs has differential privacy."""
        return any(run.terms.privacy for run in self._runs)

    def settings_of(self, run_id: bytes) -> bytes:
        """Return the settings of a run, sorted JSON; empty if no scenario describes the run."""
        of_run = (run for run in self._runs if run_id in {run.run_id, *run.federations})
        return next((run.settings for run in of_run), b"")

    def check(self, frame: bytes, personal: bool = False) -> None:
        """Check that a signed scenario allows an instruction.

        Args:
            frame: train or evaluate instruction.
            personal: whether the instruction requests the personal comparison.

        Raises:
            ScenarioError: if no scenario allows the instruction; the message describes the request
                and the signed terms.
            FrameError: if the frame is not a valid instruction.
        """
        if self.server_decides:
            return
        kind = kind_of(frame)
        if kind is Kind.TRAIN:
            self._refuse_if(self._find_train_mistake(TrainInstruction.decode(frame)))
        elif kind is Kind.EVALUATE:
            asked = EvaluateInstruction.decode(frame)
            self._refuse_if(self._find_evaluation_mistake(asked, personal))
        else:
            raise FrameError(f"a {kind.name.lower()} frame is not an instruction")

    def check_first(self, instruction: TrainInstruction, token: bytes) -> None:
        """Check that the client has sent no report for another instruction of this round.

        Args:
            instruction: train instruction.
            token: token of the instruction, 8 bytes.

        Raises:
            ScenarioError: if the client has sent another report for this round, or a report for a
                later round.
            TrainerError: if the record of earlier answers cannot be read.
        """
        if self.server_decides:
            return
        run_id, number = instruction.run_id, instruction.round
        for federation in self._federations_with(run_id):
            answered = self._answered.read(federation)
            is_repeated = federation == run_id and token == answered.token
            if number <= answered.round and not is_repeated:
                self._refuse_if(
                    f"another report about round {number}, but this client has already reported "
                    f"about round {answered.round}; every round is answered once"
                )

    def check_evaluation(self, instruction: EvaluateInstruction, personal: bool) -> None:
        """Check that the terms allow one more answer to an evaluation.

        The terms allow one answer, and one more after each restore of the server. Personal models
        are compared only once.

        Args:
            instruction: evaluate instruction without a stored answer.
            personal: whether the instruction requests the personal comparison.

        Raises:
            ScenarioError: if the terms allow no more answers.
            TrainerError: if the record of earlier answers cannot be read.
        """
        if self.server_decides:
            return
        books = [self._answered.read(each) for each in self._federations_with(instruction.run_id)]
        times = sum(book.times_answered(instruction, personal) for book in books)
        restores = 0 if personal else min(MOST_RESTORES, sum(book.restores for book in books))
        if times > restores:
            kind = "comparison of personal models" if personal else "evaluation"
            self._refuse_if(
                f"another {kind} after round {instruction.round} on "
                f"{instruction.split.name.lower()} examples, but this client has already sent "
                f"{times}; each is answered once, and once again after a restore of the server's "
                "backup"
            )

    def _federations_with(self, run_id: bytes) -> Collection[bytes]:
        """Return the ids of all clusters of a run, or only `run_id` for a run without clusters.

        The answers in all clusters of a run are counted together.
        """
        return next((run.federations for run in self._runs if run_id in run.federations), {run_id})

    def _refuse_if(self, mistake: str) -> None:
        if mistake:
            self._record(mistake)
            raise ScenarioError(
                f"the server asks for {mistake}. No signed scenario allows this; ask the operator"
            )

    def _find_train_mistake(self, asked: TrainInstruction) -> str:
        for run in self._runs:
            if asked.run_id in run.federations and asked.track == GLOBAL_TRACK:
                return _describe_differences(asked, _round_of(run.terms, asked)) or (
                    _describe_round(run.terms, asked.round)
                )
            if run.terms.intercept_round and (asked.run_id, asked.track) == (
                run.run_id,
                INTERCEPT_TRACK,
            ):
                expected = intercept_instruction(
                    run.terms,
                    *(asked.run_id, asked.layout_hash, asked.start_digest),
                    labels=asked.queries + 1 - run.terms.held_out_losses,
                    joint_clip=_joint_clip(run.terms, asked),
                )
                return _describe_differences(asked, expected)
            if run.terms.clusters and (asked.run_id, asked.track) == (run.run_id, CLUSTERING_TRACK):
                expected = run.terms.clustering_instruction(
                    asked.run_id, asked.layout_hash, asked.start_digest
                )
                return _describe_differences(asked, expected)
        return self._describe_run(asked.run_id, asked.track)

    def _find_evaluation_mistake(self, asked: EvaluateInstruction, personal: bool) -> str:
        for run in self._runs:
            if asked.run_id in run.federations and asked.track == GLOBAL_TRACK:
                if run.terms.is_evaluated(asked.round, asked.split, personal):
                    return ""
                what = "a comparison of personal models" if personal else "an evaluation"
                return (
                    f"{what} after round {asked.round} on {asked.split.name.lower()} examples, "
                    "which the signed scenario does not have"
                )
        return self._describe_run(asked.run_id, asked.track)

    def _describe_run(self, run_id: bytes, track: int) -> str:
        """Return the description of a request whose run id and track match no signed scenario."""
        signed = sorted({i.hex() for run in self._runs for i in (run.run_id, *run.federations)})
        return (
            f"run {run_id.hex()}, track {track}, but the only signed runs are "
            f"{', '.join(signed[:_MOST_DIFFERENCES]) or 'none'}"
        )


SERVER_DECIDES = SignedRuns(None, b"", b"", AnsweredRuns(None), lambda _: None)
"""The `SignedRuns` of a client without a signed scenario, which allow every request."""


def match_scenario(
    scenarios: Sequence[SignedScenario], identity: bytes, files: Mapping[str, str]
) -> SignedScenario | None:
    """Return the signed scenario with exactly these settings, or None.

    Args:
        scenarios: signed scenarios.
        identity: settings of the server that are part of the run id, sorted JSON.
        files: settings of the server that name files.
    """
    for scenario in scenarios:
        if (scenario.identity, scenario.files) == (identity, files):
            return scenario
    return None


def describe_other_settings(scenarios: Sequence[SignedScenario], settings: dict[str, Any]) -> str:
    """Return the differences between a server's settings and the most similar signed scenario."""
    differing = [
        {key for key in signed | settings if signed.get(key) != settings.get(key)}
        for signed in (scenario.settings for scenario in scenarios)
    ]
    if not differing:
        return "a run, but no scenario is signed"
    keys = min(differing, key=len)
    signed = scenarios[differing.index(keys)].settings
    return "settings other than the signed ones: " + _listed(
        f"{key} = {settings.get(key)!r} and not {signed.get(key)!r}" for key in sorted(keys)
    )


def _round_of(terms: RunTerms, asked: TrainInstruction) -> TrainInstruction:
    """Return the instruction that the terms allow in a round, given the instruction of the server.

    If the server estimates the step size, any η and clip are accepted. In other runs η may be
    smaller than in the settings, because the server reduces η when the loss rises. Any adaptive
    clip is accepted, because privacy does not depend on that clip.
    """
    estimated = terms.learning_rate is None
    interval = curvature_interval(terms.queries, terms.differences)
    if terms.differences == "components":
        interval = 0
    is_measured = estimated and interval > 0 and asked.curvature_every in (1, interval)
    return terms.instruction(
        asked.run_id,
        asked.round,
        asked.layout_hash,
        asked.start_digest,
        learning_rate=(
            asked.learning_rate
            if terms.learning_rate is None
            else min(asked.learning_rate, terms.learning_rate)
        ),
        clip=asked.clip if estimated else 0.0,
        curvature_every=asked.curvature_every if is_measured else interval * estimated,
        joint_clip=_joint_clip(terms, asked),
    )


def _joint_clip(terms: RunTerms, asked: TrainInstruction) -> float:
    """Return an instruction's adaptive clip; 0 in a run without an adaptive clip."""
    return asked.joint_clip if terms.privacy and terms.privacy.is_adaptive else 0.0


def _describe_round(terms: RunTerms, number: int) -> str:
    if number <= terms.rounds_of_federation:
        return ""
    return f"round {number}, but the signed scenario has {terms.rounds_of_federation} rounds"


def _describe_differences(asked: TrainInstruction, signed: TrainInstruction) -> str:
    """Return the fields in which two instructions differ, with both values; "" if equal."""
    ours, theirs = asdict(signed), asdict(asked)
    return _listed(
        f"{field.name.replace('_', ' ')} {_plain(theirs[field.name])} and not "
        f"{_plain(ours[field.name])}"
        for field in fields(asked)
        if ours[field.name] != theirs[field.name]
    )


def _plain(value: object) -> str:
    if isinstance(value, SeedPolicy):
        return value.name.lower()
    return value.hex() if isinstance(value, bytes) else str(value)


def _listed(texts: Iterable[str]) -> str:
    each = [text[:200] for text in texts]
    more = f" and {len(each) - _MOST_DIFFERENCES} more" if len(each) > _MOST_DIFFERENCES else ""
    return ", ".join(each[:_MOST_DIFFERENCES]) + more
