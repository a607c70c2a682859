"""The check of a server's requests against the scenarios that an operator has signed.

It comes before anything is replayed or computed, and a request that is not exactly what a signed
scenario leads to is refused.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from samara.client.protocol.answered_runs import AnsweredRuns
from samara.shared.errors import FrameError, ScenarioError
from samara.shared.frames.instructions import (
    CLUSTERING_TRACK,
    GLOBAL_TRACK,
    INTERCEPT_TRACK,
    EvaluateInstruction,
    SeedPolicy,
    TrainInstruction,
)
from samara.shared.intercept_round import intercept_instruction
from samara.shared.run_terms import MOST_RESTORES, RunTerms
from samara.shared.signed_scenario import SignedScenario
from samara.shared.step_size import curvature_interval
from samara.shared.wire import Kind, kind_of

_MOST_DIFFERENCES = 5


@dataclass(frozen=True)
class _SignedRun:
    """The terms of a signed run, and the ids under which a client takes part in it.

    Attributes:
        settings: its settings, sorted JSON.
        terms: its terms.
        run_id: its id, 8 bytes.
        federations: the ids.
    """

    settings: bytes
    terms: RunTerms
    run_id: bytes
    federations: frozenset[bytes]


class SignedRuns:
    """The runs of signed scenarios with one layout and one base model.

    Args:
        scenarios: signed scenarios; None if none was ever given, so that the server decides.
        layout_hash: hash of the client's layout, 32 bytes.
        model_id: hash of its base model, 32 bytes.
        answered: what the client has answered in each run.
        record: function that takes the reason of every refusal.
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
        """Return whether there is a run with differential privacy among them."""
        return any(run.terms.privacy for run in self._runs)

    def settings_of(self, run_id: bytes) -> bytes:
        """Return the settings of a run, sorted JSON; nothing if it is none of them."""
        of_run = (run for run in self._runs if run_id in {run.run_id, *run.federations})
        return next((run.settings for run in of_run), b"")

    def check(self, frame: bytes, personal: bool = False) -> None:
        """Raise an error unless an instruction is one to which a signed scenario leads.

        Args:
            frame: train or evaluate instruction.
            personal: whether the instruction is to compare personal models.

        Raises:
            ScenarioError: if it is not; the message says what was asked for, and what is signed.
            FrameError: if the frame is no sound instruction.
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
            raise FrameError(f"a {kind.name.lower()} frame is no instruction")

    def check_first(self, instruction: TrainInstruction, token: bytes) -> None:
        """Raise an error if a report on another instruction for the round has been sent.

        Args:
            instruction: train instruction.
            token: its token, 8 bytes.

        Raises:
            ScenarioError: if one has, about this round or a later one.
            TrainerError: if it cannot be read what has been answered.
        """
        if self.server_decides:
            return
        run_id, number = instruction.run_id, instruction.round
        for federation in self._federations_with(run_id):
            answered = self._answered.read(federation)
            is_repeated = federation == run_id and token == answered.token
            if number <= answered.round and not is_repeated:
                self._refuse_if(
                    f"another report about round {number}, and there is one about round "
                    f"{answered.round}; every round is answered once"
                )

    def check_evaluation(self, instruction: EvaluateInstruction, personal: bool) -> None:
        """Raise an error if an evaluation was answered as often as the owner was told.

        That is once, and once more after each restore of the server's. The comparison of personal
        models is made once.

        Args:
            instruction: evaluate instruction, whose answer is not kept.
            personal: whether it is to compare personal models.

        Raises:
            ScenarioError: if it was.
            TrainerError: if it cannot be read what has been answered.
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
                f"{instruction.split.name.lower()} examples, and {times} of it have been sent; "
                "each is answered once, and once again after a restore of the server's backup"
            )

    def _federations_with(self, run_id: bytes) -> Collection[bytes]:
        """Return the ids of a run's clusters, which are counted together; or the one of no such."""
        return next((run.federations for run in self._runs if run_id in run.federations), {run_id})

    def _refuse_if(self, mistake: str) -> None:
        if mistake:
            self._record(mistake)
            raise ScenarioError(f"the server asks for {mistake}")

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
                    labels=asked.queries + 1,
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
        """Return what is wrong with a run id and a track that no signed scenario leads to."""
        signed = sorted({i.hex() for run in self._runs for i in (run.run_id, *run.federations)})
        return (
            f"run {run_id.hex()}, track {track}, and the signed scenarios lead to "
            f"{', '.join(signed[:_MOST_DIFFERENCES]) or 'none'}"
        )


SERVER_DECIDES = SignedRuns(None, b"", b"", AnsweredRuns(None), lambda _: None)
"""The runs of a client without a signed scenario: every request is allowed."""


def match_scenario(
    scenarios: Sequence[SignedScenario], identity: bytes, files: Mapping[str, str]
) -> SignedScenario | None:
    """Return the signed scenario with exactly these settings; None if there is none.

    Args:
        scenarios: signed scenarios.
        identity: settings of the server that are part of the run id, sorted JSON.
        files: its settings that name files.
    """
    for scenario in scenarios:
        if (scenario.identity, scenario.files) == (identity, files):
            return scenario
    return None


def describe_other_settings(scenarios: Sequence[SignedScenario], settings: dict[str, Any]) -> str:
    """Return how a server's settings differ from the signed scenario that is most like them."""
    differing = [
        {key for key in signed | settings if signed.get(key) != settings.get(key)}
        for signed in (scenario.settings for scenario in scenarios)
    ]
    if not differing:
        return "a run, and no scenario is signed"
    keys = min(differing, key=len)
    signed = scenarios[differing.index(keys)].settings
    return "other settings than those signed: " + _listed(
        f"{key} = {settings.get(key)!r} and not {signed.get(key)!r}" for key in sorted(keys)
    )


def _round_of(terms: RunTerms, asked: TrainInstruction) -> TrainInstruction:
    """Return the instruction of a round to which the terms lead.

    Where the server estimates the step size, its η and clip are taken as they are, and so is an
    adaptive clip, which no privacy depends on; otherwise η may
    be smaller than the one in the settings, since a rise of the loss lowers it.
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
    """Return the adaptive clip that was asked for; 0 in a run without one."""
    return asked.joint_clip if terms.privacy and terms.privacy.is_adaptive else 0.0


def _describe_round(terms: RunTerms, number: int) -> str:
    if number <= terms.rounds_of_federation:
        return ""
    return f"round {number}, and the signed scenario has {terms.rounds_of_federation}"


def _describe_differences(asked: TrainInstruction, signed: TrainInstruction) -> str:
    """Return the fields in which two instructions differ, with both values; empty if in none."""
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
