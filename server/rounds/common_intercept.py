"""The common intercept: the mean of the clients' private ones, as a round of the global model."""

from dataclasses import replace

import numpy as np

from samara.shared.contrasts import contrasts
from samara.shared.frames.instructions import GLOBAL_TRACK
from samara.shared.layout import Layout
from samara.shared.replay import COEFFICIENT_BITS, DenseValues
from samara.shared.round_delta import RoundDelta


def common_intercept(delta: RoundDelta, layout: Layout) -> RoundDelta:
    """Return the delta that adds the aggregated intercept to the label bias.

    Args:
        delta: delta of the round of intercepts, along shared directions. Its coefficients are those
            of the labels' contrasts, followed by zeros or noise; without any it changes nothing.
        layout: layout of the adapter, with a label bias.
    """
    bias = layout.label_bias
    assert bias is not None, "the method readout has a label bias"
    rows = contrasts(bias.stop - bias.start).astype(np.float64)
    coordinates = np.zeros(len(rows))
    for group in delta.groups:
        block = group.scalars
        numbers = np.ldexp(block.coefficients.astype(np.float64), block.shift - COEFFICIENT_BITS)
        coordinates += numbers[: len(rows)]
    entries = (DenseValues.from_numbers(bias.start, coordinates @ rows),) if delta.groups else ()
    return replace(delta, track=GLOBAL_TRACK, entries=entries)
