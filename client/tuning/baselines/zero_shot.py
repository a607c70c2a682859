"""The model as it is."""

from client.tuning.tuning_setup import Figures, Split, TuningSetup


def zero_shot(bench: TuningSetup, split: Split) -> Figures:
    """How good the unchanged model is on a split.

    Args:
        bench: with its model as it was read.
        split: of the data.
    """
    forward, here = bench.plain()
    return bench.figures(forward, here, split)
