"""The common intercept: the mean of the clients' private intercepts, which a final round adds."""

from dataclasses import replace

import numpy as np

from samara.shared.errors import ReportError
from samara.shared.protocol.frames.instructions import GLOBAL_TRACK
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.replay import COEFFICIENT_BITS, DenseValues
from samara.shared.protocol.round_delta import CommonDeviation, RoundDelta
from samara.shared.tasks.contrasts import contrasts
from samara.shared.terms.intercept_round import MOST_EXCESS


def common_intercept(delta: RoundDelta, layout: Layout, excesses: int = 0) -> RoundDelta:
    """Return the delta that adds the common intercept to the label bias.

    With held-out losses, it also names the candidate deviation with the lowest mean loss.

    Args:
        delta: delta of the round of intercepts, with shared seeds. Its first coefficients are the
            coordinates of the intercept along the labels' contrasts. With a common prior, the means
            of the candidates' excess losses follow. The other coefficients are zeros, or noise with
            differential privacy. A delta without coefficients does not change the model.
        layout: layout of the adapter, with a label bias.
        excesses: number of candidate deviations; 0 without a common prior.
    """
    bias = layout.label_bias
    assert bias is not None, "a run with intercepts has a label bias"
    rows = contrasts(bias.stop - bias.start).astype(np.float64)
    found = np.zeros(len(rows) + excesses)
    for group in delta.groups:
        block = group.scalars
        numbers = np.ldexp(block.coefficients.astype(np.float64), block.shift - COEFFICIENT_BITS)
        found += numbers[: len(found)]
    entries: tuple[DenseValues | CommonDeviation, ...] = ()
    if delta.groups:
        entries = (DenseValues.from_numbers(bias.start, found[: len(rows)] @ rows),)
        if excesses:
            entries = (*entries, CommonDeviation(int(found[len(rows) :].argmin())))
    return replace(delta, track=GLOBAL_TRACK, entries=entries)


def check_excesses(report: Report, count: int) -> None:
    """Check the excess losses in a report for the round of intercepts.

    Args:
        report: report that fits the instruction.
        count: number of candidate deviations.

    Raises:
        ReportError: if an excess is below 0 or above `MOST_EXCESS`.
    """
    excesses = -report.gradients.ravel()[report.gradients.size - count :]
    if np.any(excesses < 0) or np.any(excesses > MOST_EXCESS):
        raise ReportError(
            f"client {report.client} reports an excess loss below 0 or above {MOST_EXCESS:g}"
        )
