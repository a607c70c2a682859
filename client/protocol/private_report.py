"""Reports under differential privacy, which are clipped as a whole."""

from typing import NoReturn

from samara.shared.errors import (
    EvaluationLimitError,
    FrameError,
    HiddenRefusalError,
    RefusalCode,
    SamaraError,
)
from samara.shared.protocol.frames.instructions import EvaluateInstruction, TrainInstruction
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.frames.vector_report import AnyVectorReport, hide_report
from samara.shared.terms.privacy import PrivacyTerms

_TELLING = {
    *(RefusalCode.UNKNOWN, RefusalCode.DATA, RefusalCode.TASK, RefusalCode.RANGE),
    *(RefusalCode.TRAINING, RefusalCode.SCALARS, RefusalCode.BATCH, RefusalCode.EVALUATION),
}
"""Codes of refusals whose reason may reveal a client's examples. Other refusals concern files and
messages."""


def make_private(
    report: Report, instruction: TrainInstruction, privacy: PrivacyTerms
) -> AnyVectorReport:
    """Clip a report as a whole, and add noise if the run requires noise from clients.

    Args:
        report: report of all K steps.
        instruction: instruction that the report answers.
        privacy: the run's differential privacy.

    Raises:
        FrameError: if either the instruction or the run has an adaptive clip, but not both.
    """
    if privacy.is_adaptive != (instruction.joint_clip > 0):
        raise FrameError("the instruction's clip contradicts the run's settings")
    clip = instruction.joint_clip if privacy.is_adaptive else privacy.clip
    sigma = privacy.mechanism.client_sigma
    return hide_report(report, clip, sigma, has_indicator=privacy.is_adaptive)


def refuse_evaluation(instruction: EvaluateInstruction) -> NoReturn:
    """Raise `EvaluationLimitError`, because no noise protects the examples in an evaluation."""
    raise EvaluationLimitError(
        f"round {instruction.round}: the server asks for an evaluation, but the run's differential "
        "privacy covers no evaluations"
    )


def without_examples(error: SamaraError) -> SamaraError:
    """Return an error, replaced by a constant error if its reason may reveal examples."""
    return HiddenRefusalError(str(error)) if error.refusal_code in _TELLING else error
