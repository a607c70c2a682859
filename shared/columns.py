"""The names of the columns of a client's evaluation; `RunTerms.requested_columns` chooses."""

BASE_RATE, ZERO_SHOT, LABEL_BIAS = "base rate", "zero-shot", "label bias"
"""The columns of what needs no federation: see `samara.client.personal.columns`."""
IN_CONTEXT = "icl-personal"
"""The column of the base model with a client's own examples before each prompt."""
LOCAL, INTERCEPT = "local-only", "intercept"
"""The columns of a client's own training without others, and of the global model with a client's
own label bias."""
GLOBAL, PERSONALIZED = "global", "personalized"
"""The columns of the federation's model, and of the model that a method makes for each client."""
