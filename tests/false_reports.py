"""False reports in valid frames: the attacks of a client with a valid key."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np
from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from samara.client.app import app as client_app
from samara.shared.errors import SamaraError
from samara.shared.protocol.frames.evaluation import Evaluation
from samara.shared.protocol.frames.report import MAX_CURVATURE, MAX_GRADIENT, Report
from samara.shared.protocol.wire import RECORD, Kind, kind_of

MANY = 10**6
AMPLIFICATION = 100.0

Forgery = Callable[[Report, Sequence[Report], int], Report]
"""A function that returns a false report, given the client's true report, the reports of the
honest clients (none if unknown), and the number of the round."""


def _scaled(report: Report, gradients: NDArray[np.float64]) -> Report:
    return replace(report, gradients=np.clip(gradients, -MAX_GRADIENT, MAX_GRADIENT).astype("f4"))


def _negated(report: Report, honest: Sequence[Report], number: int) -> Report:
    return _scaled(report, -report.gradients.astype(float))


def _amplified(report: Report, honest: Sequence[Report], number: int) -> Report:
    return _scaled(report, -AMPLIFICATION * report.gradients.astype(float))


def _random(report: Report, honest: Sequence[Report], number: int) -> Report:
    rng = np.random.default_rng([report.client, number])
    return _scaled(report, rng.normal(scale=10.0, size=report.gradients.shape))


def _largest(report: Report, honest: Sequence[Report], number: int) -> Report:
    return _scaled(report, np.full(report.gradients.shape, MAX_GRADIENT))


def _smallest(report: Report, honest: Sequence[Report], number: int) -> Report:
    return _scaled(report, report.gradients.astype(float) / MANY)


def _loss(report: Report, honest: Sequence[Report], number: int) -> Report:
    return replace(report, mean_loss=MAX_GRADIENT)


def _high_curvature(report: Report, honest: Sequence[Report], number: int) -> Report:
    return replace(report, curvature=None if report.curvature is None else MAX_CURVATURE)


def _low_curvature(report: Report, honest: Sequence[Report], number: int) -> Report:
    return replace(report, curvature=None if report.curvature is None else -MAX_CURVATURE)


def _examples(report: Report, honest: Sequence[Report], number: int) -> Report:
    return replace(_negated(report, honest, number), examples=MANY)


def _everything(report: Report, honest: Sequence[Report], number: int) -> Report:
    report = replace(_amplified(report, honest, number), examples=MANY)
    lie = _high_curvature if number % 2 else _low_curvature
    return lie(_loss(report, honest, number), honest, number)


def _inside(report: Report, honest: Sequence[Report], number: int) -> Report:
    """Return a false report that looks like the others, with the median of their norms.

    With shared seeds, its projected gradients are the others' mean minus 1.5 standard deviations
    (Baruch et al., A Little Is Enough, 2019); otherwise they are the client's own gradients,
    negated. Loss and curvature are the lowest of the others, and the number of examples is the
    largest.
    """
    others = list(honest) or [report]
    rows = np.stack([other.gradients.astype(float) for other in others])
    own = report.gradients.astype(float)
    is_shared = len(others) > 1 and np.corrcoef(rows[0].ravel(), rows[1].ravel())[0, 1] > 0.5
    target = rows.mean(axis=0) - 1.5 * rows.std(axis=0) if is_shared else -own
    norm = float(np.median([np.linalg.norm(row) for row in rows]))
    target *= norm / max(float(np.linalg.norm(target)), 1e-30)
    curvatures = [other.curvature for other in others if other.curvature is not None]
    return replace(
        _scaled(report, target),
        mean_loss=min(other.mean_loss for other in others),
        curvature=min(curvatures) if curvatures else None,
        examples=max(other.examples for other in others),
    )


FORGERIES: dict[str, Forgery] = {
    "-g": _negated,
    "-100 g": _amplified,
    "random": _random,
    "g = 10^6": _largest,
    "10^-6 g": _smallest,
    "loss 10^6": _loss,
    "curvature 10^12": _high_curvature,
    "curvature -10^12": _low_curvature,
    "-g, 10^6 examples": _examples,
    "everything": _everything,
    "inside": _inside,
}
"""False reports by their names in tables."""


class HostileApp(ClientApp):
    """The client app of a simulation in which some clients send false reports.

    Args:
        hostile: indices of the clients that send false reports.
        forgery: name of the false report.
        lies_in_evaluations: whether their evaluations are false, too; see `_false_evaluation`.
    """

    def __init__(
        self, hostile: Collection[int], forgery: str, lies_in_evaluations: bool = False
    ) -> None:
        super().__init__()
        self._hostile, self._forge = hostile, FORGERIES[forgery]
        self._lies_in_evaluations = lies_in_evaluations

    def __call__(self, message: Message, context: Context) -> Message:
        """Return the reply of the app; a hostile client's reply is forged."""
        reply = client_app(message, context)
        if int(context.node_config["partition-id"]) in self._hostile and not reply.has_error():
            frame = reply.content.config_records[RECORD]["frame"]
            assert isinstance(frame, bytes), "a reply holds one frame"
            number = int(message.metadata.group_id) if message.metadata.group_id.isdigit() else 0
            reply.content[RECORD] = ConfigRecord({"frame": self._forged(frame, number)})
        return reply

    def _forged(self, frame: bytes, number: int) -> bytes:
        try:
            if kind_of(frame) in (Kind.REPORT, Kind.REPORT_OF_SUMS):
                return self._forge(Report.decode(frame), [], number).encode()
            if kind_of(frame) is Kind.EVALUATION and self._lies_in_evaluations:
                return _false_evaluation(Evaluation.decode(frame)).encode()
        except SamaraError:
            pass
        return frame


def _false_evaluation(evaluation: Evaluation) -> Evaluation:
    """Return an evaluation of 10⁶ examples, all answered wrongly, with a loss of 10⁶."""
    columns = []
    for column in evaluation.columns:
        counts = np.zeros_like(column.counts)
        counts[0, -1] = MANY
        columns.append(replace(column, counts=counts, mean_loss=MAX_GRADIENT, ordered=None))
    return replace(evaluation, columns=tuple(columns))
