"""Private reports: what leaves a client in a run with differential privacy, clipped as a whole."""

from typing import NoReturn

from samara.shared.errors import (
    EvaluationLimitError,
    FrameError,
    HiddenRefusalError,
    RefusalCode,
    SamaraError,
)
from samara.shared.frames.instructions import EvaluateInstruction, TrainInstruction
from samara.shared.frames.report import Report
from samara.shared.frames.vector_report import AnyVectorReport, hide_report
from samara.shared.privacy.terms import PrivacyTerms

_TELLING = {
    *(RefusalCode.UNKNOWN, RefusalCode.DATA, RefusalCode.TASK, RefusalCode.RANGE),
    *(RefusalCode.TRAINING, RefusalCode.SCALARS, RefusalCode.BATCH, RefusalCode.EVALUATION),
}
"""The refusals whose reason may tell of a client's examples; others are of files and messages."""


def make_private(
    report: Report, instruction: TrainInstruction, privacy: PrivacyTerms
) -> AnyVectorReport:
    """Return a report clipped as a whole, with noise of the client's own where it adds some.

    Args:
        report: report of all K steps.
        instruction: instruction that it answers.
        privacy: the run's differential privacy.

    Raises:
        FrameError: if the instruction has a clip of its own and the run none, or the other way
            round.
    """
    if privacy.is_adaptive != (instruction.joint_clip > 0):
        raise FrameError("the instruction's clip is not as the run's settings say")
    clip = instruction.joint_clip if privacy.is_adaptive else privacy.clip
    sigma = privacy.mechanism.client_sigma
    return hide_report(report, clip, sigma, has_indicator=privacy.is_adaptive)


def refuse_evaluation(instruction: EvaluateInstruction) -> NoReturn:
    """Raise `EvaluationLimitError`: an evaluation tells of examples, and no noise covers it."""
    raise EvaluationLimitError(
        f"round {instruction.round}: the server asks for an evaluation, and the run's differential "
        "privacy does not cover any"
    )


def without_examples(error: SamaraError) -> SamaraError:
    """Return an error, or the constant one in its place if its reason may tell of examples."""
    return HiddenRefusalError(str(error)) if error.refusal_code in _TELLING else error
