"""The columns of a client's evaluation: which the server asks for, and every client may answer."""

from samara.shared.frames.instructions import Split
from samara.shared.run_terms import RunTerms

BASE_RATE, ZERO_SHOT, LABEL_BIAS = "base rate", "zero-shot", "label bias"
"""The columns of what needs no federation: see `samara.client.personal.columns`."""
IN_CONTEXT = "icl-personal"
"""The column of the base model with a client's own examples before each prompt."""
LOCAL, INTERCEPT = "local-only", "intercept"
"""The columns of a client's own training without others, and of the global model with a client's
own label bias."""
GLOBAL, PERSONALIZED = "global", "personalized"
"""The columns of the federation's model, and of the model that a method makes for each client."""


def requested_columns(terms: RunTerms, split: Split, personal: bool) -> tuple[str, ...]:
    """Return the columns that an evaluation asks for; a client may lack some.

    Args:
        terms: terms of the run.
        split: split that is evaluated on.
        personal: whether the comparison of personal models is asked for, and not the global model.
    """
    if personal and split is Split.TEST:
        local = (LOCAL,) if terms.method == "finetune" else ()
        intercept = (INTERCEPT,) if terms.method == "readout" else ()
        in_context = (IN_CONTEXT,) if terms.retrieves else ()
        untrained = (BASE_RATE, ZERO_SHOT, LABEL_BIAS, *in_context)
        return (*untrained, *local, GLOBAL, *intercept, PERSONALIZED)
    if personal:
        return (PERSONALIZED,)
    chooses_by_fits = terms.method == "readout" and terms.returns_to_best
    return (GLOBAL, PERSONALIZED) if chooses_by_fits and split is Split.VALIDATION else (GLOBAL,)
