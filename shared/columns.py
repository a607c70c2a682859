"""The columns of a client's evaluation: which the server asks for, and every client may answer."""

from shared.config import RunConfig
from shared.frames.instructions import Split

BASE_RATE, ZERO_SHOT, LABEL_BIAS = "base rate", "zero-shot", "label bias"
"""The columns of what needs no federation: see `client.personal.columns`."""
LOCAL, INTERCEPT = "local-only", "intercept"
"""The columns of a client's own training without others, and of the global model with a client's
own label bias."""
GLOBAL, PERSONALIZED = "global", "personalized"
"""The columns of the federation's model, and of the model that a method makes for each client."""


def requested_columns(config: RunConfig, split: Split, personal: bool) -> tuple[str, ...]:
    """Return the columns that an evaluation asks for; a client may lack some, as phones do.

    Args:
        config: settings of the run.
        split: split that is evaluated on.
        personal: whether the comparison of personal models is asked for, and not the global model.
    """
    if personal and split is Split.TEST:
        local = (LOCAL,) if config.method == "finetune" else ()
        intercept = (INTERCEPT,) if config.method == "readout" else ()
        return (BASE_RATE, ZERO_SHOT, LABEL_BIAS, *local, GLOBAL, *intercept, PERSONALIZED)
    if personal:
        return (PERSONALIZED,)
    chooses_by_fits = config.method == "readout" and config.evaluate.best
    return (GLOBAL, PERSONALIZED) if chooses_by_fits and split is Split.VALIDATION else (GLOBAL,)
