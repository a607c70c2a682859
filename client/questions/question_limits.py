"""Names of the models that answer questions, and limits on the questions."""

BASE, GLOBAL, PERSONAL = "base", "global", "personal"
MODELS = (BASE, GLOBAL, PERSONAL)
"""Names of the models that can answer questions, in the order of a comparison."""
MAX_TEXTS = 256
"""Maximum number of texts in a question."""
MAX_TEXT_BYTES = 2**18
"""Maximum size in bytes of a text, or of all messages of a conversation together."""
MAX_CONTEXT = 32_768
"""Maximum number of tokens in a prompt and its continuation, regardless of the model's context."""
MAX_STOPS, MAX_STOP_BYTES = 16, 256
"""Maximum number of stop texts in a question, and maximum size of a stop text in bytes."""
MAX_TEMPERATURE = 2.0
MOST_QUESTIONS = 8
"""Maximum number of questions open at the same time. Further questions are refused."""
