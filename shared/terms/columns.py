"""Names of the columns of a client's evaluation; `RunTerms.requested_columns` selects them."""

BASE_RATE, ZERO_SHOT, LABEL_BIAS = "base rate", "zero-shot", "label bias"
"""Columns of models without federated training; see `samara.client.personal.columns`."""
IN_CONTEXT = "icl-personal"
"""Column of the base model with the client's own examples before each prompt."""
LOCAL, INTERCEPT = "local-only", "intercept"
"""Column of a model that the client trained alone, and column of the global model with the
client's private label bias."""
GLOBAL, PERSONALIZED = "global", "personalized"
"""Column of the global model, and column of the personal model that a method makes."""
OWN_WORDS = "own words"
"""Column of the personal model with a mixture of the client's own words."""
