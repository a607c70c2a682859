"""The common intercept: the mean of the clients' private intercepts, which a final round adds."""

from dataclasses import replace

import numpy as np

from samara.shared.protocol.frames.instructions import GLOBAL_TRACK
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.replay import COEFFICIENT_BITS, DenseValues
from samara.shared.protocol.round_delta import RoundDelta
from samara.shared.tasks.contrasts import contrasts


def common_intercept(delta: RoundDelta, layout: Layout) -> RoundDelta:
    """Return the delta that adds the common intercept to the label bias.

    Args:
        delta: delta of the round of intercepts, with shared seeds. Its first coefficients are the
            coordinates of the intercept along the labels' contrasts. The other coefficients are
            zeros, or noise with differential privacy. A delta without coefficients does not change
            the model.
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
